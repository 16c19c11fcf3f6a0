"""The pages of a pool: which are free, who holds the others, and which a running step still reads.

Owns: the free stack, one reference count and one fence count per page.
Guarantees: every page is in exactly one of four states and the counts of the states sum to the pool;
    an operation that fails changes nothing; a page released while a step in flight names it is not
    handed out before that step ends.
Does not know: what a page holds, sequences, segments, devices. Not safe for use from two threads.

States: *live* (held at least once), *in flight* (held by nobody, but named by a step that has not
ended), *free*, and *cached* (held by nobody, kept for reuse by content: always 0 in this version).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.snapshot import AllocatorSnapshot, PageCounts, frozen
from edgekv.errors import CacheError, OutOfPagesError

Pages = NDArray[np.int32]  # (n,) page ids


class PageAllocator:
    """Hands out pages by number, in batches, with reference counts and fenced frees."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool needs at least 1 page, got {num_pages}")
        self.num_pages = num_pages
        # (num_pages,) a stack of the free pages, its top last
        self._free = np.arange(num_pages - 1, -1, -1, dtype=np.int32)
        self._num_free = num_pages
        self._lowest_free = num_pages
        self._num_in_flight = 0
        self._refs = np.zeros(num_pages, dtype=np.int32)  # (num_pages,) holders of each page
        self._fences = np.zeros(num_pages, dtype=np.int32)  # (num_pages,) uses by steps in flight
        self._steps: dict[int, Pages] = {}
        self._num_steps_begun = 0
        self._marks = np.zeros(num_pages, dtype=np.int32)  # scratch of _check
        self._ramp = np.arange(num_pages, dtype=np.int32)

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def counts(self) -> PageCounts:
        return PageCounts(
            num_pages=self.num_pages,
            free=self._num_free,
            live=self.num_pages - self._num_free - self._num_in_flight,
            cached=0,
            in_flight=self._num_in_flight,
            peak=self.num_pages - self._lowest_free,
        )

    def allocate(self, num_pages: int) -> Pages:
        """Take ``num_pages`` pages, all or nothing: (num_pages,) int32, each held once.

        Raises OutOfPagesError when fewer are free.
        """
        if num_pages < 0:
            raise ValueError(f"number of pages must not be negative, got {num_pages}")
        if num_pages > self._num_free:
            raise OutOfPagesError(num_pages, self._num_free)
        start = self._num_free - num_pages
        pages = self._free[start : self._num_free][::-1].copy()
        self._refs[pages] = 1
        self._num_free = start
        self._lowest_free = min(self._lowest_free, start)
        return pages

    def retain(self, pages: Pages) -> None:
        """Hold live, distinct ``pages`` (n,) once more."""
        self._check(pages)
        refs = self._refs[pages]
        if pages.size and refs.min() < 1:
            raise CacheError(f"page {pages[refs.argmin()]} is not live and cannot be held again")
        self._refs[pages] = refs + 1

    def release(self, pages: Pages) -> None:
        """Give up one hold on each of the distinct ``pages`` (n,); the last hold frees a page.

        Raises CacheError when a page is held by nobody (a double release).
        """
        self._check(pages)
        refs = self._refs[pages] - 1
        if pages.size and refs.min() < 0:
            raise CacheError(f"page {pages[refs.argmin()]} is released more often than it was held")
        self._refs[pages] = refs
        idle = pages[refs == 0]
        if self._steps and idle.size:
            fenced = self._fences[idle] > 0
            self._num_in_flight += int(np.count_nonzero(fenced))
            idle = idle[~fenced]
        self._push(idle)

    def ref_counts(self, pages: Pages) -> NDArray[np.int32]:
        """Holders of each page: (n,) int32, a copy."""
        self._check(pages)
        return self._refs[pages]

    def begin_step(self, pages: Pages) -> int:
        """Fence live ``pages`` (n,), repeats allowed, until ``end_step`` with the returned token."""
        self._check_range(pages)
        if pages.size and self._refs[pages].min() < 1:
            page = pages[self._refs[pages].argmin()]
            raise CacheError(f"page {page} is not live, a step cannot use it")
        token = self._num_steps_begun
        self._num_steps_begun += 1
        self._steps[token] = pages.copy()
        np.add.at(self._fences, pages, 1)
        return token

    def end_step(self, token: int) -> None:
        """The device no longer touches the step's pages: free those that were released meanwhile."""
        if token not in self._steps:
            raise CacheError(f"step {token} is not in flight")
        pages = self._steps.pop(token)
        np.subtract.at(self._fences, pages, 1)
        idle = pages[(self._fences[pages] == 0) & (self._refs[pages] == 0)]
        if idle.size:
            idle = np.unique(idle)
            self._num_in_flight -= idle.size
            self._push(idle)

    def snapshot(self) -> AllocatorSnapshot:
        """Everything the allocator knows, as read-only copies."""
        return AllocatorSnapshot(
            counts=self.counts,
            free=frozen(self._free[: self._num_free]),
            refs=frozen(self._refs),
            fences=frozen(self._fences),
            steps=tuple(frozen(pages) for pages in self._steps.values()),
        )

    def _push(self, pages: Pages) -> None:
        # Reversed, so that giving back what was just taken leaves the stack as it was.
        end = self._num_free + pages.size
        self._free[self._num_free : end] = pages[::-1]
        self._num_free = end

    def _check_range(self, pages: Pages) -> None:
        if pages.dtype != np.int32 or pages.ndim != 1:
            raise ValueError(f"pages must be int32 (n,), got {pages.dtype} {pages.shape}")
        # Seen as unsigned, a negative id is larger than any pool.
        if pages.size and pages.view(np.uint32).max() >= self.num_pages:
            low, high = pages.min(), pages.max()
            raise ValueError(f"page ids must be 0 to {self.num_pages - 1}, got {low} to {high}")

    def _check(self, pages: Pages) -> None:
        """Reject ids out of range or repeated: with repeats, batched updates would count once."""
        self._check_range(pages)
        ramp = self._ramp[: pages.size]
        if ramp.size < pages.size:
            raise ValueError(
                f"{pages.size} page ids of a pool of {self.num_pages} cannot be distinct"
            )
        self._marks[pages] = ramp
        if not np.array_equal(self._marks[pages], ramp):
            raise ValueError("page ids of one call must be distinct")
