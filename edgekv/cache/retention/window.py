"""``window``: keep the pinned start and the newest, forget the oldest.

The rule of StreamingLLM, over whole segments.
Owns: nothing. Guarantees: what it drops is the oldest prefix, and no longer than needed.
Does not know: what a segment shows or says.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.segments import SegmentTable


class Window:
    """Drops the oldest segments until enough pages are given back."""

    name = "window"
    needs_summaries = False
    needs_heat = False

    def choose(self, segments: SegmentTable, num_pages: int) -> NDArray[np.int64]:
        """The shortest prefix that gives ``num_pages`` pages back."""
        place = 0
        for freed in segments.num_pages.tolist():
            if num_pages <= 0:
                break
            num_pages -= freed
            place += 1
        return np.arange(place)
