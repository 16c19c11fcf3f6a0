"""``novelty``: of the past, drop what looks like another frame that stays; the newest stay whole.

InfiniPot-V at the level of frames: redundancy is similarity to what is kept, importance is the norm
of the values, and no question is needed for either.
Owns: nothing. Guarantees: the same segments give the same choice; a frame unlike all others stays
    while there are frames that are alike.
Does not know: where summaries come from (``FrameSummaries``); it is given one vector a frame.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention.thinning import thin_out
from edgekv.cache.segments import SegmentTable


class Novelty:
    """Drops, again and again, the frame with the smallest (1 - cosine to the nearest) * norm * gap.

    The nearest of all kept frames counts, not only of the two beside it: what comes back later is
    held once, and a street that is empty again and again is remembered empty only once.
    The gap that it would leave behind counts so that no stretch of time is forgotten altogether.
    Segments without a summary (text) leave as soon as they are not among the newest.
    """

    name = "novelty"
    needs_summaries = True
    needs_heat = False

    def choose(self, segments: SegmentTable, num_pages: int) -> NDArray[np.int64]:
        """From the past, one after another, the most redundant frame."""
        return thin_out(segments, num_pages, by_look=True, by_gap=True)
