"""Making room: what leaves, how much of it at once, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.cache import PageCache, SegmentTable, Sequence
from edgekv.cache.retention import LeastAttended, Watermarks, Window, choose_room
from edgekv.errors import ContextError, OutOfPagesError
from tests.cache.compare import assert_same
from tests.cache.helpers import add, frames, make_cache, make_room


def ids_after(cache: PageCache, sequence: Sequence, num_pages: int, marks: Watermarks) -> list[int]:
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


@pytest.mark.parametrize("places", [[0.5], [99], [True]])
def test_a_rule_that_names_no_places_is_named(places: list[float]) -> None:
    class Odd(Window):
        name = "odd"

        def choose(self, segments: SegmentTable, num_pages: int) -> np.ndarray:  # noqa: ARG002
            return np.array(places)

    cache = make_cache()
    sequence = frames(cache, 3)
    before = cache.snapshot()
    with pytest.raises(ValueError, match="rule odd must choose places in 3 segments: "):
        choose_room(sequence, 2, rule=Odd(), marks=Watermarks(7, 5), num_free=9)
    assert_same(before, cache.snapshot())


def test_heat_that_is_not_kept_rates_nothing() -> None:
    class Careless(LeastAttended):
        needs_heat = False

    sequence = frames(make_cache(), 3)
    with pytest.raises(ValueError, match="must have needs_heat = True"):
        choose_room(sequence, 2, rule=Careless(), marks=Watermarks(7, 5), num_free=9)
