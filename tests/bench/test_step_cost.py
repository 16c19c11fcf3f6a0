"""What the host does around steps is timed, and everything is as it was afterwards."""

from __future__ import annotations

from pathlib import Path

import edgekv
from edgekv.bench.step_cost import step_costs
from edgekv.cache import PageCache, Sequence, Step


def test_each_part_is_timed_and_nothing_stays_patched(bundle_path: Path) -> None:
    before = (Sequence.append, PageCache.begin_step, Step.commit)
    with edgekv.load(bundle_path, kv_budget="4MiB", num_threads=1) as model:
        figures = step_costs(model, num_frames=8)
    assert (Sequence.append, PageCache.begin_step, Step.commit) == before
    for what in ("push", "piece"):
        parts = [figures[f"{what}_{part}_us"] for part in ("append", "begin", "commit")]
        assert min(parts) > 0
        assert max(parts) < figures[f"{what}_total_us"]
