"""The typed segments of one sequence, in order, in one preallocated structured array.

Owns: the mutable list behind what ``segments`` shows.
Guarantees: ids grow and are never used twice in a sequence and its forks' common past; the memory
    stays where it is, so that native calls may write to it.
Does not know: page ids, shifts, the allocator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.segments import SegmentTable, segment_dtype

if TYPE_CHECKING:
    from edgekv.cache.heat import PageHeat
    from edgekv.cache.summaries import FrameSummaries


class SegmentList:
    """Up to ``max_segments`` segments in order."""

    def __init__(self, max_segments: int, num_axes: int) -> None:
        self._rows = np.zeros(max_segments, dtype=segment_dtype(num_axes))
        # (max_segments,) the same rows without fields, which NumPy would move one by one
        self._whole = self._rows.view(f"V{self._rows.itemsize}")
        self._size = 0
        self._next_id = 0

    def __len__(self) -> int:
        return self._size

    @property
    def memory(self) -> NDArray[np.void]:
        """(max_segments,) all rows, used or not, a live view."""
        return self._rows

    @property
    def rows(self) -> NDArray[np.void]:
        """(n,) stored segments, a live view."""
        return self._rows[: self._size]

    @property
    def last(self) -> np.void:
        """The last stored segment, a live view. The list must not be empty."""
        row: np.void = self._rows[self._size - 1]
        return row

    @property
    def next_id(self) -> int:
        """The id that the next segment gets."""
        return self._next_id

    def fill(self, rows: NDArray[np.void], next_id: int) -> None:
        """Hold copies of ``rows`` (n,) and nothing else; ids go on from ``next_id``."""
        self._rows[: rows.size] = rows
        self._size, self._next_id = rows.size, next_id

    def push(self, kind: int, index: int, time_s: float) -> None:
        """Start an empty segment at the end."""
        # In the order of segment_dtype: one assignment costs a fraction of eight.
        self._rows[self._size] = (self._next_id, index, time_s, 0, 0, 0, kind, True)
        self.grow()

    def grow(self) -> None:
        """Count a segment with ``next_id`` that was written behind the last one."""
        self._size += 1
        self._next_id += 1

    def cut(self, size: int) -> None:
        """Keep the first ``size`` segments."""
        self._size = size

    def insert(self, places: NDArray[np.intp], rows: NDArray[np.void]) -> None:
        """Put copies of ``rows`` (k,) in front of the segments at ``places`` (k,), which grow."""
        merged = np.insert(self.rows, places, rows)
        self._rows[: merged.size] = merged
        self._size = merged.size

    def indices_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the segments with these ids stand: (n,). Raises ValueError: unknown, repeated."""
        own = self.rows["id"]
        found = own.searchsorted(ids)  # ids grow along the list
        known = own.take(found, mode="clip") == ids if own.size else np.zeros(ids.size, np.bool_)
        if np.count_nonzero(known) < ids.size:
            raise ValueError(f"no segment {ids[known.argmin()]} in this sequence")
        if len(set(ids.tolist())) < ids.size:
            raise ValueError("segment ids of one call must be distinct")
        return found

    def copy(self) -> SegmentList:
        """The same segments in a list of their own."""
        twin = SegmentList.__new__(SegmentList)
        twin._whole = self._whole.copy()
        twin._rows = twin._whole.view(self._rows.dtype)
        twin._size, twin._next_id = self._size, self._next_id
        return twin

    def table(
        self,
        pages: bytes | None = None,  # int32, of all segments, in order
        known: tuple[FrameSummaries | None, PageHeat | None] = (None, None),  # of pages
    ) -> SegmentTable:
        """All segments as columns."""
        return SegmentTable(self.rows.tobytes(), self._rows.dtype, 0, pages, known)
