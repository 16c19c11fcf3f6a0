"""What pages are measured against: two plain allocators that other runtimes use.

Owns: a contiguous first-fit allocator and an LRU of pages in an ordered dict.
Guarantees: both are written as well as plain Python allows; neither is used outside of benches.
Does not know: the page allocator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict


class FirstFit:
    """Contiguous runs of slots, the lowest that fits; neighbours merge when they come back."""

    def __init__(self, num_slots: int) -> None:
        self._starts = [0]  # free extents, by start
        self._sizes = [num_slots]

    def allocate(self, size: int) -> int | None:
        """The start of a run of ``size`` slots, None when no gap is wide enough."""
        for i, free in enumerate(self._sizes):
            if free >= size:
                start = self._starts[i]
                if free == size:
                    del self._starts[i], self._sizes[i]
                else:
                    self._starts[i] += size
                    self._sizes[i] -= size
                return start
        return None

    def release(self, start: int, size: int) -> None:
        """Give a run back."""
        i = bisect_left(self._starts, start)
        self._starts.insert(i, start)
        self._sizes.insert(i, size)
        if i + 1 < len(self._starts) and start + size == self._starts[i + 1]:
            self._sizes[i] += self._sizes.pop(i + 1)
            del self._starts[i + 1]
        if i and self._starts[i - 1] + self._sizes[i - 1] == start:
            self._sizes[i - 1] += self._sizes.pop(i)
            del self._starts[i]


class OrderedDictLRU:
    """Page ids in an ordered dict, the least recently freed handed out first."""

    def __init__(self, num_pages: int) -> None:
        self._free = OrderedDict((page, None) for page in range(num_pages))
        self._refs: dict[int, int] = {}

    def allocate(self, num_pages: int) -> list[int] | None:
        """Page ids, None when fewer are free."""
        if len(self._free) < num_pages:
            return None
        pages = [self._free.popitem(last=False)[0] for _ in range(num_pages)]
        for page in pages:
            self._refs[page] = 1
        return pages

    def release(self, pages: list[int]) -> None:
        """Give pages back."""
        for page in pages:
            self._refs[page] -= 1
            if not self._refs[page]:
                del self._refs[page]
                self._free[page] = None
