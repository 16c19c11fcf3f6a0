"""The training loop: phases by elapsed time, losses, averaged weights, checkpoints.

Owns the schedule. Guarantees that a run stopped at any time goes on from its last checkpoint.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from demo_training.curriculum import Phase, phases
from demo_training.data import (
    TRAINING_SEEDS,
    Batch,
    Encoder,
    draw_batch,
    patch_labels,
    preprocess,
    through_a_file,
)
from demo_training.model import (
    CELL_CLASSES,
    PATCH_CLASSES,
    Outputs,
    Trainee,
    build_config,
    build_model,
)
from demo_training.optimizer import build_optimizers, set_rates
from demo_training.save import save_folder
from edgekv.demo import Scene

_AUXILIARY: Final = 0.2
_AVERAGING: Final = 0.998
_VISION_EVERY: Final = 3  # steps between updates of the vision tower once questions are learned


@dataclass
class State:
    """What a checkpoint holds besides the weights."""

    step: int = 0
    elapsed_s: float = 0.0


@dataclass
class Meter:
    """Running means since the last report."""

    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, name: str, value: float, count: int = 1) -> None:
        self.sums[name] += value
        self.counts[name] += count

    def report(self) -> str:
        means = [f"{k} {self.sums[k] / max(self.counts[k], 1):.3f}" for k in self.sums]
        self.sums.clear()
        self.counts.clear()
        return "  ".join(means)


class Trainer:
    """One training run in a folder, or one worker's share of it.

    Workers draw different data and average their gradients once a step. One thread in each of
    them gets along with other load on the machine, where threads that meet at every operation
    do not.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        out: Path,
        *,
        minutes: float,
        seed: int = 0,
        lr: float = 1.5e-3,
        muon_lr: float = 0.01,
        scale: float = 1.0,
        bf16: bool = False,
        rank: int = 0,
        workers: int = 1,
        vision_steps: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        self.tokenizer, self.out, self.minutes, self.bf16 = tokenizer, out, minutes, bf16
        self.trainee = Trainee(build_model(build_config(tokenizer, max_positions=1024)))
        self.worker = self.trainee.bfloat16_copy() if bf16 else self.trainee
        self.average = copy.deepcopy(self.trainee).requires_grad_(False)
        self.optimizers = build_optimizers(self.trainee, lr, muon_lr)
        self.encoder = Encoder(tokenizer)
        self.rank, self.workers = rank, workers
        self.scale = scale / workers
        self.phases = phases(self.scale)
        self.vision_steps = vision_steps
        self.state = State()
        self.meter = Meter()
        self.rng = np.random.default_rng((seed, rank))
        self._phase_began_at: tuple[str, int] = ("", 0)

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.bf16 else torch.float32

    @property
    def progress(self) -> float:
        return self.state.elapsed_s / (60 * self.minutes)

    def describe(self) -> str:
        minutes = self.state.elapsed_s / 60
        return f"{minutes:5.1f} min  step {self.state.step}  {self._phase_began_at[0]}"

    def save(self) -> None:
        """Write checkpoint and Hugging Face folder, each replaced in one step."""
        self.out.mkdir(parents=True, exist_ok=True)
        part = self.out / "checkpoint.pt.part"
        torch.save(
            {
                "trainee": self.trainee.state_dict(),
                "average": self.average.state_dict(),
                "optimizers": [o.state_dict() for o in self.optimizers],
                "state": vars(self.state),
            },
            part,
        )
        part.replace(self.out / "checkpoint.pt")
        save_folder(self.average.model, self.tokenizer, self.out / "hf")

    def resume(self) -> None:
        saved = torch.load(self.out / "checkpoint.pt", weights_only=True)
        self.trainee.load_state_dict(saved["trainee"])
        self._copy_to_worker()
        self.average.load_state_dict(saved["average"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            peaks = [group["peak"] for group in optimizer.param_groups]
            optimizer.load_state_dict(state)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["peak"] = peak
        self.state = State(**saved["state"])
        self.rng = np.random.default_rng((self.state.step, self.rank))

    def step(self) -> None:
        """One update; time counts towards the schedule."""
        began = time.perf_counter()
        phase = next(p for p in self.phases if self.progress < p.end or p is self.phases[-1])
        if self.vision_steps > 0:
            phase = self.phases[0]
            self.vision_steps -= 1
        if phase.name != self._phase_began_at[0]:
            self._phase_began_at = (phase.name, self.state.step)
        self._set_rates(phase)
        for model in (self.trainee, self.worker):
            model.zero_grad(set_to_none=True)
        loss = self._question_loss(phase) if phase.mixes else self._vision_loss()
        loss.backward()
        self._share_gradients()
        torch.nn.utils.clip_grad_norm_(self.trainee.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self._copy_to_worker()
        keep = min(_AVERAGING, (1 + self.state.step) / (10 + self.state.step))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.parameters()), list(self.trainee.parameters()), 1 - keep
            )
        self.state.step += 1
        spent = self._share_time(time.perf_counter() - began)
        self.state.elapsed_s += spent
        self.meter.add("s/step", spent)

    def _share_gradients(self) -> None:
        """Average the workers' gradients into those of the full-precision weights."""
        pairs = [
            (p, w.grad)
            for p, w in zip(self.trainee.parameters(), self.worker.parameters(), strict=True)
            if w.grad is not None
        ]
        flat = torch.cat([g.flatten().float() for _, g in pairs])
        if self.workers > 1:
            dist.all_reduce(flat)
            flat /= self.workers
        parts = flat.split([g.numel() for _, g in pairs])
        for (parameter, _), part in zip(pairs, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    @torch.no_grad()
    def _copy_to_worker(self) -> None:
        if self.worker is not self.trainee:
            torch._foreach_copy_(list(self.worker.parameters()), list(self.trainee.parameters()))

    def _share_time(self, spent: float) -> float:
        """The first worker's clock counts, so that all follow one schedule."""
        if self.workers > 1:
            clock = torch.tensor([spent], dtype=torch.float64)
            dist.broadcast(clock, 0)
            spent = float(clock)
        return spent

    def _set_rates(self, phase: Phase) -> None:
        decay = min(1.0, (1.03 - self.progress) / 0.5)
        since = self.state.step - self._phase_began_at[1]
        if phase.name == "vision":
            warm = min(1.0, (self.state.step + 1) / 50)
            set_rates(self.optimizers, text=warm, vision=warm)
            return
        vision = 0.0 if phase.name == "short" and since < 50 else 0.35
        warm = min(1.0, (since + 1) / 100) if phase.name == "short" else 1.0
        set_rates(self.optimizers, text=decay * warm, vision=decay * warm * vision)

    def _vision_loss(self) -> Tensor:
        clips = [
            Scene(int(self.rng.integers(TRAINING_SEEDS))).read(3)
            for _ in range(max(1, round(32 * self.scale)))
        ]
        frames = np.concatenate([c.frames for c in clips])
        some = self.rng.random(len(frames)) < 0.15
        if some.any():
            frames[some] = through_a_file(self.rng, frames[some])
        labels = torch.from_numpy(np.concatenate([patch_labels(c) for c in clips]))
        hidden, _ = self.worker.encode(preprocess(frames).to(self.dtype))
        return self._label_loss("patch", self.worker.patch_head(hidden), labels, PATCH_CLASSES)

    def _question_loss(self, phase: Phase) -> Tensor:
        # Drawn from the step alone: all workers take equally long.
        choice = np.random.default_rng(self.state.step).integers(len(phase.mixes))
        mix = phase.mixes[choice]
        batch = draw_batch(self.rng, self.encoder, mix)
        train_vision = self.state.step % _VISION_EVERY == 0
        outputs: Outputs = self.worker(
            batch.pixels.to(self.dtype),
            batch.tokens,
            batch.positions,
            batch.mask,
            batch.num_start,
            batch.predictors,
            train_vision,
        )
        losses = F.cross_entropy(outputs.logits.float(), batch.targets, reduction="none")
        answer_loss = (losses * batch.weights).sum() / batch.weights.sum()
        self.meter.add("answer", answer_loss.item())
        self._count_right(batch, outputs.logits)
        loss = self._label_loss("cell", outputs.cells, batch.cell_labels, CELL_CLASSES)
        if train_vision:
            loss = loss + self._label_loss(
                "patch", outputs.patches, batch.patch_labels, PATCH_CLASSES
            )
        return answer_loss + _AUXILIARY * loss

    def _label_loss(
        self, name: str, logits: Tensor, labels: Tensor, classes: tuple[int, ...]
    ) -> Tensor:
        total = torch.zeros(())
        for part, index in zip(logits.split(classes, dim=-1), range(len(classes)), strict=True):
            flat, wanted = part.flatten(0, -2).float(), labels[..., index].flatten()
            known = (wanted >= 0).nonzero().squeeze(1)
            if len(known):
                loss = F.cross_entropy(flat[known], wanted[known])
                self.meter.add(f"{name}{index}", loss.item())
                total = total + loss
        return total

    def _count_right(self, batch: Batch, logits: Tensor) -> None:
        right = (logits.argmax(-1) == batch.targets).long()
        exact = torch.ones(len(batch.questions), dtype=torch.long)
        exact.scatter_reduce_(0, batch.question_of, right, "amin")
        for question, value in zip(batch.questions, exact.tolist(), strict=True):
            self.meter.add(question.kind, value)
