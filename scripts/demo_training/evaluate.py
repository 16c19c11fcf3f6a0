"""Accuracy of the demo model: on short held-out clips, and on streams that never end.

Owns two ways of asking. Short clips go through the packed forward; for a greedy decoder, every
token of the right answer being the likeliest one after the tokens before it is the same as
generating that answer. Streams go through a bounded context that drops its oldest frames: keys are
kept unrotated and rotated at their current place, which is what relocatable pages amount to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.smolvlm import SmolVLMForConditionalGeneration

from demo_training.data import Encoder, pack, preprocess
from demo_training.model import TOKENS_PER_FRAME, Trainee
from edgekv.demo import Clip, EvaluationStream, Question, evaluation_set


@dataclass
class Score:
    """Exact answers per kind of question."""

    right: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)

    def add(self, question: Question, is_right: bool) -> None:
        self.asked[question.kind] += 1
        self.right[question.kind] += is_right

    def accuracy(self, *kinds: str) -> float:
        kinds = kinds or tuple(self.asked)
        return sum(self.right[k] for k in kinds) / max(1, sum(self.asked[k] for k in kinds))

    def lines(self) -> list[str]:
        rows = [f"{k:10s} {self.accuracy(k):6.1%}  of {n}" for k, n in self.asked.items()]
        most = [k for k in self.asked if k not in ("direction", "caption")]
        rows.append(f"{'all':10s} {self.accuracy():6.1%}  of {self.asked.total()}")
        return [*rows, f"{'targeted':10s} {self.accuracy(*most):6.1%}  without direction, caption"]


@torch.no_grad()
def score_clips(
    trainee: Trainee, encoder: Encoder, *, num_clips: int, max_frames: int, min_frames: int = 1
) -> Score:
    """Exact answers on ``evaluation_set``, without instructions."""
    score = Score()
    start = [encoder.start, encoder.user]
    for sample in evaluation_set(num_clips, max_frames=max_frames):
        if len(sample.frames) < min_frames or not sample.questions:
            continue
        bounds = np.zeros(len(sample.frames), np.intp)
        batch = pack(encoder, start, [_bare(sample.frames)], [(bounds, list(sample.questions))])
        logits = trainee(
            batch.pixels,
            batch.tokens,
            batch.positions,
            batch.mask,
            batch.num_start,
            batch.predictors,
        ).logits
        right = logits.argmax(-1) == batch.targets
        for number, question in enumerate(batch.questions):
            score.add(question, bool(right[batch.question_of == number].all()))
    return score


def _bare(frames: NDArray[np.uint8]) -> Clip:
    """A clip of which only the frames are known, (n, 64, 64, 3) uint8."""
    none = np.zeros((len(frames), 18), np.float32)
    owners = np.full(frames.shape[:3], -1, np.int8)
    return Clip(frames, none, none, np.full((len(frames), 18, 2), np.nan, np.float32), owners)


class Context:
    """The bounded contexts of b streams that are pushed, cut and asked together."""

    def __init__(self, model: SmolVLMForConditionalGeneration, num_streams: int) -> None:
        self.text = model.model.text_model
        self.head = model.lm_head
        config = model.config.text_config
        self.groups = config.num_attention_heads // config.num_key_value_heads
        shape = (num_streams, config.num_key_value_heads, 0, config.head_dim)
        layers = range(config.num_hidden_layers)
        self.keys = [torch.zeros(shape) for _ in layers]  # (b, Hk, n, D), not rotated
        self.values = [torch.zeros(shape) for _ in layers]

    @property
    def num_tokens(self) -> int:
        return self.keys[0].shape[2]

    def drop(self, first: int, count: int) -> None:
        """Forget ``count`` tokens from ``first`` on; the later ones move up."""
        for stored in (self.keys, self.values):
            for index, old in enumerate(stored):
                stored[index] = torch.cat([old[:, :, :first], old[:, :, first + count :]], 2)

    def push(self, x: Tensor) -> None:
        """Append (b, t, hidden) embedded tokens."""
        self._forward(x, torch.arange(x.shape[0]), keep=True)

    def ask(self, x: Tensor, stream_of: Tensor) -> Tensor:
        """Hidden states (r, t, hidden) of r forks of t embedded tokens; nothing is kept."""
        hidden: Tensor = self.text.norm(self._forward(x, stream_of, keep=False))
        return hidden

    def _forward(self, x: Tensor, stream_of: Tensor, *, keep: bool) -> Tensor:
        past, new = self.num_tokens, x.shape[1]
        positions = torch.arange(past + new)[None]
        cos, sin = self.text.rotary_emb(x, positions)  # (1, past + new, D)
        visible = torch.ones(new, past + new, dtype=torch.bool).tril(past)
        for index, layer in enumerate(self.text.layers):
            h = layer.input_layernorm(x)
            q, k, v = (
                proj(h).unflatten(-1, (-1, layer.self_attn.head_dim)).transpose(1, 2)
                for proj in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            )
            keys = torch.cat([self.keys[index][stream_of], k], 2)
            values = torch.cat([self.values[index][stream_of], v], 2)
            if keep:
                self.keys[index], self.values[index] = keys, values
            q, _ = apply_rotary_pos_emb(q, q, cos[:, past:], sin[:, past:])
            keys, _ = apply_rotary_pos_emb(keys, keys, cos, sin)
            mixed = F.scaled_dot_product_attention(
                q,
                keys.repeat_interleave(self.groups, 1),
                values.repeat_interleave(self.groups, 1),
                attn_mask=visible,
            )
            x = x + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x


@torch.no_grad()
def score_streams(
    trainee: Trainee,
    encoder: Encoder,
    *,
    num_streams: int,
    num_frames: int,
    ask_from: int,
    ask_every: int,
    window: int,
    keep: int,
) -> Score:
    """Exact answers on endless streams whose context holds at most ``window`` frames.

    When it is full it is cut to its newest ``keep`` frames. Questions are asked from frame
    ``ask_from`` on, each about the frames that are kept at that time.
    """
    score = Score()
    streams = [EvaluationStream(number) for number in range(num_streams)]
    context = Context(trainee.model, num_streams)
    embed = trainee.model.model.text_model.embed_tokens
    start = torch.tensor([[encoder.start, encoder.user]])
    context.push(embed(start).expand(num_streams, -1, -1))
    held = 0
    for frame in range(num_frames):
        if held == window:
            context.drop(start.shape[1], (window - keep) * TOKENS_PER_FRAME)
            held = keep
        frames = np.stack([s.read() for s in streams])
        context.push(trainee.encode(preprocess(frames))[1])
        held += 1
        if frame >= ask_from and (frame - ask_from) % ask_every == 0:
            rows = [(number, q) for number, s in enumerate(streams) for q in s.questions(held)]
            for (_, q), is_right in zip(
                rows, _ask_forks(trainee, encoder, context, rows), strict=True
            ):
                score.add(q, is_right)
    return score


@torch.no_grad()
def answers_right(
    trainee: Trainee,
    encoder: Encoder,
    frames: NDArray[np.uint8],  # (n, 64, 64, 3)
    questions: list[Question],
    *,
    window: int,
    keep: int,
) -> list[bool]:
    """Whether each question is answered right when asked after its last frame of one video."""
    context = Context(trainee.model, 1)
    embed = trainee.model.model.text_model.embed_tokens
    start = torch.tensor([[encoder.start, encoder.user]])
    context.push(embed(start))
    images = trainee.encode(preprocess(frames))[1]
    right = [False] * len(questions)
    held = 0
    for frame in range(len(frames)):
        if held == window:
            context.drop(start.shape[1], (window - keep) * TOKENS_PER_FRAME)
            held = keep
        context.push(images[frame : frame + 1])
        held += 1
        now = [index for index, q in enumerate(questions) if q.last == frame]
        if now:
            rows = [(0, questions[index]) for index in now]
            for index, is_right in zip(
                now, _ask_forks(trainee, encoder, context, rows), strict=True
            ):
                right[index] = is_right
    return right


def _ask_forks(
    trainee: Trainee, encoder: Encoder, context: Context, rows: list[tuple[int, Question]]
) -> list[bool]:
    """Fork a stream once per (stream, question), all of them as one padded batch."""
    branches = [encoder.branch(q) for _, q in rows]
    longest = max(len(ids) for ids, _ in branches)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    for row, (ids, _) in enumerate(branches):
        tokens[row, : len(ids)] = torch.tensor(ids)
    embedded = trainee.model.model.text_model.embed_tokens(tokens)
    hidden = context.ask(embedded, torch.tensor([number for number, _ in rows]))
    likeliest = trainee.model.lm_head(hidden).argmax(-1)  # (r, t)
    return [
        likeliest[row, answer_at - 1 : len(ids) - 1].tolist() == ids[answer_at:]
        for row, (ids, answer_at) in enumerate(branches)
    ]
