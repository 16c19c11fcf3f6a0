"""The pages of a pool: which are free, who holds the others, and which a running step still reads.

Owns: the states of all pages (kept in a ``Ledger``, natively) and the steps in flight.
Guarantees: every page is in exactly one of four states and the counts of the states sum to the
    pool; an operation that fails changes nothing; a page released while a step in flight names it
    is not handed out before that step ends; a kept page is not written by anyone, and not handed
    out before it was forgotten.
Does not know: what a page holds, sequences, segments, devices. Not safe for use from two threads.

States: *live* (held at least once), *in flight* (held by nobody, but named by a step that has not
ended), *cached* (neither, but kept for whoever asks for what it holds) and *free*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.snapshot import AllocatorSnapshot, PageCounts, frozen
from edgekv.errors import CacheError, OutOfPagesError
from edgekv.native.ledger import Fenced, Ledger, Pages
from edgekv.uncopied import uncopied

_NOTHING = Fenced(np.empty(0, dtype=np.int32), 0)


@uncopied("its pages are counted once")
class PageAllocator:
    """Hands out pages by number, in batches, with reference counts and fenced frees."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool needs at least 1 page, got {num_pages}")
        self.num_pages = num_pages
        self.ledger = Ledger(num_pages)  # also for native calls that take pages among other things
        self._steps: dict[int, Fenced] = {}  # the pages that a step in flight names
        self._num_steps_begun = 0

    @property
    def num_free(self) -> int:
        return self.num_pages - self.ledger.num_taken

    @property
    def num_cached(self) -> int:
        return self.ledger.num_cached

    @property
    def num_available(self) -> int:
        """Pages that an allocation can have: free ones, and cached ones given up for it."""
        return self.num_free + self.ledger.num_cached

    @property
    def num_steps(self) -> int:
        """Steps in flight."""
        return len(self._steps)

    @property
    def counts(self) -> PageCounts:
        ledger = self.ledger
        num_taken, in_flight, cached = ledger.num_taken, ledger.num_in_flight, ledger.num_cached
        return PageCounts(
            num_pages=self.num_pages,
            free=self.num_pages - num_taken,
            live=num_taken - in_flight - cached,
            cached=cached,
            in_flight=in_flight,
            peak=ledger.peak,
        )

    def allocate(self, num_pages: int) -> Pages:
        """Take ``num_pages`` pages, all or nothing: (num_pages,) int32, each held once.

        Raises OutOfPagesError when fewer are free: cached ones must be forgotten first.
        """
        if num_pages < 0:
            raise ValueError(f"number of pages must not be negative, got {num_pages}")
        if num_pages > self.num_free:
            raise OutOfPagesError(num_pages, self.num_free)
        return self.ledger.take(num_pages)

    def retain(self, pages: Pages) -> None:
        """Hold live, distinct ``pages`` (n,) once more."""
        self.ledger.retain(pages)

    def keep(self, pages: Pages) -> None:
        """Mark live, distinct ``pages`` (n,): their last release leaves them cached, not free."""
        self.ledger.keep(pages)

    def is_kept(self, pages: Pages) -> NDArray[np.bool_]:
        """Which of the ``pages`` are kept: (n,), a copy."""
        return self.ledger.kept[self.ledger.index(pages)]

    def cached_pages(self) -> Pages:
        """(num_cached,) the cached pages."""
        ledger = self.ledger
        idle = (ledger.refs == 0) & (ledger.fences == 0)
        return np.flatnonzero(ledger.kept & idle).astype(np.int32)

    def hold(self, pages: Pages) -> None:
        """Hold kept, distinct ``pages`` (n,) once more, whether or not anybody holds them now.

        Raises CacheError when one is not kept.
        """
        self.ledger.hold(pages)

    def forget(self, pages: Pages) -> None:
        """Undo ``keep`` of distinct ``pages`` (n,): those that are cached become free."""
        self.ledger.forget(pages)

    def release(self, pages: Pages) -> None:
        """Give up one hold on each of the distinct ``pages`` (n,); the last hold frees a page, or
        leaves it cached if it is kept.

        Raises CacheError when a page is held by nobody (a double release).
        """
        self.ledger.release(pages)

    def ref_counts(self, pages: Pages) -> NDArray[np.int32]:
        """Holders of each of the ``pages``: (n,) int32, a copy."""
        return self.ledger.refs[self.ledger.index(pages)]

    def is_fenced(self, pages: Pages) -> NDArray[np.bool_]:
        """Which of the ``pages`` a step in flight reads or writes: (n,)."""
        fenced: NDArray[np.bool_] = self.ledger.fences[self.ledger.index(pages)] > 0
        return fenced

    def begin_step(self, rows: Iterable[Pages]) -> int:
        """Fence the live pages of ``rows`` until ``end_step`` gets the returned token.

        Pages are distinct within a row (n,); rows may share pages.
        """
        listed = list(rows)
        return self.begin_step_by(lambda: self.ledger.fence(listed))

    def begin_step_by(self, fence: Callable[[], Fenced]) -> int:
        """As ``begin_step``, of the pages that ``fence`` has fenced in the ledger."""
        token = self._num_steps_begun
        self._steps[token] = _NOTHING  # so that nothing can fail once the pages are fenced
        try:
            self._steps[token] = fence()
        except BaseException:
            del self._steps[token]
            raise
        self._num_steps_begun += 1
        return token

    def end_step(self, token: int) -> None:
        """The device no longer touches the step's pages: free those released meanwhile."""
        if token not in self._steps:
            raise CacheError(f"step {token} is not in flight")
        self.ledger.unfence(self._steps.pop(token))

    def snapshot(self) -> AllocatorSnapshot:
        """Everything the allocator knows, as read-only copies."""
        ledger = self.ledger
        return AllocatorSnapshot(
            counts=self.counts,
            free=frozen(ledger.free[ledger.num_taken :]),
            refs=frozen(ledger.refs),
            fences=frozen(ledger.fences),
            kept=frozen(ledger.kept),
            steps=tuple(frozen(fenced.pages) for fenced in self._steps.values()),
        )
