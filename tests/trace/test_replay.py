"""A replay decides as the cache did, and says what differs when it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekv.cache import PageAllocator
from edgekv.cache.retention import Window
from edgekv.cache.segments import SegmentTable
from edgekv.errors import TraceError
from edgekv.native.ledger import Ledger
from edgekv.trace import TraceWriter, read_log
from edgekv.trace.events import Held
from edgekv.trace.replay import replay
from edgekv.trace.states import state_of
from edgekv.trace.timeline import Timeline, build_timeline
from tests.cache.driver import play
from tests.cache.test_machine import WORLDS
from tests.cache.world import World
from tests.trace.streams import make_cache, stream, write_log


def played(world: World, path: Path) -> Timeline:
    """Random operations, logged; what the log says in the end must be what the cache says."""
    log = TraceWriter(world.cache, path)
    play(world, 11, 450)
    log.close()
    timeline, counts = build_timeline(read_log(path)), world.cache.counts
    assert (timeline.levels.free[-1], timeline.levels.cached[-1]) == (counts.free, counts.cached)
    assert counts.available == timeline.num_pages
    assert timeline.levels.tokens[-1] == 0
    assert timeline.levels.in_flight[-1] == 0
    assert min(timeline.holders.spans.to_us) >= 0
    assert timeline.levels.peak == world.cache.counts.peak
    return timeline


@pytest.mark.parametrize("name", WORLDS)
def test_random_operations_replay_to_the_same_decisions(tmp_path: Path, name: str) -> None:
    played(World(**WORLDS[name]), tmp_path / "t")
    result = replay(read_log(tmp_path / "t"))
    assert result.difference is None
    assert min(result.num_appends, result.num_drops, result.num_counts) > 0


def test_a_restored_session_replays(tmp_path: Path) -> None:
    """Its text goes on in a page that has moved, and its frames leave."""
    source, cache = make_cache(), make_cache()
    stream(source, 30)
    state = source.sequences[0].export_state()
    log = TraceWriter(cache, tmp_path / "t")
    restored = cache.import_state(state)
    restored.drop([restored.segments[1].id], rule="window")
    with cache.begin_step([restored.append("frame", 9)]) as step:
        step.commit()
    log.close()
    events = list(read_log(tmp_path / "t").events())
    result = replay(read_log(tmp_path / "t"))
    assert result.difference is None
    assert result.num_drops == 1
    held = next(event for event in events if isinstance(event, Held))
    assert len(held.segments) == len(state.segments) > 1
    again = state_of(held.segments, held.next_segment, 1)
    for name, array in state.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array, err_msg=name)


def test_a_stream_with_questions_replays(tmp_path: Path) -> None:
    result = replay(read_log(write_log(tmp_path / "t")))
    assert result.difference is None
    assert result.num_appends == 1 + 100 + 10 * 13
    assert result.num_drops > 10
    assert result.num_drops_as_logged == 0


def test_an_allocator_that_hands_out_other_pages_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "t")
    real = Ledger.__init__

    def highest_first(self: Ledger, num_pages: int) -> None:
        real(self, num_pages)
        self.free[:] = self.free[::-1].copy()

    monkeypatch.setattr(Ledger, "__init__", highest_first)
    result = replay(read_log(tmp_path / "t"))
    assert "pages taken: the log says (0, 1, 2), the replay (" in str(result.difference)


def test_a_rule_that_chooses_otherwise_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "t")

    def choose(_: Window, segments: SegmentTable, num_pages: int) -> list[int]:
        del num_pages
        return [len(segments) - 1]

    monkeypatch.setattr(Window, "choose", choose)
    assert "segments that window chooses: the log says" in str(
        replay(read_log(tmp_path / "t")).difference
    )


def test_a_page_that_leaks_is_found_by_the_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "t", 15, ask_every=0)
    real = PageAllocator.counts.fget
    assert real is not None
    leaked = lambda self: type(real(self))(128, 0, 128, 0, 0, 128)  # noqa: E731
    monkeypatch.setattr(PageAllocator, "counts", property(leaked))
    assert "free, live, cached" in str(replay(read_log(tmp_path / "t")).difference)


def test_a_log_without_its_beginning_is_drawn_but_not_replayed(tmp_path: Path) -> None:
    cache = make_cache()
    stream(cache, 30)
    log = TraceWriter(cache, tmp_path / "t")
    for sequence in cache.sequences:
        with sequence.fork() as fork:
            fork.append("text", 5).abort()
        sequence.close()
    log.close()
    with pytest.raises(TraceError, match="has pages from before the log"):
        replay(read_log(tmp_path / "t"))
    timeline = build_timeline(read_log(tmp_path / "t"))
    assert timeline.frames.most == 20
    assert timeline.levels.free[-1] == timeline.num_pages
    assert timeline.levels.tokens[-1] == 0
