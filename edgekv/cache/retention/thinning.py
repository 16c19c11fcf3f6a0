"""What ``uniform`` and ``novelty`` share: the newest stay whole, the past loses one after another.

Owns: how much counts as the newest, the gaps between what is left, and the loop.
Guarantees: enough is given back if the segments have it; the newest quarter leaves only when the
    past is not enough, the oldest first.
Does not know: what makes a segment worth keeping; it is given scores.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention.window import Window
from edgekv.cache.segments import SegmentTable

_RECENT_SHARE = 4  # one quarter of the segments, the newest, is kept whole
_ENDLESS = 1e6


class Gaps:
    """How far apart the neighbours of each segment stand, while segments leave one by one.

    Counted in segments of the stream, which ids number, so frames without a time count like any.
    The first segment has no neighbour before it: its gap is as good as endless.
    """

    def __init__(self, ids: NDArray[np.int64]) -> None:
        n = len(ids)
        # Lists, as they are read one number at a time.
        self._ids: list[int] = ids.tolist()
        self._before, self._after = list(range(-1, n - 1)), list(range(1, n + 1))
        self.widths = np.full(n, _ENDLESS)  # (n,)
        self.widths[1:-1] = ids[2:] - ids[:-2]

    def close_up(self, place: int) -> None:
        """``place`` leaves: the gaps of the segments beside it are wider now."""
        n, left, right = len(self._ids), self._before[place], self._after[place]
        if left >= 0:
            self._after[left] = right
        if right < n:
            self._before[right] = left
        for i in (left, right):
            if 0 <= i < n:
                before, after = self._before[i], self._after[i]
                inside = before >= 0 and after < n
                self.widths[i] = self._ids[after] - self._ids[before] if inside else _ENDLESS


def num_recent(num_segments: int) -> int:
    """How many of the newest segments stay whole."""
    return -(-num_segments // _RECENT_SHARE)


def thin_out(
    segments: SegmentTable,
    num_pages: int,
    scores: NDArray[np.float64],  # (n,)
    forget: Callable[[int], None],
) -> NDArray[np.int64]:
    """(k,) ascending indices: from the past leaves what scores lowest (of equals the oldest) until
    ``num_pages`` are given back. ``forget(i)`` is called after each and may change ``scores``, none
    of which is NaN."""
    num_past = len(segments) - num_recent(len(segments))
    able = segments.num_pages > 0  # pages that forks hold too come free only with the forks
    able[num_past:] = False
    gone = np.zeros(len(segments), dtype=np.bool_)
    missing, num_able = num_pages, np.count_nonzero(able)
    while missing > 0 and num_able:
        lowest = int(np.where(able, scores, np.inf).argmin())
        if not able[lowest]:  # all that are able have endless scores
            lowest = int(able.argmax())
        able[lowest], gone[lowest] = False, True
        num_able -= 1
        missing -= int(segments.num_pages[lowest])
        forget(lowest)
    if missing > 0:
        left = np.flatnonzero(~gone)
        gone[left[Window().choose(segments.take(left), missing)]] = True
    return np.flatnonzero(gone)
