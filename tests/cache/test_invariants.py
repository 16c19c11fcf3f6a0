"""The checker must see each kind of damage: a snapshot is damaged in one place at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgekv.cache import CacheSnapshot, InvariantError, check
from tests.cache.helpers import add, frames, make_cache


def healthy() -> CacheSnapshot:
    """Two sequences that share pages, one of them moved, a pending append, a step in flight, and
    a start that can be found, and a reserve."""
    cache = make_cache(16)
    sequence = cache.open()
    add(cache, sequence, "system", 3)
    sequence.keep(b"start")
    for index in range(3):
        add(cache, sequence, "frame", 6, index=index, time_s=index / 2)
    fork = sequence.fork()
    sequence.drop([1])
    add(cache, sequence, "text", 2)
    cache.begin_step([fork.append("text", 2)])
    sequence.reserve(1)
    return cache.snapshot()


def edit(array: np.ndarray, where: Any, value: int) -> np.ndarray:
    twin = array.copy()
    twin[where] += value
    return twin


def in_allocator(name: str, where: Any, value: int) -> Callable[[CacheSnapshot], CacheSnapshot]:
    def damage(s: CacheSnapshot) -> CacheSnapshot:
        changed = edit(getattr(s.allocator, name), where, value)
        return replace(s, allocator=replace(s.allocator, **{name: changed}))

    return damage


def in_counts(**values: int) -> Callable[[CacheSnapshot], CacheSnapshot]:
    def damage(s: CacheSnapshot) -> CacheSnapshot:
        counts = s.allocator.counts
        changed = {name: getattr(counts, name) + value for name, value in values.items()}
        return replace(s, allocator=replace(s.allocator, counts=replace(counts, **changed)))

    return damage


def in_table(where: Any, value: int) -> Callable[[CacheSnapshot], CacheSnapshot]:
    return in_sequence("page_table", where, value)


def in_sequence(name: str, where: Any, value: int) -> Callable[[CacheSnapshot], CacheSnapshot]:
    def damage(s: CacheSnapshot) -> CacheSnapshot:
        first, *rest = s.sequences
        old = getattr(first, name)
        new = old + value if where is None else edit(old, where, value)
        return replace(s, sequences=(replace(first, **{name: new}), *rest))

    return damage


def in_segments(field: str, where: int, value: int) -> Callable[[CacheSnapshot], CacheSnapshot]:
    def damage(s: CacheSnapshot) -> CacheSnapshot:
        first, *rest = s.sequences
        segments = first.segments.copy()
        segments[field][where] += value
        return replace(s, sequences=(replace(first, segments=segments), *rest))

    return damage


def in_kept(page: int) -> Callable[[CacheSnapshot], CacheSnapshot]:
    def damage(s: CacheSnapshot) -> CacheSnapshot:
        kept = s.allocator.kept.copy()
        kept[page] ^= True
        counts, free = s.allocator.counts, s.allocator.free
        if page in free:  # as if it were cached
            counts = replace(counts, free=counts.free - 1, cached=counts.cached + 1)
            free = free[free != page]
        return replace(s, allocator=replace(s.allocator, kept=kept, counts=counts, free=free))

    return damage


def in_entries(**values: Any) -> Callable[[CacheSnapshot], CacheSnapshot]:
    return lambda s: replace(s, entries=(replace(s.entries[0], **values), *s.entries[1:]))


def in_found(which: int, pages: list[int]) -> Callable[[CacheSnapshot], CacheSnapshot]:
    def damage(s: CacheSnapshot) -> CacheSnapshot:
        sequences = list(s.sequences)
        sequences[which] = replace(sequences[which], found_by=np.array(pages, np.int32))
        return replace(s, sequences=tuple(sequences))

    return damage


DAMAGE = {
    "a count too many": (in_counts(free=1), "page counts sum to the pool"),
    "live counted as in flight": (in_counts(live=-1, in_flight=1), "live pages are the held ones"),
    "free counted as in flight": (in_counts(free=-1, in_flight=1), "in-flight pages"),
    "peak below now": (in_counts(peak=-16), "peak covers now"),
    "a reference too many": (in_allocator("refs", 0, 1), "reference counts match the holders"),
    "a reference too few": (in_allocator("refs", 0, -1), "reference counts match the holders"),
    "a negative reference": (in_allocator("refs", 0, -3), "no count is negative"),
    "a used page is free": (in_allocator("free", 0, -9), "the free stack holds each unused page"),
    "a page is free twice": (in_allocator("free", 0, 1), "the free stack holds each unused page"),
    "a fence too many": (in_allocator("fences", 0, 1), "fences are the uses by steps"),
    "a page named twice": (in_table((1, 0), 1), "names a page once"),
    "a page out of the pool": (in_table((0, 0), 99), "page ids lie in the pool"),
    "an empty page": (in_table((0, 1), -3), "tokens add up"),
    "tokens in the wrong segment": (in_table(([0, 1], 1), [1, -1]), "tokens are in its pages"),
    "a page too full": (in_table(([1, 2], 1), [1, -1]), "a page holds 1 to 4 tokens"),
    "a gap in a segment": (in_table(([1, 2], 1), [-1, 1]), "no gap inside a segment"),
    "a shift forgotten": (in_table((1, 2), 6), "written position . shift = current position"),
    "a token too many": (in_sequence("num_tokens", None, 1), "tokens add up"),
    "a position ahead": (in_sequence("next_position", 0, 1), "the next position follows"),
    "a cached page too many": (in_counts(cached=1, free=-1), "cached pages are the kept ones"),
    "a kept page that nothing finds": (in_kept(15), "a kept page belongs to one segment"),
    "a page found that is not kept": (in_kept(0), "a kept page belongs to one segment"),
    "an entry behind nothing": (in_entries(depth=2), "stands behind what can be found"),
    "an entry behind one that was given up": (in_entries(parent=b"?"), "stands behind what can"),
    "a sequence known by other pages": (in_found(1, [1]), "begins with the pages it is known by"),
    "known by pages that are not kept": (in_found(1, [0, 1]), "known by pages that are kept"),
    "known by what stood behind a drop": (in_found(0, [0]), "private once something was dropped"),
    "a page reserved that can be found": (
        lambda s: in_kept(int(s.sequences[0].reserved_pages[0]))(s),
        "alone holds what it has reserved",
    ),
    "a reserve forgotten": (
        lambda s: replace(
            s,
            sequences=(
                replace(s.sequences[0], reserved_pages=np.empty(0, np.int32)),
                *s.sequences[1:],
            ),
        ),
        "reference counts match the holders",
    ),
    "a segment without pages": (in_segments("num_pages", 0, -1), "segments cover all pages"),
    "segments out of order": (in_segments("id", 0, 50), "segment ids grow"),
    "a span of its own": (in_segments("span", 3, 1), "the next position follows"),
}


def test_a_healthy_cache_passes() -> None:
    snapshot = healthy()
    check(snapshot)
    assert snapshot.allocator.counts.cached == 0


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_seen(name: str) -> None:
    damage, message = DAMAGE[name]
    with pytest.raises(InvariantError, match=message):
        check(damage(healthy()))


def test_a_shift_where_positions_are_absolute() -> None:
    with pytest.raises(InvariantError, match="absolute positions never move"):
        check(replace(healthy(), shiftable=False))


def test_a_snapshot_never_changes() -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    snapshot = cache.snapshot()
    sequence.drop([1])
    sequence.close()
    check(snapshot)
    assert snapshot.sequences[0].num_tokens == 15
    for array in (snapshot.allocator.refs, snapshot.sequences[0].page_table):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
