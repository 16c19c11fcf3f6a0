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


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory a bundle takes when loaded, in bytes."""

    num_pages: int
    weight_bytes: int
    pool_bytes: int
    workspace_bytes: int
    num_cross_pages: int  # 0 for a model without cross-attention
    cross_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weight_bytes + self.pool_bytes + self.cross_bytes + self.workspace_bytes


def estimate(
    bundle: Bundle,
    kv_budget: str | int,
    kv_dtype: KVDtype | None = None,
    *,
    cross_budget: str | int | None = None,
) -> Estimate:
    """What loading ``bundle`` takes. Raises BudgetError for a budget of less than a page, or of
    less than two inputs of cross-attention."""
    page_bytes = bundle.geometry_for(kv_dtype).page_bytes
    budget = parse_bytes(kv_budget, "kv_budget")
    num_pages = budget // page_bytes
    if num_pages < 1:
        raise BudgetError(
            f"a KV budget of {format_bytes(budget)} holds no page of {bundle.manifest.name}: "
            f"one page takes {format_bytes(page_bytes)}"
        )
    weights = sum(entry.size_bytes for entry in bundle.manifest.files.values())
    num_cross, cross_bytes = cross_pages(bundle, cross_budget, kv_dtype)
    return Estimate(
        num_pages, weights, num_pages * page_bytes, WORKSPACE_BYTES, num_cross, cross_bytes
    )


def check_memory(bundle: Bundle, need: Estimate, encoder_cache_bytes: int) -> None:
    """Refuse before taking anything when model, pool, workspace and the cache of encoder outputs
    exceed what is available; say so when they take more than half of it."""
    available = available_bytes()
    total = need.total_bytes + encoder_cache_bytes
    if available is None or total <= available // 2:
        return
    if total <= available:
        _log.warning(
            "%s takes %s, %.0f %% of the %s available here; %s of it is the KV pool, which "
            "kv_budget (--kv-budget) makes smaller",
            bundle.manifest.name,
            format_bytes(total),
            100 * total / available,
            format_bytes(available),
            format_bytes(need.pool_bytes),
        )
        return
    fixed = total - need.pool_bytes
    room = available - fixed
    advice = (
        f"a KV budget of {format_bytes(room)} would fit"
        if room >= bundle.geometry.page_bytes
        else "this model does not fit at all"
    )
    raise BudgetError(
        f"{bundle.manifest.name} needs {format_bytes(total)} ({format_bytes(fixed)} "
        f"model and workspace, {format_bytes(need.pool_bytes)} KV), {format_bytes(available)} are "
        f"available: {advice}"
    )
