"""What is set aside has left, and may yet be where it was; the machine plays it among all else."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count

import numpy as np
import pytest

from edgekv.cache import PageCache, Sequence, check
from edgekv.errors import CacheError, OutOfPagesError
from edgekv.native import layout as native_layout
from edgekv.native.memory import address
from tests.cache.compare import assert_same, assert_same_held
from tests.cache.helpers import add, frames, make_cache, shifts


def ids(*segments: int) -> np.ndarray:
    return np.array(segments, np.int64)


@pytest.fixture
def cache() -> PageCache:
    return make_cache()


@pytest.fixture
def sequence(cache: PageCache) -> Sequence:
    return frames(cache, 4)


def test_pages_are_held_until_they_are_let_go(cache: PageCache, sequence: Sequence) -> None:
    live = cache.counts.live
    sequence.set_aside(ids(1, 3))
    assert [segment.index for segment in sequence.segments[1:]] == [1, 3]
    assert shifts(sequence) == [0, -6, -6, -12, -12]
    assert sequence.has_set_aside
    assert cache.counts.live == live
    check(cache.snapshot())
    sequence.let_go()
    assert not sequence.has_set_aside
    assert cache.counts.live == live - 4
    check(cache.snapshot())


@pytest.mark.parametrize("place", range(9))
def test_without_memory_nothing_is_set_aside(
    cache: PageCache, sequence: Sequence, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    calls = count()

    def failing(array: np.ndarray) -> int:
        if next(calls) == place:
            raise MemoryError
        return address(array)

    before = cache.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(native_layout, "address", failing)
        with pytest.raises(MemoryError) if place < 8 else nullcontext():
            sequence.set_aside(ids(1, 3))
    sequence.put_back()
    assert_same(before, cache.snapshot())
    sequence.set_aside(ids(1, 3))
    sequence.put_back()
    assert_same(before, cache.snapshot())


def test_put_back_undoes_it_and_what_came_since(cache: PageCache, sequence: Sequence) -> None:
    before = cache.snapshot()
    sequence.set_aside(ids(2))
    add(cache, sequence, "text", 3)
    sequence.append("frame", 6)
    sequence.put_back()
    assert_same_held(before, cache.snapshot())
    assert sequence.next_segment_id == 6, "ids are never given twice"


def test_a_context_that_is_put_back_can_be_found_again(cache: PageCache) -> None:
    sequence = cache.open()
    add(cache, sequence, "frame", 6)
    assert sequence.keep(b"frame")
    sequence.set_aside(ids(0))
    assert not sequence.is_findable
    sequence.put_back()
    assert sequence.is_findable
    with cache.open() as other:
        assert other.find("frame", b"frame") is not None


def test_nothing_else_leaves_meanwhile(cache: PageCache, sequence: Sequence) -> None:
    state = sequence.export_state()
    sequence.set_aside(ids(1))
    before = cache.snapshot()
    for leave in (
        lambda: sequence.drop([2]),
        lambda: sequence.set_aside(ids(2)),
        lambda: sequence.insert(state),
    ):
        with pytest.raises(CacheError, match="let it go or put it back first"):
            leave()
    with pytest.raises(ValueError, match="cannot keep"):
        sequence.truncate(3)
    assert_same(before, cache.snapshot())


@pytest.mark.parametrize("wrong", [ids(9), ids(1, 1), ids(1, 0)])
def test_what_cannot_leave_sets_nothing_aside(
    cache: PageCache, sequence: Sequence, wrong: np.ndarray
) -> None:
    before = cache.snapshot()
    with pytest.raises((ValueError, CacheError)):
        sequence.set_aside(wrong)
    assert not sequence.has_set_aside
    assert_same(before, cache.snapshot())
    sequence.let_go()
    sequence.put_back()
    assert_same(before, cache.snapshot())


def test_others_cannot_have_the_pages(cache: PageCache, sequence: Sequence) -> None:
    sequence.set_aside(ids(1, 2, 3, 4))
    other = cache.open()
    with pytest.raises(OutOfPagesError):
        other.append("text", 4 * (cache.counts.free + 1))


def test_what_was_there_does_not_grow_meanwhile(cache: PageCache, sequence: Sequence) -> None:
    """Its last page might be replaced by a copy, and then there was no way back."""
    add(cache, sequence, "text", 3)
    with sequence.fork():
        before = cache.snapshot()
        sequence.set_aside(ids(1))
        with pytest.raises(CacheError, match="cannot grow"):
            sequence.append("text", 1, extend=True)
        add(cache, sequence, "text", 3)
        add(cache, sequence, "text", 3, extend=True)
        sequence.put_back()
        assert_same_held(before, cache.snapshot())
        check(cache.snapshot())


def test_closing_lets_go(cache: PageCache, sequence: Sequence) -> None:
    sequence.set_aside(ids(1))
    sequence.close()
    assert cache.counts.free == cache.counts.num_pages
