"""Every retention rule against one list of demands; a new rule joins with one line in RULES."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv.cache import SegmentTable, check
from edgekv.cache.retention import (
    RetentionRule,
    Watermarks,
    Window,
    make_room,
    retention_rule,
    retention_rules,
)
from edgekv.cache.segments import KIND_CODES
from edgekv.errors import ContextError, OutOfPagesError
from tests.cache.compare import assert_same
from tests.cache.helpers import add, frames, make_cache

RULES = ["window"]

PAGES = st.lists(st.integers(0, 6), min_size=1, max_size=40).filter(any)


def table(num_pages: list[int]) -> SegmentTable:
    n = len(num_pages)
    return SegmentTable(
        ids=np.arange(10, 10 + n),
        kinds=np.full(n, KIND_CODES["frame"], np.int8),
        num_pages=np.array(num_pages, np.int32),
        num_tokens=np.array(num_pages, np.int32) * 4,
        index=np.arange(n),
        time_s=np.arange(n) / 2,
    )


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> RetentionRule:
    return retention_rule(request.param)


def test_every_rule_is_tested() -> None:
    assert set(RULES) == set(retention_rules())


@pytest.mark.parametrize("name", RULES)
@given(num_pages=PAGES, data=st.data())
def test_a_choice_is_enough_distinct_and_in_order(
    name: str, num_pages: list[int], data: st.DataObject
) -> None:
    segments = table(num_pages)
    wanted = data.draw(st.integers(1, sum(num_pages)))
    chosen = retention_rule(name).choose(segments, wanted)
    assert segments.num_pages[chosen].sum() >= wanted
    assert chosen.min() >= 0
    assert chosen.max() < len(segments)
    assert (np.diff(chosen) > 0).all()


@pytest.mark.parametrize("name", RULES)
@given(num_pages=st.lists(st.integers(1, 6), min_size=2, max_size=40), data=st.data())
def test_the_newest_stays_while_the_others_are_enough(
    name: str, num_pages: list[int], data: st.DataObject
) -> None:
    wanted = data.draw(st.integers(1, sum(num_pages[:-1])))
    chosen = retention_rule(name).choose(table(num_pages), wanted)
    assert len(num_pages) - 1 not in chosen


def test_nothing_wanted_nothing_chosen(rule: RetentionRule) -> None:
    assert len(rule.choose(table([1, 2, 3]), 0)) == 0


def test_a_stream_within_its_marks(rule: RetentionRule) -> None:
    """Frames for ten windows: never above the high mark, the pinned start and the newest stay."""
    cache = make_cache(32)
    sequence = frames(cache, 1)
    marks = Watermarks(high=20, low=12)
    for index in range(1, 100):
        make_room(sequence, 2, rule=rule, marks=marks, num_free=cache.counts.free)
        add(cache, sequence, "frame", 6, index=index)
        assert sequence.num_pages <= marks.high
        assert sequence.segments[0].kind == "system"
        assert [s.index for s in sequence.segments[-2:]] == [index - 1, index]
        check(cache.snapshot())


# -- window


def test_window_drops_the_shortest_oldest_prefix() -> None:
    segments = table([3, 1, 2])
    assert [Window().choose(segments, n).tolist() for n in (1, 3, 4, 5, 6)] == [
        [0],
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 2],
    ]


# -- names


def test_an_unknown_rule_names_the_choices() -> None:
    with pytest.raises(ValueError, match="retention rule must be one of window, got 'windw'"):
        retention_rule("windw")


# -- making room


def ids_after(cache, sequence, num_pages: int, marks: Watermarks) -> list[int]:
    make_room(sequence, num_pages, rule=Window(), marks=marks, num_free=cache.counts.free)
    return [s.id for s in sequence.segments]


@pytest.mark.parametrize(
    ("num_pages", "kept"),
    [(3, [0, 1, 2, 3]), (4, [0, 3]), (5, [0, 3])],  # 7 pages held, high 10, low 8
)
def test_room_is_made_in_batches_down_to_the_low_mark(num_pages: int, kept: list[int]) -> None:
    cache = make_cache()
    assert ids_after(cache, frames(cache, 3), num_pages, Watermarks(10, 8)) == kept


def test_the_low_mark_is_tried_not_required() -> None:
    cache = make_cache()
    assert ids_after(cache, frames(cache, 3), 9, Watermarks(10, 0)) == [0]


def test_system_text_stays_wherever_it_stands() -> None:
    cache = make_cache()
    sequence = frames(cache, 1)
    add(cache, sequence, "system", 2)
    add(cache, sequence, "text", 2)
    assert ids_after(cache, sequence, 3, Watermarks(5, 5)) == [0, 2]


def test_what_can_never_fit_is_refused_and_nothing_is_dropped() -> None:
    cache = make_cache()
    sequence = frames(cache, 3)
    before = cache.snapshot()
    with pytest.raises(ContextError, match="need 10 pages, 1 of 10 are pinned"):
        ids_after(cache, sequence, 10, Watermarks(10, 8))
    assert_same(before, cache.snapshot())


def test_pages_that_a_fork_holds_do_not_count_as_room() -> None:
    cache = make_cache(9)
    sequence = frames(cache, 3)
    fork = sequence.fork()
    add(cache, fork, "text", 1)
    before = cache.snapshot()
    with pytest.raises(OutOfPagesError, match="need 2 pages, 1 free"):
        ids_after(cache, sequence, 2, Watermarks(32, 32))
    assert_same(before, cache.snapshot())
    fork.drop([1])
    assert ids_after(cache, sequence, 2, Watermarks(32, 32)) == [0, 2, 3]


@pytest.mark.parametrize(("high", "low"), [(4, 5), (4, -1), (0, 0)])
def test_impossible_marks_are_refused(high: int, low: int) -> None:
    with pytest.raises(ValueError, match=f"got low {low}, high {high}"):
        Watermarks(high, low)
