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

from edgekv.cache.retention.thinning import Gaps, thin_out
from edgekv.cache.segments import SegmentTable


class Novelty:
    """Drops, again and again, the frame with the smallest (1 - cosine to the nearest) * norm * gap.

    The nearest of all kept frames counts, not only of the two beside it: what comes back later is
    held once, and a street that is empty again and again is remembered empty only once.
    The gap that it would leave behind counts so that no stretch of time is forgotten altogether.
    Segments without a summary (text) leave as soon as they are not among the newest.
    """

    needs_summaries = True
    needs_heat = False

    def choose(self, segments: SegmentTable, num_pages: int) -> NDArray[np.int64]:
        """From the past, one after another, the most redundant frame."""
        away, norms = _distances(segments.summaries)
        nearest: list[int] = away.argmin(axis=1).tolist()
        apart: list[float] = away.min(axis=1).tolist()
        here, gaps = [True] * len(segments), Gaps(segments.ids)

        def rate(place: int) -> float:
            norm = norms[place]
            if not norm:  # no summary: before all others
                return -1.0
            if not here[nearest[place]]:
                nearest[place] = int(away[place].argmin())
                apart[place] = float(away[place, nearest[place]])
            return max(apart[place], 0.0) * norm * gaps.widths[place]

        def forget(place: int) -> None:
            here[place] = False
            away[:, place] = np.inf
            gaps.close_up(place)

        return thin_out(segments, num_pages, rate, forget)


def _distances(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], list[float]]:
    """(n, n) how far each of ``vectors`` (n, width) is from each other one, and the n norms.

    Nothing is its own neighbour, and what has no summary, NaN or 0, is nobody's; its norm is 0.
    """
    away: NDArray[np.float32] = vectors @ vectors.T
    norms = np.sqrt(away.diagonal())
    known = norms > 0
    all_known = np.count_nonzero(known) == len(known)
    scale = norms if all_known else np.where(known, norms, 1)
    away /= scale[:, None] * scale
    np.subtract(1, away, out=away)
    away.ravel()[:: len(away) + 1] = np.inf
    if not all_known:
        away[:, ~known] = np.inf
        away[~known] = norms[~known] = 0
    return away, norms.tolist()
