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
        self._ids = ids
        self._before, self._after = np.arange(-1, n - 1), np.arange(1, n + 1)
        self.widths = np.full(n, _ENDLESS)  # (n,)
        self.widths[1:-1] = ids[2:] - ids[:-2]

    def close_up(self, place: int) -> NDArray[np.intp]:
        """``place`` leaves: (0 to 2,) the segments beside it, whose gaps are wider now."""
        n, left, right = len(self._ids), int(self._before[place]), int(self._after[place])
        if left >= 0:
            self._after[left] = right
        if right < n:
            self._before[right] = left
        beside = [i for i in (left, right) if 0 <= i < n]
        for i in beside:
            before, after = int(self._before[i]), int(self._after[i])
            if before >= 0 and after < n:
                self.widths[i] = self._ids[after] - self._ids[before]
            else:
                self.widths[i] = _ENDLESS
        return np.array(beside, dtype=np.intp)


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
    ``num_pages`` are given back. ``forget(i)`` is called after each and may change ``scores``."""
    num_past = len(segments) - num_recent(len(segments))
    able = segments.num_pages > 0  # pages that forks hold too come free only with the forks
    able[num_past:] = False
    gone = np.zeros(len(segments), dtype=np.bool_)
    missing = num_pages
    while missing > 0 and able.any():
        candidates = np.flatnonzero(able)
        lowest = int(candidates[scores[candidates].argmin()])
        able[lowest], gone[lowest] = False, True
        missing -= int(segments.num_pages[lowest])
        forget(lowest)
    left = np.flatnonzero(~gone)
    gone[left[Window().choose(segments.take(left), missing)]] = True
    return np.flatnonzero(gone)
