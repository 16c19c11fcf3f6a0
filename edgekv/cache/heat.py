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

from edgekv.native.columns import PageNumbers

HALF_LIFE = 8  # uses after which one counts half
_GROWTH = 2 ** (1 / HALF_LIFE)
_LARGEST_GAIN = 2.0**64


class PageHeat:
    """(num_pages,) float64, 0 = cold."""

    def __init__(self, times_taken: NDArray[np.int64]) -> None:  # (num_pages,) of the ledger
        self._pages = PageNumbers(times_taken)
        self._gain = 1.0

    def add(
        self,
        pages: NDArray[np.int32],  # (n,) distinct
        mass: NDArray[np.float32],  # (n,) attention that fell on each; what is no number counts 0
    ) -> None:
        """One use: these pages were looked at, all others were not."""
        self._gain *= _GROWTH
        if self._gain > _LARGEST_GAIN:
            self._pages.numbers /= self._gain
            self._gain = 1.0
        numbers = np.nan_to_num(mass.astype(np.float64), posinf=0.0, neginf=0.0)
        self._pages.add(pages, self._gain * numbers)
        self._pages.factor = 1 / self._gain

    @property
    def numbers(self) -> PageNumbers:
        """The heat of each page; the newest use of one counts 1 at most."""
        return self._pages

    def of(self, segments: bytes, num_segments: int, pages: bytes) -> NDArray[np.float64]:
        """(num_segments,) heat of segments, the sum over their pages. ``segments`` and ``pages`` as
        in ``edgekv.native.columns``."""
        return self._pages.of(segments, num_segments, pages)
