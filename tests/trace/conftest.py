"""A clock that no machine drives: where things stand in a picture, and how many bytes their times
take, is the same on a loaded machine and on an idle one."""

from __future__ import annotations

from itertools import count

import pytest


@pytest.fixture(autouse=True)
def simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at a log's clock takes a millisecond, each allocation five microseconds."""
    monkeypatch.setattr("edgekv.trace.writer.perf_counter_ns", count(0, 1_000_000).__next__)
    monkeypatch.setattr("edgekv.cache.planning.perf_counter_ns", count(0, 5_000).__next__)
