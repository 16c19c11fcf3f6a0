"""Pages that a sequence holds for tokens to come: an input whose length is known beforehand.

Owns: the pages of one sequence's reserve.
Guarantees: a page is in the reserve or in an append that drew it, never in both; a page that a step
    in flight still uses stays in the reserve until that step has ended; a call that raises has
    changed nothing.
Does not know: segments, tokens, positions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.pool import PoolState

_NO_PAGES = np.empty(0, dtype=np.int32)


class Reserve:
    """The pages that one sequence holds beside its table and its pending append."""

    def __init__(self, pool: PoolState) -> None:
        self._pool = pool
        self.pages: NDArray[np.int32] = _NO_PAGES  # (n,) ascending

    def fill(self, num_pages: int) -> NDArray[np.int32]:
        """Take ``num_pages`` more from the pool: (num_pages,). Raises OutOfPagesError."""
        pages = self._pool.allocate(num_pages)
        try:
            self.put_back(pages)
        except BaseException:
            self._pool.allocator.release(pages)
            raise
        return pages

    @property
    def num_drawable(self) -> int:
        """How many pages an append may have now."""
        return int(np.count_nonzero(~self._pool.allocator.is_fenced(self.pages)))

    def draw(self, pages: NDArray[np.int32]) -> None:
        """``pages`` (n,), all drawable, are an append's from now on."""
        if pages.size:
            self.pages = np.setdiff1d(self.pages, pages, assume_unique=True)

    def put_back(self, pages: NDArray[np.int32]) -> None:
        """Hold ``pages`` (n,), which somebody held that does no longer."""
        if pages.size:
            self.pages = np.sort(np.concatenate([self.pages, pages]))

    def empty(self) -> NDArray[np.int32]:
        """Give every page back to the pool: (n,) which."""
        pages, self.pages = self.pages, _NO_PAGES
        if pages.size:
            self._pool.allocator.release(pages)
        return pages
