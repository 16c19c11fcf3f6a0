"""Muon for the matrices, AdamW for everything else.

Owns the update rule (Muon: Jordan et al. 2024, momentum made orthogonal by Newton-Schulz steps).
Matrices of one shape are updated as one batch, since the demo model has many small ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from demo_training.model import Trainee


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum; every parameter must be a matrix."""

    def __init__(
        self,
        params: Iterable[dict[str, object]],
        lr: float = 0.01,
        momentum: float = 0.95,
        weight_decay: float = 0.02,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # it takes none
        for group in self.param_groups:
            if group["lr"] == 0:
                continue
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for params in by_shape.values():
                self._update(params, group)

    def _update(self, params: list[Tensor], group: dict[str, float]) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        buffers = []
        for p in params:
            state = self.state[p]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(p)
            buffers.append(state["momentum"])
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        updates = _share(torch.stack(torch._foreach_lerp(grads, buffers, group["momentum"])))
        rows, columns = params[0].shape
        rate = group["lr"] * max(1.0, rows / columns) ** 0.5
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, list(updates.unbind()), alpha=-rate)


def _share(matrices: Tensor) -> Tensor:
    """(k, m, n) orthogonalised, each worker doing a part of them."""
    if not dist.is_initialized():
        return orthogonalise(matrices)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    updates = torch.zeros_like(matrices)
    if len(matrices[mine]):
        updates[mine] = orthogonalise(matrices[mine])
    dist.all_reduce(updates)
    return updates


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """(k, m, n) -> nearly orthogonal matrices of the same shape, by Newton-Schulz steps."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.mT).to(matrices.dtype)


def build_optimizers(trainee: Trainee, lr: float, muon_lr: float) -> list[torch.optim.Optimizer]:
    """Groups named "vision" and "text"; each carries the full rate it was given as "peak"."""
    matrices: dict[str, list[nn.Parameter]] = {"vision": [], "text": []}
    others: dict[str, list[nn.Parameter]] = {"vision": [], "text": []}
    for name, p in trainee.named_parameters():
        part = "vision" if ".vision_model." in name or ".connector." in name else "text"
        layered = ".layers." in name or ".connector." in name
        hidden = p.ndim == 2 and layered and muon_lr > 0
        (matrices if hidden else others)[part].append(p)
    adam = torch.optim.AdamW(
        [{"params": p, "part": part, "lr": lr, "peak": lr} for part, p in others.items()],
        betas=(0.9, 0.98),
        weight_decay=0.02,
        foreach=True,
    )
    if muon_lr <= 0:
        return [adam]
    muon = Muon(
        [
            {"params": p, "part": part, "lr": muon_lr, "peak": muon_lr}
            for part, p in matrices.items()
        ]
    )
    return [adam, muon]


def set_rates(optimizers: list[torch.optim.Optimizer], text: float, vision: float) -> None:
    """Scale the peak rates of the two parts."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * (vision if group["part"] == "vision" else text)
