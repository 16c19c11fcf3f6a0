"""``uniform``: thin out the past evenly, keep the newest quarter whole.

Owns: nothing. Guarantees: in the past, no gap between what is kept is more than twice the mean of
    any two neighbouring ones; the first segment stays as long as it can.
Does not know: what a segment shows or says.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention.thinning import thin_out
from edgekv.cache.segments import SegmentTable


class Uniform:
    """Drops whatever leaves the smallest gap behind. Gaps are counted in segments of the stream,
    which ids number, so frames without a time are thinned out like any others."""

    needs_summaries = False

    def choose(self, segments: SegmentTable, num_pages: int) -> NDArray[np.int64]:
        """From the past, one after another, the segment whose neighbours stand closest."""
        ids, n = segments.ids, len(segments)
        before, after = np.arange(-1, n - 1), np.arange(1, n + 1)  # what stands beside each, now
        gaps = np.full(n, np.inf)
        gaps[1:-1] = ids[2:] - ids[:-2]

        def close_up(place: int) -> None:
            left, right = int(before[place]), int(after[place])
            if right < n:
                before[right] = left
            if left >= 0:
                after[left] = right
            for beside in (left, right):
                if 0 <= beside < n and before[beside] >= 0 and after[beside] < n:
                    gaps[beside] = ids[after[beside]] - ids[before[beside]]

        return thin_out(segments, num_pages, gaps, close_up)
