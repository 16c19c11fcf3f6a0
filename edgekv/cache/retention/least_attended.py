"""``least-attended``: of the past, drop what the questions looked at least; the newest stay whole.

Hot and cold by use, as an operating system keeps pages: heat fades (``PageHeat``), so what was
asked about long ago makes room for what is asked about now. New frames have a grace time, in which
nobody may have asked yet: they are among the newest quarter.
Owns: nothing. Guarantees: while nobody asks, the oldest leave first.
Does not know: whose attention counts, or where heat comes from; it is given one number a segment.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention.thinning import thin_out
from edgekv.cache.segments import SegmentTable


class LeastAttended:
    """Drops the coldest segments of the past."""

    name = "least-attended"
    needs_summaries = False
    needs_heat = True

    def choose(self, segments: SegmentTable, num_pages: int) -> NDArray[np.int64]:
        """From the past, one after another, the coldest; of equals the oldest."""
        return thin_out(segments, num_pages, by_heat=True)
