"""What is looked at is hot, what was looked at long ago cools, what is written anew is cold."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.cache.heat import HALF_LIFE, PageHeat
from edgekv.cache.retention import LeastAttended, Watermarks
from edgekv.cache.segments import segment_dtype
from tests.cache.helpers import add, frames, make_cache, make_room


def by_segment(heat: PageHeat, pages: np.ndarray, *num_pages: int) -> list[float]:
    rows = np.zeros(len(num_pages), segment_dtype(1))
    rows["num_pages"] = num_pages
    return heat.of(rows.tobytes(), rows.size, pages.tobytes()).tolist()


def pages(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def masses(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def all_heat(heat: PageHeat) -> list[float]:
    return by_segment(heat, pages(0, 1, 2, 3), 1, 1, 1, 1)


def test_the_newest_use_counts_whole_and_half_a_half_life_later() -> None:
    heat = PageHeat(np.zeros(4, np.int64))
    heat.add(pages(1), masses(0.5))
    assert all_heat(heat) == [0, 0.5, 0, 0]
    for _ in range(HALF_LIFE):
        heat.add(pages(2), masses(0.0))
    assert all_heat(heat) == pytest.approx([0, 0.25, 0, 0])


def test_a_segment_has_the_heat_of_all_its_pages() -> None:
    heat = PageHeat(np.zeros(4, np.int64))
    heat.add(pages(0, 1, 2, 3), masses(1, 2, 4, 8))
    assert by_segment(heat, pages(3, 0, 2), 2, 1) == [9, 4]
    assert by_segment(heat, pages()) == []


def test_old_popularity_fades_under_new() -> None:
    heat = PageHeat(np.zeros(4, np.int64))
    for _ in range(50):
        heat.add(pages(0), masses(1.0))
    for _ in range(3 * HALF_LIFE):
        heat.add(pages(1), masses(1.0))
    assert by_segment(heat, pages(1), 1)[0] > 5 * by_segment(heat, pages(0), 1)[0]


def test_it_never_overflows_and_keeps_its_order() -> None:
    heat = PageHeat(np.zeros(4, np.int64))
    for _ in range(10_000):
        heat.add(pages(0, 1, 2), masses(0.2, 0.5, 0.3))
    found = np.array(all_heat(heat))
    assert np.isfinite(found).all()
    assert found[3] == 0
    np.testing.assert_allclose(found[:3] / found[:3].sum(), [0.2, 0.5, 0.3], rtol=1e-6)


def test_what_is_no_number_counts_nothing() -> None:
    heat = PageHeat(np.zeros(4, np.int64))
    heat.add(pages(0, 1, 2, 3), masses(np.nan, np.inf, -np.inf, 1))
    assert all_heat(heat) == [0, 0, 0, 1]


def test_pages_that_are_written_anew_are_cold() -> None:
    cache = make_cache()
    sequence = frames(cache, 3, num_tokens=4)
    cache.heat.add(sequence.table.page_ids, np.ones(4, np.float32))
    sequence.drop([sequence.segments[1].id])
    add(cache, sequence, "frame", 4, index=3)
    assert sequence.heat().tolist() == [1, 1, 1, 0]


def test_forks_share_the_heat_of_the_pages_they_share() -> None:
    cache = make_cache()
    sequence = frames(cache, 2, num_tokens=4)
    with sequence.fork() as fork:
        cache.heat.add(fork.table.page_ids, masses(0, 1, 2))
        add(cache, fork, "text", 2)
        assert fork.heat().tolist() == [0, 1, 2, 0]
    assert sequence.heat().tolist() == [0, 1, 2]


def test_least_attended_drops_the_coldest_of_the_past() -> None:
    cache = make_cache()
    sequence = frames(cache, 12, num_tokens=4)
    cache.heat.add(sequence.table.page_ids, np.arange(13, 0, -1).astype(np.float32))
    marks = Watermarks(high=13, low=10)
    make_room(sequence, 1, rule=LeastAttended(), marks=marks, num_free=cache.counts.free)
    # The newest three have their grace time, however cold they are.
    assert [s.index for s in sequence.segments] == [-1, 0, 1, 2, 3, 4, 9, 10, 11]


def test_least_attended_is_the_window_while_nobody_asks() -> None:
    cache = make_cache()
    sequence = frames(cache, 12, num_tokens=4)
    marks = Watermarks(high=13, low=10)
    make_room(sequence, 1, rule=LeastAttended(), marks=marks, num_free=cache.counts.free)
    assert [s.index for s in sequence.segments][1:] == list(range(4, 12))
