"""A sequence's state leaves one cache and enters another. Random operations on transplanted
sequences are played in test_machine; here are the edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgekv.cache import PageCache, Sequence, SequenceState, check
from edgekv.errors import CacheError, ContextError, OutOfPagesError
from tests.cache.compare import assert_same
from tests.cache.helpers import PAGE_SIZE, add, frames, make_cache, shifts


def streamed(cache: PageCache) -> Sequence:
    """A pinned start, frames that have moved, a text that was continued after it moved."""
    sequence = frames(cache, 4)
    add(cache, sequence, "text", 1)
    sequence.drop([1, 3])
    add(cache, sequence, "text", 2, extend=True)
    return sequence


def other_cache(num_pages: int = 40, **options: Any) -> PageCache:
    """A cache whose free pages have other ids."""
    cache = make_cache(num_pages, **options)
    add(cache, cache.open(), "text", 7 * PAGE_SIZE)
    return cache


def without_ids(sequence: Sequence) -> tuple[object, ...]:
    s = sequence.snapshot()
    return (
        s.num_tokens,
        s.next_position.tolist(),
        s.page_table[:, 1:].tolist(),
        s.segments.tobytes(),
    )


@pytest.mark.parametrize("num_axes", [0, 1, 3])
def test_a_state_continues_in_another_cache(num_axes: int) -> None:
    one, other = make_cache(num_axes=num_axes), other_cache(num_axes=num_axes)
    sequence = streamed(one)
    before = one.snapshot()
    stored = {name: array.copy() for name, array in sequence.export_state().to_arrays().items()}
    twin = other.import_state(SequenceState.from_arrays(stored, max(num_axes, 1)))
    assert_same(before, one.snapshot())
    assert any(shifts(twin))
    assert twin.table.page_ids.tolist() != sequence.table.page_ids.tolist()
    for cache, each in ((one, sequence), (other, twin)):
        check(cache.snapshot())
        add(cache, each, "frame", 5, index=9, time_s=4.5)
        each.drop([2, 5])
        add(cache, each, "answer", 3)
        each.truncate(each.num_tokens - 1)
        check(cache.snapshot())
    assert without_ids(twin) == without_ids(sequence)
    assert twin.segments[-1].id == sequence.segments[-1].id == 7
    twin.close()
    assert other.counts.live == 7


def test_an_empty_sequence_has_a_state_too() -> None:
    sequence = make_cache().open()
    twin = make_cache(1).import_state(sequence.export_state())
    assert (twin.num_pages, twin.num_tokens) == (0, 0)


def test_a_pending_append_is_no_part_of_the_state() -> None:
    cache = make_cache()
    sequence = frames(cache, 1)
    before = without_ids(sequence)
    sequence.append("text", 3)
    assert without_ids(cache.import_state(sequence.export_state())) == before


def test_a_closed_sequence_has_none() -> None:
    sequence = frames(make_cache(), 1)
    sequence.close()
    with pytest.raises(CacheError, match="closed"):
        sequence.export_state()


@pytest.mark.parametrize(
    ("cache", "error", "said"),
    [
        (make_cache(6), OutOfPagesError, "need 7 pages, 6 free"),
        (make_cache(max_pages=6), ContextError, "need 7 pages, a sequence holds at most 6"),
        (make_cache(max_positions=17), ValueError, "positions beyond 17"),
        (make_cache(shiftable=False), ValueError, "absolute positions never move"),
        (make_cache(num_axes=3), ValueError, "counts 1 position axes, this cache 3"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    cache: PageCache, error: type[Exception], said: str
) -> None:
    state = streamed(make_cache()).export_state()
    before = cache.snapshot()
    with pytest.raises(error, match=said):
        cache.import_state(state)
    assert_same(before, cache.snapshot())


def edited(name: str, where: Any, value: int) -> Callable[[SequenceState], SequenceState]:
    def edit(state: SequenceState) -> SequenceState:
        arrays = {key: array.copy() for key, array in state.to_arrays().items()}
        arrays[name][where] += np.array(value, arrays[name].dtype)
        return SequenceState.from_arrays(arrays, 1)

    return edit


@pytest.mark.parametrize(
    "damage",
    [
        edited("page.valid", 0, 1),
        edited("page.valid", 1, -9),
        edited("page.shift", 3, 1),
        edited("page.written", 3, 2**30),
        edited("page.written", 0, -1),
        edited("segment.kind", 1, 9),
        edited("segment.kind", 1, -9),
        edited("segment.num_pages", 1, -2),
        edited("segment.num_pages", [0, 1], 1),
        edited("segment.num_tokens", 0, 1),
        edited("segment.span", 0, -100),
        edited("segment.span", 0, 1),
        edited("segment.id", 1, 5),
        edited("segment.id", 0, -5),
        lambda state: replace(state, next_segment_id=2),
    ],
)
def test_a_state_that_no_sequence_can_be_in_is_refused(
    damage: Callable[[SequenceState], SequenceState],
) -> None:
    cache = other_cache()
    state, before = damage(streamed(make_cache()).export_state()), cache.snapshot()
    with pytest.raises(ValueError, match="saved context"):
        cache.import_state(state)
    assert_same(before, cache.snapshot())


def test_arrays_are_checked_before_they_are_used() -> None:
    arrays = streamed(make_cache()).export_state().to_arrays()
    for name, array in arrays.items():
        with pytest.raises(ValueError, match=f"'{name}' is missing"):
            SequenceState.from_arrays({k: a for k, a in arrays.items() if k != name}, 1)
        with pytest.raises(ValueError, match=f"'{name}' of the saved context must be"):
            SequenceState.from_arrays({**arrays, name: array.astype(np.float32)}, 1)
        with pytest.raises(ValueError, match="of the saved context must be"):
            SequenceState.from_arrays({**arrays, name: array[None]}, 1)
