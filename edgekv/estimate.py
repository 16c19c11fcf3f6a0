"""What a bundle takes when it is loaded, and whether this machine has it.

Owns: the arithmetic. Guarantees: nothing is taken; a refusal says what would fit.
Does not know: executors, caches.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from edgekv.bundle import Bundle
from edgekv.config import KVDtype, format_bytes, parse_bytes
from edgekv.errors import BudgetError
from edgekv.memory import available_bytes
from edgekv.sources import cross_pages

_log = logging.getLogger(__name__)

# Activations of one prefill chunk and the graph's own bookkeeping, on top of weights and pool.
WORKSPACE_BYTES = 64 * 2**20
DEFAULT_ENCODER_CACHE_BYTES = 4 * 2**20
# Of the memory that a KV budget could take, what the advice leaves: less may be available by the
# time it is followed.
_SPARE_PERCENT = 5
# Encoder states of one input on their way into the cross pools: as the encoder left them, as they
# are passed on, and as the graph that writes takes them (float32).
_STATES_BYTES = 3 * 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory a bundle takes when loaded, in bytes."""

    num_pages: int
    weight_bytes: int
    pool_bytes: int
    workspace_bytes: int
    num_cross_pages: int  # 0 for a model without cross-attention
    cross_bytes: int
    encoder_cache_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.pool_bytes + self.fixed_bytes

    @property
    def fixed_bytes(self) -> int:
        """What is taken however small the KV budget is."""
        others = self.cross_bytes + self.workspace_bytes + self.encoder_cache_bytes
        return self.weight_bytes + others


def estimate(
    bundle: Bundle,
    kv_budget: str | int,
    kv_dtype: KVDtype | None = None,
    *,
    cross_budget: str | int | None = None,
    encoder_cache_bytes: int = DEFAULT_ENCODER_CACHE_BYTES,
) -> Estimate:
    """What loading ``bundle`` takes. Raises BudgetError for a budget of less than a page, or of
    less than two inputs of cross-attention."""
    page_bytes = bundle.geometry_for(kv_dtype).page_bytes
    budget = parse_bytes(kv_budget, "kv_budget")
    num_pages = budget // page_bytes
    if num_pages < 1:
        raise BudgetError(
            f"a KV budget of {format_bytes(budget, rounded='down')} holds no page of "
            f"{bundle.manifest.name}: one page takes {format_bytes(page_bytes)}"
        )
    weights = sum(entry.size_bytes for entry in bundle.manifest.files.values())
    num_cross, cross_bytes = cross_pages(bundle, cross_budget, kv_dtype)
    workspace = WORKSPACE_BYTES
    if bundle.cross is not None:
        workspace += _STATES_BYTES * bundle.cross.max_states * bundle.cross.hidden_size
    return Estimate(
        num_pages=num_pages,
        weight_bytes=weights,
        pool_bytes=num_pages * page_bytes,
        workspace_bytes=workspace,
        num_cross_pages=num_cross,
        cross_bytes=cross_bytes,
        encoder_cache_bytes=encoder_cache_bytes,
    )


def check_memory(bundle: Bundle, need: Estimate) -> None:
    """Refuse before taking anything when it exceeds what is available, and log what it takes: as a
    warning when that is more than half of it."""
    available = available_bytes()
    if available is None:
        return
    name, total, pool = bundle.manifest.name, need.total_bytes, format_bytes(need.pool_bytes)
    takes = f"{format_bytes(need.fixed_bytes)} model and workspace, {pool} KV pool"
    has = f"{format_bytes(available, rounded='down')} available here"
    if total <= available:
        level, advice = logging.INFO, ""
        if total > available // 2:
            level, advice = logging.WARNING, ": a smaller kv_budget (--kv-budget) takes less"
        share = f"{100 * total / available:.0f} % of the {has}"
        _log.log(level, "%s takes %s (%s), %s%s", name, format_bytes(total), takes, share, advice)
        return
    room = (available - need.fixed_bytes) * (100 - _SPARE_PERCENT) // 100
    advice = (
        f"a KV budget of {format_bytes(room, rounded='down')} would fit, with {_SPARE_PERCENT} % "
        "to spare"
        if room >= need.pool_bytes // need.num_pages
        else "this model does not fit at all"
    )
    needed = format_bytes(total, rounded="up")
    raise BudgetError(f"{name} needs {needed} ({takes}), {has}: {advice}")
