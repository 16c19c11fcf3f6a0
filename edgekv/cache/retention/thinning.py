"""What ``uniform`` and ``novelty`` share: the newest stay whole, the past loses one after another.

Owns: how much counts as the newest, the gaps between what is left, and the loop.
Guarantees: enough is given back if the segments have it; the newest quarter leaves only when the
    past is not enough, the oldest first.
Does not know: what makes a segment worth keeping; it is given a rating.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heapreplace

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention.window import Window
from edgekv.cache.segments import SegmentTable

_RECENT_SHARE = 4  # one quarter of the segments, the newest, is kept whole
_ENDLESS = 1_000_000  # segments


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
        inner = [
            min(after - before, _ENDLESS)
            for before, after in zip(self._ids, self._ids[2:], strict=False)
        ]
        self.widths: list[int] = [_ENDLESS, *inner, _ENDLESS][:n]

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
                gap = self._ids[after] - self._ids[before] if 0 <= before < after < n else _ENDLESS
                self.widths[i] = min(gap, _ENDLESS)


def num_recent(num_segments: int) -> int:
    """How many of the newest segments stay whole."""
    return -(-num_segments // _RECENT_SHARE)


def thin_out(
    segments: SegmentTable,
    num_pages: int,
    rate: Callable[[int], float],
    forget: Callable[[int], None],
) -> NDArray[np.int64]:
    """(k,) ascending indices: from the past leaves what is rated lowest, of equals the oldest,
    until ``num_pages`` are given back. ``forget(i)`` is called after each.

    ``rate(i)`` is never NaN, and never less than before because others have left: it is enough to
    rate anew what comes up as the lowest (lazy greedy selection, Minoux 1978).
    """
    num_past = len(segments) - num_recent(len(segments))
    pages: list[int] = segments.num_pages[:num_past].tolist()
    # Pages that forks hold too come free only with the forks: those cannot be given back.
    waiting = [(rate(i), i) for i in range(num_past) if pages[i]]
    heapify(waiting)
    gone: list[int] = []
    missing = num_pages
    while missing > 0 and waiting:
        rated, lowest = waiting[0]
        rating = rate(lowest)
        if rating > rated:
            heapreplace(waiting, (rating, lowest))
            continue
        heappop(waiting)
        gone.append(lowest)
        missing -= pages[lowest]
        forget(lowest)
    chosen = np.array(sorted(gone), dtype=np.int64)
    if missing <= 0:
        return chosen
    left = np.delete(np.arange(len(segments)), chosen)
    return np.union1d(chosen, left[Window().choose(segments.take(left), missing)])
