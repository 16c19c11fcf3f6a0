"""Events from what a cache says of its sequences, once it can be observed.

Guarantees: an event holds what was so when it was made; nothing of the cache is changed or kept.
Does not know: records, files.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import Append, CrossInput, PageCache, Sequence
from edgekv.cache.segments import KINDS as CACHE_KINDS
from edgekv.cache.segments import SYSTEM_CODE, SegmentTable
from edgekv.errors import CacheError
from edgekv.trace.codec import Header
from edgekv.trace.events import (
    KINDS,
    Changed,
    Chosen,
    Held,
    HeldSegment,
    InputNews,
    Kept,
    Origin,
    Planned,
    Reserved,
    Taken,
)


def header(cache: PageCache, *, began_unix_s: float, run: str, part: int, part_us: int) -> Header:
    """What stands at the start of a part."""
    return Header(
        geometry=cache.geometry,
        num_pages=cache.allocator.num_pages,
        max_pages=cache.max_pages,
        max_positions=cache.max_positions,
        shiftable=cache.shiftable,
        cross=None if cache.cross is None else cache.cross.geometry,
        num_cross_pages=0 if cache.cross is None else cache.cross.counts.num_pages,
        began_unix_s=began_unix_s,
        run=run,
        part=part,
        part_us=part_us,
    )


def check_quiet(cache: PageCache) -> None:
    """Raise CacheError while an append or a step is under way, or an input is being written."""
    busy = any(s.pending is not None or s.has_set_aside for s in cache.sequences)
    if busy or cache.allocator.num_steps:
        raise CacheError("a trace begins between steps, and an append or a step is under way")
    if cache.cross is not None and cache.cross.is_writing:
        raise CacheError("a trace begins between inputs, and an input is being written")


def planned(append: Append, at_us: int, allocation_ns: int) -> Planned:
    """An append that has its pages, which took so long."""
    return Planned(
        at_us,
        append.sequence.id,
        KINDS.index(append.kind),
        append.extend,
        append.num_tokens,
        append.tail_tokens,
        append.copy_page >= 0,
        tuple(append.taken.tolist()),
        append.index,
        append.time_s,
        () if append.uniform else tuple(append.advance.tolist()),
        allocation_ns / 1000,
    )


def taken(sequence: Sequence, at_us: int, pages: tuple[int, ...]) -> Taken:
    """The last segment of a sequence, which was found in ``pages``."""
    table = sequence.segment_table()
    kind, num_tokens = KINDS.index(CACHE_KINDS[table.kinds[-1]]), int(table.num_tokens[-1])
    index, time_s = int(table.index[-1]), float(table.time_s[-1])
    return Taken(at_us, sequence.id, kind, num_tokens, index, time_s, pages)


def chosen(
    sequence: Sequence,
    at_us: int,
    rule: str,
    offer: SegmentTable,
    num_pages: int,
    segment_ids: NDArray[np.int64],
) -> Chosen:
    """What a rule chose, and from what, as far as the sequence does not tell."""
    table = sequence.segment_table()
    is_offered = np.isin(table.ids, offer.ids)
    withheld = table.ids[~is_offered & (table.kinds != SYSTEM_CODE)]
    as_held = np.array_equal(offer.num_pages, table.num_pages[is_offered])
    return Chosen(
        at_us,
        sequence.id,
        rule,
        num_pages,
        tuple(withheld.tolist()),
        () if as_held else tuple(offer.num_pages.tolist()),
        offer.summaries.shape[1],
        tuple(segment_ids.tolist()),
    )


def changed(source: CrossInput, at_us: int, how: InputNews) -> Changed:
    """What became of an input; its size and all of its pages only where they are new."""
    pages = tuple(source.pages.tolist())
    if how == "reserved" or how.startswith("carried"):
        return Changed(at_us, how, source.num_states, pages)
    return Changed(at_us, how, 0, pages[:1])


def carried(cache: PageCache, at_us: int) -> Iterator[Held | Reserved | Kept | Changed]:
    """What a cache holds, between steps and between the inputs that are being written."""
    for sequence in cache.sequences:
        yield held(sequence, at_us, restored=False)
        if len(reserve := sequence.reserved_pages):
            yield Reserved(at_us, sequence.id, "carried", tuple(reserve.tolist()))
    allocator = cache.allocator
    kept = np.flatnonzero(allocator.is_kept(np.arange(allocator.num_pages, dtype=np.int32)))
    if kept.size:
        yield Kept(at_us, -1, tuple(kept.tolist()))
    for source in () if cache.cross is None else cache.cross.inputs:
        yield changed(source, at_us, "carried held" if source.num_holders else "carried cached")


def held(sequence: Sequence, at_us: int, *, restored: bool) -> Held:
    """What a sequence holds now."""
    state, pages, stop = sequence.export_state(), sequence.table.page_ids, 0
    segments = []
    for row in state.segments:
        start, stop = stop, stop + int(row["num_pages"])
        kind = KINDS.index(CACHE_KINDS[row["kind"]])
        segments.append(
            HeldSegment(
                int(row["id"]),
                kind,
                int(row["num_tokens"]),
                int(row["index"]),
                float(row["time_s"]),
                pages=tuple(pages[start:stop].tolist()),
                valid=tuple(state.valid[start:stop].tolist()),
                written=tuple(state.written[start:stop].ravel().tolist()),
                span=tuple(row["span"].tolist()),
                uniform=bool(row["uniform"]),
            )
        )
    origin: Origin = "restored" if restored else "carried"
    return Held(
        at_us, sequence.id, origin, sequence.purpose, state.next_segment_id, tuple(segments)
    )
