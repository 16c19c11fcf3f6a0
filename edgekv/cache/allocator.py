"""The pages of a pool: which are free, who holds the others, and which a running step still reads.

Owns: the free stack, one reference count, one fence count and one kept mark per page.
Guarantees: every page is in exactly one of four states and the counts of the states sum to the
    pool; an operation that fails changes nothing; a page released while a step in flight names it
    is not handed out before that step ends; a kept page is not written by anyone, and not handed
    out before it was forgotten.
Does not know: what a page holds, sequences, segments, devices. Not safe for use from two threads.

States: *live* (held at least once), *in flight* (held by nobody, but named by a step that has not
ended), *cached* (neither, but kept for whoever asks for what it holds) and *free*.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        # Kept as intp because NumPy indexes by it several times faster than by int32.
        self._free = np.arange(num_pages, dtype=np.intp)  # (num_pages,) a stack from _top on
        self._top = 0
        self._peak = 0
        self._num_in_flight = 0
        self._num_cached = 0
        self._refs = np.zeros(num_pages, dtype=np.int32)  # (num_pages,) holders of each page
        self._fences = np.zeros(num_pages, dtype=np.int32)  # (num_pages,) uses by steps in flight
        self._kept = np.zeros(num_pages, dtype=np.bool_)  # (num_pages,)
        self._steps: dict[int, list[NDArray[np.intp]]] = {}
        self._num_steps_begun = 0
        self._marks = np.zeros(num_pages, dtype=np.intp)  # scratch of _index
        self._ramp = np.arange(num_pages, dtype=np.intp)

    @property
    def num_free(self) -> int:
        return self.num_pages - self._top

    @property
    def num_cached(self) -> int:
        return self._num_cached

    @property
    def num_available(self) -> int:
        """Pages that an allocation can have: free ones, and cached ones given up for it."""
        return self.num_pages - self._top + self._num_cached

    @property
    def num_steps(self) -> int:
        """Steps in flight."""
        return len(self._steps)

    @property
    def counts(self) -> PageCounts:
        return PageCounts(
            num_pages=self.num_pages,
            free=self.num_free,
            live=self._top - self._num_in_flight - self._num_cached,
            cached=self._num_cached,
            in_flight=self._num_in_flight,
            peak=self._peak,
        )

    def allocate(self, num_pages: int) -> Pages:
        """Take ``num_pages`` pages, all or nothing: (num_pages,) int32, each held once.

        Raises OutOfPagesError when fewer are free: cached ones must be forgotten first.
        """
        if num_pages < 0:
            raise ValueError(f"number of pages must not be negative, got {num_pages}")
        top = self._top + num_pages
        if top > self.num_pages:
            raise OutOfPagesError(num_pages, self.num_free)
        index = self._free[self._top : top]
        self._refs[index] = 1
        self._top = top
        self._note_peak()
        return index.astype(np.int32)

    def retain(self, pages: Pages) -> None:
        """Hold live, distinct ``pages`` (n,) once more."""
        index = self._index(pages)
        refs = self._live_refs(index)
        self._refs[index] = refs + 1

    def keep(self, pages: Pages) -> None:
        """Mark live, distinct ``pages`` (n,): their last release leaves them cached, not free."""
        index = self._index(pages)
        self._live_refs(index)
        self._kept[index] = True

    def is_kept(self, pages: Pages) -> NDArray[np.bool_]:
        """Which of the distinct ``pages`` are kept: (n,), a copy."""
        return self._kept[self._index(pages)]

    def cached_pages(self) -> Pages:
        """(num_cached,) the cached pages."""
        idle = (self._refs == 0) & (self._fences == 0)
        return np.flatnonzero(self._kept & idle).astype(np.int32)

    def hold(self, pages: Pages) -> None:
        """Hold kept, distinct ``pages`` (n,) once more, whether or not anybody holds them now.

        Raises CacheError when one is not kept.
        """
        index = self._index(pages)
        if not self._kept[index].all():
            raise CacheError(f"page {index[self._kept[index].argmin()]} is not kept")
        refs = self._refs[index]
        idle = index[refs == 0]
        num_fenced = int(np.count_nonzero(self._fences[idle]))
        self._num_in_flight -= num_fenced
        self._num_cached -= idle.size - num_fenced
        self._refs[index] = refs + 1
        self._note_peak()

    def forget(self, pages: Pages) -> None:
        """Undo ``keep`` of distinct ``pages`` (n,): those that are cached become free."""
        index = self._index(pages)
        if not self._kept[index].all():
            raise CacheError(f"page {index[self._kept[index].argmin()]} is not kept")
        self._kept[index] = False
        idle = index[(self._refs[index] == 0) & (self._fences[index] == 0)]
        self._num_cached -= idle.size
        self._push(idle)

    def release(self, pages: Pages) -> None:
        """Give up one hold on each of the distinct ``pages`` (n,); the last hold frees a page, or
        leaves it cached if it is kept.

        Raises CacheError when a page is held by nobody (a double release).
        """
        index = self._index(pages)
        refs = self._live_refs(index) - 1
        self._refs[index] = refs
        idle = index[refs == 0] if np.count_nonzero(refs) else index
        if self._steps:
            fenced = self._fences[idle] > 0
            self._num_in_flight += int(np.count_nonzero(fenced))
            idle = idle[~fenced]
        self._retire(idle)

    def ref_counts(self, pages: Pages) -> NDArray[np.int32]:
        """Holders of each of the distinct ``pages``: (n,) int32, a copy."""
        return self._refs[self._index(pages)]

    def is_writable(self, page: int) -> bool:
        """Whether one holder alone has the page, it is not kept, and no step in flight reads or
        writes it."""
        return bool(self._refs[page] == 1 and self._fences[page] == 0 and not self._kept[page])

    def is_fenced(self, pages: Pages) -> NDArray[np.bool_]:
        """Which of the distinct ``pages`` a step in flight reads or writes: (n,)."""
        fenced: NDArray[np.bool_] = self._fences[self._index(pages)] > 0
        return fenced

    def begin_step(self, rows: Iterable[Pages]) -> int:
        """Fence the live pages of ``rows`` until ``end_step`` gets the returned token.

        Pages are distinct within a row (n,); rows may share pages.
        """
        indices = [self._index(pages) for pages in rows]
        for index in indices:
            self._live_refs(index)
        for index in indices:
            self._fences[index] += 1
        token = self._num_steps_begun
        self._num_steps_begun += 1
        self._steps[token] = indices
        return token

    def end_step(self, token: int) -> None:
        """The device no longer touches the step's pages: free those released meanwhile."""
        if token not in self._steps:
            raise CacheError(f"step {token} is not in flight")
        indices = self._steps.pop(token)
        for index in indices:
            self._fences[index] -= 1
        if not self._num_in_flight:
            return
        touched = np.concatenate(indices)
        idle = touched[(self._fences[touched] == 0) & (self._refs[touched] == 0)]
        idle = np.unique(idle)
        self._num_in_flight -= idle.size
        self._retire(idle)

    def snapshot(self) -> AllocatorSnapshot:
        """Everything the allocator knows, as read-only copies."""
        return AllocatorSnapshot(
            counts=self.counts,
            free=frozen(self._free[self._top :].astype(np.int32)),
            refs=frozen(self._refs),
            fences=frozen(self._fences),
            kept=frozen(self._kept),
            steps=tuple(
                frozen(row.astype(np.int32)) for rows in self._steps.values() for row in rows
            ),
        )

    def _note_peak(self) -> None:
        num_used = self._top - self._num_cached
        if num_used > self._peak:
            self._peak = num_used

    def _retire(self, index: NDArray[np.intp]) -> None:
        """Nobody holds or uses the pages any more: cached if they are kept, free otherwise."""
        kept = self._kept[index]
        num_kept = int(np.count_nonzero(kept))
        self._num_cached += num_kept
        self._push(index[~kept] if num_kept else index)

    def _push(self, index: NDArray[np.intp]) -> None:
        self._free[self._top - index.size : self._top] = index
        self._top -= index.size

    def _index(self, pages: Pages) -> NDArray[np.intp]:
        """``pages`` to index with. Rejects ids out of range, and repeats: they would count once."""
        if pages.dtype != np.int32 or pages.ndim != 1:
            raise ValueError(f"pages must be int32 (n,), got {pages.dtype} {pages.shape}")
        if pages.size > self.num_pages:
            raise ValueError(
                f"{pages.size} ids of a pool of {self.num_pages} pages cannot be distinct"
            )
        # Seen as unsigned, a negative id is larger than any pool.
        index = pages.view(np.uint32).astype(np.intp)
        ramp = self._ramp[: index.size]
        try:
            self._marks[index] = ramp
        except IndexError:
            low, high = pages.min(), pages.max()
            raise ValueError(
                f"page ids must be 0 to {self.num_pages - 1}, got {low} to {high}"
            ) from None
        if self._marks[index].tobytes() != ramp.tobytes():
            raise ValueError("page ids of one call must be distinct")
        return index

    def _live_refs(self, index: NDArray[np.intp]) -> NDArray[np.int32]:
        """Holders of each page: (n,) int32. Raises CacheError when one has none."""
        refs = self._refs[index]
        if np.count_nonzero(refs) < refs.size:
            raise CacheError(f"page {index[refs.argmin()]} is held by nobody")
        return refs
