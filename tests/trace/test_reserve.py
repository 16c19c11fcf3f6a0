"""What is reserved is logged, replays, and is counted as held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekv.cache.reserve import Reserve
from edgekv.errors import TraceError
from edgekv.trace import TraceWriter, read_log
from edgekv.trace.events import Reserved
from edgekv.trace.lives import RESERVED
from edgekv.trace.replay import replay
from edgekv.trace.timeline import build_timeline
from edgekv.trace.view import make_view
from edgekv.trace.words import describe
from tests.cache.helpers import add
from tests.trace.streams import make_cache


def write_reserves(path: Path) -> None:
    """Tokens from a reserve, one append of it given up, the rest given back or closed with."""
    cache = make_cache(16)
    log = TraceWriter(cache, path)
    one, other = cache.open(), cache.open()
    one.reserve(5 * 16)
    other.reserve(2 * 16)
    add(cache, one, "text", 20)
    append = one.append("answer", 1)
    step = cache.begin_step([append])
    append.abort()
    add(cache, one, "answer", 3)
    step.abort()
    add(cache, other, "text", 3 * 16)
    one.release_reserve()
    one.reserve(16)
    one.close()
    log.close()


def test_a_log_says_what_was_reserved_and_replays(tmp_path: Path) -> None:
    write_reserves(tmp_path / "t")
    events = [e for e in read_log(tmp_path / "t").events() if isinstance(e, Reserved)]
    assert [(e.how, len(e.pages)) for e in events] == [
        ("reserved", 5),
        ("reserved", 2),
        ("given back", 2),
        ("reserved", 1),
    ]
    assert replay(read_log(tmp_path / "t")).difference is None
    timeline = build_timeline(read_log(tmp_path / "t"))
    assert min(timeline.levels.free) == 16 - 5 - 3
    assert timeline.levels.free[-1] == 16 - 3
    assert timeline.levels.peak == 8
    assert min(timeline.holders.spans.to_us) >= 0
    view = make_view(timeline)
    reserved = view.map.runs.row[view.map.runs.kind == RESERVED]
    assert set(view.map.pages[reserved].tolist()) == set(range(7)), "before anything is written"
    words = describe(read_log(tmp_path / "t"), view)
    assert "At most 7 pages at once were reserved" in words.story
    assert "reserved" in {name for name, _ in words.legend}


def test_a_reserve_that_is_drawn_otherwise_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reserves(tmp_path / "t")
    real = Reserve.put_back

    def last_first(self: Reserve, pages: np.ndarray) -> None:
        real(self, pages)
        self.pages = self.pages[::-1].copy()

    monkeypatch.setattr(Reserve, "put_back", last_first)
    assert "pages taken: the log says" in str(replay(read_log(tmp_path / "t")).difference)


def test_a_log_that_begins_with_a_reserve_is_drawn_but_not_replayed(tmp_path: Path) -> None:
    cache = make_cache(16)
    sequence = cache.open()
    sequence.reserve(3 * 16)
    log = TraceWriter(cache, tmp_path / "t")
    add(cache, sequence, "text", 16)
    sequence.close()
    log.close()
    timeline = build_timeline(read_log(tmp_path / "t"))
    assert min(timeline.levels.free) == 13
    assert timeline.levels.free[-1] == 16
    with pytest.raises(TraceError, match="reserved pages from before the log"):
        replay(read_log(tmp_path / "t"))
