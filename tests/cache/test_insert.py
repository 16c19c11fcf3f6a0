"""What was dropped comes back where it stood. Random games are in test_machine; here are the
edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from edgekv.cache import PageCache, Sequence, SequenceState, check
from edgekv.errors import CacheError, ContextError, OutOfPagesError
from tests.cache.compare import assert_same
from tests.cache.helpers import add, frames, make_cache, shifts


def part(sequence: Sequence, *ids: int) -> SequenceState:
    """The segments with these ids as a sequence of their own would hold them."""
    state = sequence.export_state()
    chosen = np.isin(state.segments["id"], ids)
    pages = np.repeat(chosen, state.segments["num_pages"])
    rows = state.segments[chosen]
    starts = np.repeat(np.cumsum(rows["span"], axis=0) - rows["span"], rows["num_pages"], axis=0)
    written = state.written[pages]
    return SequenceState(
        state.valid[pages], starts.astype(np.int32) - written, written, rows, state.next_segment_id
    )


def placed(sequence: Sequence) -> list[tuple[int, int]]:
    return [(segment.id, segment.position[0]) for segment in sequence.segments]


def test_an_insert_undoes_a_drop() -> None:
    cache = make_cache()
    sequence = frames(cache, 5)
    before, kept = sequence.snapshot(), part(sequence, 2, 4)
    sequence.drop([2, 4])
    pages = sequence.insert(kept)
    after = sequence.snapshot()
    assert after.segments.tobytes() == before.segments.tobytes()
    assert after.page_table[:, 1:].tolist() == before.page_table[:, 1:].tolist()
    assert after.next_position.tolist() == before.next_position.tolist()
    assert cache.counters.inserted_segments == 2
    assert pages.tolist() == after.page_table[[3, 4, 7, 8], 0].tolist()
    check(cache.snapshot())


def test_old_frames_come_back_in_front_of_the_window() -> None:
    cache = make_cache()
    sequence = frames(cache, 3)
    kept = part(sequence, 1, 2)
    sequence.drop([1, 2])
    for index in range(3, 5):
        add(cache, sequence, "frame", 6, index=index, time_s=index / 2)
    sequence.insert(kept)
    assert placed(sequence) == [(0, 0), (1, 3), (2, 9), (3, 15), (4, 21), (5, 27)]
    assert shifts(sequence) == [0, 0, 0, 0, 0, 0, 0, 12, 12, 12, 12]
    step = add(cache, sequence, "text", 1)
    assert step.tables.position_ids.tolist() == [[33]]
    check(cache.snapshot())


def test_a_frame_may_stand_behind_where_it_was_written() -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    kept = part(sequence, 1)
    sequence.drop([1])
    add(cache, sequence, "frame", 6)
    later = part(sequence, 3)
    sequence.drop([3])
    fork = sequence.fork()
    fork.insert(kept)
    fork.insert(later)
    assert placed(fork) == [(0, 0), (1, 3), (2, 9), (3, 15)]
    assert shifts(fork)[-2:] == [6, 6]
    assert placed(sequence) == [(0, 0), (2, 3)], "the parent is as it was"
    check(cache.snapshot())


Damage = Callable[[SequenceState], SequenceState]


def with_rows(field: str, value: object) -> Damage:
    def damage(state: SequenceState) -> SequenceState:
        rows = state.segments.copy()
        rows[field] = value
        return replace(state, segments=rows)

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (with_rows("id", [2, 1]), "growing ids below 5"),
        (with_rows("id", [1, 1]), "growing ids below 5"),
        (with_rows("id", [1, 5]), "growing ids below 5"),
        (with_rows("id", [-1, 1]), "growing ids below 5"),
        (with_rows("id", [1, 3]), "segment 3 is in this sequence already"),
        (with_rows("kind", 0), "system segments are pinned"),
        (with_rows("num_tokens", 5), "contradicts itself"),
        (with_rows("num_pages", 3), "contradicts itself"),
        (lambda s: replace(s, shifts=s.shifts + 1), "contradicts itself"),
        (lambda s: replace(s, segments=s.segments[:0]), "at least one segment"),
        (
            lambda s: replace(s, shifts=np.tile(s.shifts, 3), written=np.tile(s.written, 3)),
            "count 3 position axes",
        ),
    ],
)
def test_what_cannot_come_back_is_refused(damage: Damage, message: str) -> None:
    cache = make_cache()
    sequence = frames(cache, 4)
    kept = part(sequence, 1, 2)
    sequence.drop([1, 2])
    before = cache.snapshot()
    with pytest.raises(ValueError, match=message):
        sequence.insert(damage(kept))
    assert_same(before, cache.snapshot())


def refused(
    cache: PageCache, sequence: Sequence, kept: SequenceState, error: type[Exception], message: str
) -> None:
    before = cache.snapshot()
    with pytest.raises(error, match=message):
        sequence.insert(kept)
    assert_same(before, cache.snapshot())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_pages": 8}, OutOfPagesError, "need 2 pages, 0 free"),
        ({"max_pages": 8}, ContextError, "need 2 more pages, the sequence holds 8 of at most 8"),
        ({"max_positions": 26}, ContextError, "need position 28, the model's last is 25"),
    ],
)
def test_no_room_changes_nothing(
    options: dict[str, int], error: type[Exception], message: str
) -> None:
    cache = make_cache(**options)
    sequence = frames(cache, 3)
    kept = part(sequence, 1)
    sequence.drop([1])
    add(cache, sequence, "frame", 6)
    add(cache, sequence, "text", 2)
    refused(cache, sequence, kept, error, message)


def test_not_while_an_append_is_pending() -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    kept = part(sequence, 1)
    sequence.drop([1])
    sequence.append("text", 1)
    refused(cache, sequence, kept, CacheError, "append pending")


def test_absolute_positions_never_move() -> None:
    cache = make_cache(num_axes=0, shiftable=False)
    sequence = frames(cache, 2)
    refused(cache, sequence, part(sequence, 1), CacheError, "cannot be shifted")
