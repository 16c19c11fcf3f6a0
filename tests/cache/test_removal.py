"""Dropping segments from anywhere and cutting the end off."""

import numpy as np
import pytest

from edgekv.cache import check
from edgekv.errors import CacheError
from tests.cache.compare import assert_same
from tests.cache.helpers import add, frames, make_cache, shifts, valid

# -- dropping


def test_dropping_moves_what_stands_behind() -> None:
    cache = make_cache()
    sequence = frames(cache, 4)
    kept = sequence.table.page_ids[[0, 3, 4, 7, 8]].tolist()
    sequence.drop([3, 1])
    assert sequence.table.page_ids.tolist() == kept
    assert shifts(sequence) == [0, -6, -6, -12, -12]
    assert [s.position for s in sequence.segments] == [(0,), (3,), (9,)]
    assert sequence.next_position.tolist() == [15]
    assert sequence.num_tokens == 15
    assert add(cache, sequence, "text", 1).tables.position_ids.tolist() == [[15]]


def test_dropping_nothing_changes_nothing() -> None:
    cache = make_cache()
    sequence = frames(cache, 1)
    before = cache.snapshot()
    sequence.drop([])
    assert_same(before, cache.snapshot())


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([9], ValueError, "no segment 9"),
        ([-1], ValueError, "no segment -1"),
        ([1, 9], ValueError, "no segment 9"),
        ([1, 1], ValueError, "must be distinct"),
        ([0], CacheError, "system segments are pinned"),
        ([1, 0], CacheError, "system segments are pinned"),
    ],
)
def test_bad_drops_are_refused(ids: list[int], error: type[Exception], message: str) -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    before = cache.snapshot()
    with pytest.raises(error, match=message):
        sequence.drop(ids)
    assert_same(before, cache.snapshot())


def test_absolute_positions_cannot_be_shifted() -> None:
    cache = make_cache(num_axes=0, shiftable=False)
    sequence = frames(cache, 2)
    before = cache.snapshot()
    with pytest.raises(
        CacheError, match="positions cannot be shifted, so no segment can be dropped"
    ):
        sequence.drop([1])
    assert_same(before, cache.snapshot())
    sequence.truncate(3)
    assert sequence.num_tokens == 3


# -- truncating


@pytest.mark.parametrize("num_tokens", range(15, 26))
def test_text_can_be_cut_anywhere(num_tokens: int) -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    add(cache, sequence, "text", 10)
    free = cache.counts.free
    sequence.truncate(num_tokens)
    assert sequence.num_tokens == num_tokens
    assert sequence.next_position.tolist() == [num_tokens]
    assert cache.counts.free == free + 3 - (num_tokens - 15 + 3) // 4
    check(cache.snapshot())


@pytest.mark.parametrize("num_tokens", [4, 8, 10, 14])
def test_a_frame_leaves_whole_or_not_at_all(num_tokens: int) -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    before = cache.snapshot()
    with pytest.raises(ValueError, match="cannot cut inside frame segment"):
        sequence.truncate(num_tokens)
    assert_same(before, cache.snapshot())


@pytest.mark.parametrize("num_tokens", [0, 3, 9, 15])
def test_cuts_between_segments(num_tokens: int) -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    sequence.truncate(num_tokens)
    assert sequence.num_tokens == num_tokens
    add(cache, sequence, "text", 1)
    check(cache.snapshot())


@pytest.mark.parametrize("num_tokens", [-1, 16])
def test_impossible_cuts_are_refused(num_tokens: int) -> None:
    sequence = frames(make_cache(), 2)
    with pytest.raises(ValueError, match=f"cannot keep {num_tokens} of 15 tokens"):
        sequence.truncate(num_tokens)


def test_text_with_positions_of_its_own_is_not_cut() -> None:
    cache = make_cache()
    sequence = cache.open()
    add(cache, sequence, "text", 4, positions=np.array([[0, 2, 4, 6]]))
    with pytest.raises(ValueError, match="cannot cut inside text segment 0"):
        sequence.truncate(2)
    sequence.truncate(0)
    assert sequence.next_position.tolist() == [0]


def test_a_cut_in_a_shared_page_is_private() -> None:
    cache = make_cache()
    sequence = cache.open()
    add(cache, sequence, "text", 3)
    fork = sequence.fork()
    fork.truncate(1)
    step = add(cache, fork, "text", 1, extend=True)
    assert step.copies[:, 0].tolist() == sequence.table.page_ids.tolist()
    assert valid(sequence) == [3]
