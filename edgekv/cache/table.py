"""The page table of one sequence: which pages, in logical order, how full, and how far moved.

Owns: one preallocated int32 array whose first columns are exactly a row of the operator's
    ``page_table``, followed by where each page's segment started when the page was first written.
Guarantees: nothing here allocates in proportion to the stream; removing pages from anywhere is one
    batched move; a page's shift plus the place it was written at is the place it stands at now.
Does not know: reference counts, segments' kinds, what a page holds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ID, VALID, SHIFT = 0, 1, 2  # columns; the shifts take num_axes columns, the written bases the next


class PageTable:
    """Entries ``[0, num_pages)`` are committed; ``stage`` prepares entries behind them."""

    def __init__(self, max_pages: int, num_axes: int) -> None:
        self.max_pages = max_pages
        self.num_axes = num_axes
        self.num_pages = 0
        self._rows = np.zeros((max_pages, 2 + 2 * num_axes), dtype=np.int32)

    @property
    def memory(self) -> NDArray[np.int32]:
        """(max_pages, 2 + 2 * num_axes) all entries, used or not. A live view."""
        return self._rows

    @property
    def rows(self) -> NDArray[np.int32]:
        """(num_pages, 2 + 2 * num_axes): id, valid tokens, shifts, written bases. A live view."""
        return self._rows[: self.num_pages]

    @property
    def page_ids(self) -> NDArray[np.int32]:
        """(num_pages,), a live view."""
        return self._rows[: self.num_pages, ID]

    @property
    def valid(self) -> NDArray[np.int32]:
        """(num_pages,) valid tokens, a live view."""
        return self._rows[: self.num_pages, VALID]

    def stage(
        self,
        pages: NDArray[np.int32],  # (n,)
        num_tokens: int,  # that fill the pages one after another
        page_size: int,
        base: NDArray[np.int32],  # (num_axes,) where their segment starts
    ) -> None:
        """Prepare entries behind the committed ones, with shift 0."""
        rows = self._rows[self.num_pages : self.num_pages + pages.size]
        rows[:, ID] = pages
        rows[:, VALID:] = (page_size, *(0,) * self.num_axes, *base.tolist())
        rows[-1:, VALID] -= pages.size * page_size - num_tokens

    def insert(self, places: NDArray[np.intp], entries: NDArray[np.int32]) -> None:
        """Put ``entries`` (n, columns), as ``rows``, in front of the entries at ``places`` (n,)."""
        merged = np.insert(self.rows, places, entries, axis=0)
        self._rows[: len(merged)] = merged
        self.num_pages = len(merged)

    def place(self, starts: NDArray[np.int32]) -> None:
        """Set every shift so that the segment of each entry starts at ``starts`` (num_pages, R)."""
        shift = slice(SHIFT, SHIFT + self.num_axes)
        self.rows[:, shift] = starts - self.rows[:, SHIFT + self.num_axes :]

    def copy(self) -> PageTable:
        """The committed entries in a table of their own."""
        twin = PageTable.__new__(PageTable)
        twin.max_pages, twin.num_axes, twin.num_pages = (
            self.max_pages,
            self.num_axes,
            self.num_pages,
        )
        twin._rows = np.empty_like(self._rows)
        twin._rows[: self.num_pages] = self.rows
        return twin
