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
    """Drops whatever leaves the smallest gap behind."""

    name = "uniform"
    needs_summaries = False
    needs_heat = False

    def choose(self, segments: SegmentTable, num_pages: int) -> NDArray[np.int64]:
        """From the past, one after another, the segment whose neighbours stand closest."""
        return thin_out(segments, num_pages, by_gap=True)
