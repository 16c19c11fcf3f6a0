"""A model logs what its sessions do, and can be told to at any time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv.trace import read_log
from edgekv.trace.replay import replay
from edgekv.trace.timeline import build_timeline

Picture = Callable[[int], NDArray[np.uint8]]


def test_a_model_logs_its_sessions(bundle_path: Path, picture: Picture, tmp_path: Path) -> None:
    path, later = tmp_path / "t", tmp_path / "later"
    with edgekv.load(bundle_path, kv_budget="1MiB", num_threads=1, trace=path) as model:
        with model.session(instructions="You watch.") as session:
            for k in range(40):
                session.push(picture(k), k / 4)
            session.ask("What do you see?", edgekv.SamplingOptions(max_new_tokens=3))
            with pytest.raises(ValueError, match="backwards"):
                session.push(picture(0), 0.0)
            stats = session.stats()
            model.trace(later)
            session.push(picture(40), 10.0)
        assert model.trace_problem is None
    result = replay(read_log(path))
    assert result.difference is None
    timeline = build_timeline(read_log(path))
    assert list(timeline.frames.stream_s) == [k / 4 for k in range(40)]
    assert sum(drop.num_frames for drop in timeline.drops) == stats.num_evicted_frames > 0
    assert {drop.rule for drop in timeline.drops} == {"window"}
    assert sum(life.is_question for life in timeline.sequences.values()) == 1
    assert timeline.levels.peak == stats.pages_peak
    assert timeline.levels.free[-1] == stats.pages_free
    begun_later = build_timeline(read_log(later))
    assert list(begun_later.frames.stream_s) == [10.0]
    left = begun_later.levels.free[-1] + begun_later.levels.cached[-1]
    assert left == stats.num_pages, "the session was closed and gave all back"


def test_a_trace_that_cannot_be_written_is_refused_at_load(
    bundle_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(edgekv.TraceError, match="cannot write the trace"):
        edgekv.load(bundle_path, kv_budget="1MiB", trace=tmp_path / "no" / "t")


def test_a_log_goes_on_when_another_cannot_begin(
    bundle_path: Path, tmp_path: Path, picture: Picture
) -> None:
    path = tmp_path / "t"
    (tmp_path / "other").write_text("no log")
    with (
        edgekv.load(bundle_path, kv_budget="1MiB", num_threads=1, trace=path) as model,
        model.session() as session,
    ):
        for wrong, limit in (
            (tmp_path / "no" / "t", 2**20),
            (tmp_path / "other", 2**20),
            (path, 1),
        ):
            session.push(picture(0), session.last_time_s if session.stats().num_frames else 0.0)
            with pytest.raises((edgekv.TraceError, ValueError)):
                model.trace(wrong, limit=limit)
        session.push(picture(0), 0.0)
        model.trace(None)
        assert len(build_timeline(read_log(path)).frames.stream_s) == 4
        model.trace(path)  # in the same file: begun anew
        session.push(picture(1), 1.0)
        model.trace(None)
        assert list(build_timeline(read_log(path)).frames.stream_s) == [1.0]
