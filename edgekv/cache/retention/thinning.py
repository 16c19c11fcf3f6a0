"""What rules about the past share: the newest stay whole, the past loses one after another.

Owns: how much counts as the newest, what a rating can be made of.
Guarantees: enough is given back if the segments have it; the newest quarter leaves only when the
    past is not enough, the oldest first.
Does not know: what makes a segment worth keeping; it is given the factors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention.window import Window
from edgekv.cache.segments import SegmentTable
from edgekv.native.thinning import UnreadError, choose

_RECENT_SHARE = 4  # one quarter of the segments, rounded up, the newest, is kept whole


def thin_out(
    segments: SegmentTable,
    num_pages: int,
    *,
    worth: NDArray[np.float64] | None = None,  # (n,)
    by_heat: bool = False,
    by_look: bool = False,
    by_gap: bool = False,
) -> NDArray[np.int64]:
    """(k,) ascending indices: from the past leaves what is rated lowest, of equals the oldest,
    until ``num_pages`` are given back. After each, the others are rated anew.

    A rating is the product of what is asked for: what the segment is ``worth``; its heat; of its
    summary the norm and the distance (1 - cosine) to the nearest other one that is still there,
    before all others where it has none (NaN or 0); and the gap that it leaves behind, counted in
    segments of the stream, which ids number, so that frames without a time count like any. The
    first segment has no neighbour before it: its gap is as good as endless.
    """
    size, heat, looks = segments.num_all - segments.first, None, None
    if by_heat and (heat := segments.heat_of_pages) is None:
        if not segments.has_heat:
            raise ValueError("a rule that thins out by heat must have needs_heat = True")
        worth = segments.heat if worth is None else worth * segments.heat
    if by_look:
        looks = segments.rows_of_pages or segments.summaries
    num_past = size - -(-size // _RECENT_SHARE)
    try:
        gone, missing = choose(segments, num_past, num_pages, worth, heat, looks, by_gap)
    except UnreadError:  # the pages are not in memory
        looks = segments.summaries
        gone, missing = choose(segments, num_past, num_pages, worth, heat, looks, by_gap)
    if not missing:
        return gone
    left = np.delete(np.arange(size), gone)
    return np.union1d(gone, left[Window().choose(segments.take(left), missing)])
