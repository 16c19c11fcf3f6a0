"""What must hold of a cache at every moment, as one pure function over a snapshot.

Owns: the list of invariants.
Guarantees: reads nothing but the snapshot and changes nothing; names the invariant that broke.
Does not know: how the cache got there, what the pages hold.
"""

from __future__ import annotations

import numpy as np

from edgekv.cache.snapshot import AllocatorSnapshot, CacheSnapshot, SequenceSnapshot
from edgekv.cache.table import ID, SHIFT, VALID


class InvariantError(AssertionError):
    """The cache contradicts itself: a bug in edgekv, never a caller's mistake."""


def check(snapshot: CacheSnapshot) -> None:
    """Raise InvariantError unless every invariant holds."""
    check_states(snapshot.allocator)
    check_references(snapshot)
    check_index(snapshot)
    for sequence in snapshot.sequences:
        check_partition(sequence, snapshot.page_size)
        check_positions(sequence, snapshot.shiftable)


def check_states(allocator: AllocatorSnapshot) -> None:
    """Each page is in one state, the counts say how many are in each and sum to the pool."""
    counts, refs, fences = allocator.counts, allocator.refs, allocator.fences
    num_states = counts.free + counts.live + counts.cached + counts.in_flight
    _require(num_states == counts.num_pages == refs.size, f"page counts sum to the pool: {counts}")
    _require(min(refs.min(), fences.min()) >= 0, "no count is negative")
    _require(counts.live == np.count_nonzero(refs), f"live pages are the held ones: {counts}")
    _require(
        counts.cached == np.count_nonzero(allocator.kept & (refs == 0) & (fences == 0)),
        f"cached pages are the kept ones that nobody holds or uses: {counts}",
    )
    _require(
        counts.in_flight == np.count_nonzero((refs == 0) & (fences > 0)),
        f"in-flight pages: {counts}",
    )
    unused = np.flatnonzero((refs == 0) & (fences == 0) & ~allocator.kept)
    _require(
        np.array_equal(np.sort(allocator.free), unused),
        "the free stack holds each unused page once",
    )
    _require(
        counts.live + counts.in_flight <= counts.peak <= counts.num_pages,
        f"peak covers now: {counts}",
    )
    uses = np.zeros_like(fences)
    for pages in allocator.steps:
        uses += np.bincount(pages, minlength=uses.size).astype(np.int32)
    _require(np.array_equal(uses, fences), "fences are the uses by steps in flight")


def check_references(snapshot: CacheSnapshot) -> None:
    """A page's count is the number of table entries, pending appends, reserves and drops that were
    set aside that name it."""
    held = np.zeros_like(snapshot.allocator.refs)
    for sequence in snapshot.sequences:
        table, reserved = sequence.page_table[:, ID], sequence.reserved_pages
        ids = np.concatenate([table, sequence.pending_pages, reserved, sequence.aside_pages])
        if ids.size:
            _require(ids.min() >= 0 and ids.max() < held.size, "page ids lie in the pool")
            uses = np.bincount(ids, minlength=held.size)
            _require(uses.max() == 1, f"sequence {sequence.id} names a page once")
            held += uses.astype(held.dtype)
            _require(
                bool((snapshot.allocator.refs[reserved] == 1).all())
                and not snapshot.allocator.kept[reserved].any(),
                f"sequence {sequence.id} alone holds what it has reserved",
            )
    wrong = np.flatnonzero(held != snapshot.allocator.refs)
    _require(
        wrong.size == 0,
        f"reference counts match the holders: pages {wrong[:5].tolist()} have"
        f" {snapshot.allocator.refs[wrong[:5]].tolist()}, held by {held[wrong[:5]].tolist()}",
    )


def check_index(snapshot: CacheSnapshot) -> None:
    """What can be found is kept, once, behind what can be found; and so are the first segments of
    every sequence that is not private."""
    kept = snapshot.allocator.kept
    owners = np.zeros_like(snapshot.allocator.refs)
    depths: dict[bytes, int] = {}
    for entry in snapshot.entries:
        owners[entry.pages] += 1
        _require(
            entry.depth == 1 + (0 if entry.parent is None else depths.get(entry.parent, -1)),
            "what can be found stands behind what can be found",
        )
        depths[entry.key] = entry.depth
    _require(np.array_equal(owners, kept), "a kept page belongs to one segment that can be found")
    for sequence in snapshot.sequences:
        pages = sequence.found_by
        if pages is None:
            continue
        _require(
            np.array_equal(sequence.page_table[: pages.size, ID], pages),
            f"sequence {sequence.id} begins with the pages it is known by",
        )
        _require(bool(kept[pages].all()), f"sequence {sequence.id} is known by pages that are kept")
        moved = sequence.page_table[:, SHIFT : SHIFT + sequence.next_position.size]
        _require(not moved.any(), f"sequence {sequence.id} is private once something was dropped")


def check_partition(sequence: SequenceSnapshot, page_size: int) -> None:
    """Segments split the pages and the tokens among them, without a rest and without sharing."""
    name, table, segments = f"sequence {sequence.id}", sequence.page_table, sequence.segments
    valid = table[:, VALID]
    num_pages = segments["num_pages"]
    _require(num_pages.sum() == len(table), f"{name}: segments cover all pages")
    _require(
        valid.sum() == segments["num_tokens"].sum() == sequence.num_tokens, f"{name}: tokens add up"
    )
    if not len(table):
        return
    _require(
        valid.min() >= 1 and valid.max() <= page_size,
        f"{name}: a page holds 1 to {page_size} tokens",
    )
    _require(num_pages.min() >= 1, f"{name}: a segment has pages of its own")
    owner = np.repeat(np.arange(segments.size), num_pages)
    in_segment = np.bincount(owner, weights=valid, minlength=segments.size)
    _require(
        np.array_equal(in_segment, segments["num_tokens"]),
        f"{name}: each segment's tokens are in its pages",
    )
    ids = segments["id"]
    _require(bool((ids[1:] > ids[:-1]).all()), f"{name}: segment ids grow")
    # Only a segment's last page is partly filled, or one that had moved when the segment went on.
    moved = (table[:-1, SHIFT:] != table[1:, SHIFT:]).any(axis=1)
    inner = owner[:-1] == owner[1:]
    _require(
        bool((moved | (valid[:-1] == page_size))[inner].all()), f"{name}: no gap inside a segment"
    )


def check_positions(sequence: SequenceSnapshot, shiftable: bool) -> None:
    """Written position + shift = current position, and current positions have no holes."""
    name, table, segments = f"sequence {sequence.id}", sequence.page_table, sequence.segments
    num_axes = sequence.next_position.size
    spans = segments["span"].astype(np.int64)
    ends = np.cumsum(spans, axis=0)
    end = ends[-1] if segments.size else np.zeros(num_axes, dtype=np.int64)
    _require(
        np.array_equal(end, sequence.next_position),
        f"{name}: the next position follows the last segment",
    )
    uniform = segments["uniform"]
    even = (spans == segments["num_tokens"][:, None]).all(axis=1)
    _require(bool((even | ~uniform).all()), f"{name}: uniform segments span their tokens")
    shift, written = table[:, SHIFT : SHIFT + num_axes], table[:, SHIFT + num_axes :]
    starts = np.repeat(ends - spans, segments["num_pages"], axis=0)
    _require(
        np.array_equal(written + shift, starts),
        f"{name}: written position + shift = current position",
    )
    _require(shiftable or not shift.any(), f"{name}: absolute positions never move")


def _require(holds: bool | np.bool_, invariant: str) -> None:
    if not holds:
        raise InvariantError(invariant)
