"""Events from what a cache says of its sequences.

Guarantees: an event holds what was so when it was made; nothing of the cache is changed or kept.
Does not know: records, files.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import Sequence
from edgekv.cache.segments import KINDS as CACHE_KINDS
from edgekv.cache.segments import SYSTEM_CODE, SegmentTable
from edgekv.trace.events import KINDS, Chosen, Held, HeldSegment, Origin, Taken


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
    return Held(at_us, sequence.id, origin, state.next_segment_id, tuple(segments))
