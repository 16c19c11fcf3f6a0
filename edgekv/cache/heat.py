"""How much each page has been looked at, fading with use: for rules that keep what is used.

Owns: one number for every page of the pool, and how fast what was looked at long ago fades.
Guarantees: pages that are written anew are cold; forks share heat as they share pages; nothing
    grows. Does not know: whose attention counts, who chooses by it.

Each *use* (a question, say) makes all earlier ones count a little less, as an operating system ages
the references to its pages. Instead of cooling every page, each use counts a little more than the
one before; only comparisons matter, and all is scaled back long before a number could overflow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.segments import SegmentTable
from edgekv.native.columns import PageNumbers

HALF_LIFE = 8  # uses after which one counts half
_GROWTH = 2 ** (1 / HALF_LIFE)
_LARGEST_GAIN = 2.0**64


class PageHeat:
    """(num_pages,) float64, 0 = cold."""

    def __init__(self, num_pages: int) -> None:
        self._pages = PageNumbers(num_pages)
        self._gain = 1.0
        self._used = False

    def add(
        self,
        pages: NDArray[np.int32],  # (n,) distinct
        mass: NDArray[np.float32],  # (n,) attention that fell on each; what is no number counts 0
    ) -> None:
        """One use: these pages were looked at, all others were not."""
        self._used = True
        self._gain *= _GROWTH
        if self._gain > _LARGEST_GAIN:
            self._pages.numbers /= self._gain
            self._gain = 1.0
        numbers = np.nan_to_num(mass.astype(np.float64), posinf=0.0, neginf=0.0)
        self._pages.numbers[pages] += self._gain * numbers

    def forget(self, pages: NDArray[np.int32]) -> None:
        """Pages (n,) hold something else now."""
        if self._used:  # otherwise all are cold
            self._pages.numbers[pages] = 0

    def of(
        self,
        pages: NDArray[np.int32],  # (n,) of segments, in order
        segments: SegmentTable,  # k; their pages are n
    ) -> NDArray[np.float64]:
        """(k,) heat of segments; the newest use of one page counts 1 at most."""
        return self._pages.of(segments.memory, len(segments), pages, 1 / self._gain)
