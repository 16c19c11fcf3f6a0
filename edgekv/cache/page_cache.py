"""The host's side of one model's KV pool: open sequences over it, steps through it, its figures.

Owns: the allocator and the list of open sequences of one pool.
Guarantees: the host's arrays are the only record of where tokens stand; executors are told by
    tables.
Does not know: the pool's memory (executors own it), what runs a step, who is asking.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection

import numpy as np

from edgekv.cache.allocator import PageAllocator
from edgekv.cache.append import Append
from edgekv.cache.counters import CacheCounters
from edgekv.cache.cross import CrossCache
from edgekv.cache.heat import PageHeat
from edgekv.cache.identity import Digest, SegmentIndex, sha256
from edgekv.cache.layout import Layout
from edgekv.cache.observer import CacheObserver, Observers
from edgekv.cache.pool import PoolState
from edgekv.cache.sequence import Sequence
from edgekv.cache.snapshot import CacheSnapshot, PageCounts
from edgekv.cache.state import SequenceState, check_state
from edgekv.cache.step import Step
from edgekv.cache.summaries import FrameSummaries
from edgekv.config import KVGeometry
from edgekv.errors import CacheError, ContextError
from edgekv.uncopied import uncopied

MAX_SLOTS = 2**31 - 1  # that an int32 can number


@uncopied("its pages are counted once")
class PageCache:
    """All sequences of one pool. Not safe for use from two threads; its owner serialises.

    ``max_pages`` bounds one sequence (default: the pool), ``max_positions`` is the model's longest
    context. ``shiftable=False`` declares learned absolute positions: nothing can be dropped then.
    ``identity`` says which model the keys and values are of. ``share=False`` keeps nothing for
    other contexts to find; ``digest`` makes the index's keys.
    ``cross`` holds what a model with cross-attention looks at.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        num_pages: int,
        *,
        max_pages: int | None = None,
        max_positions: int | None = None,
        shiftable: bool = True,
        identity: bytes = b"",
        digest: Digest = sha256,
        share: bool = True,
        cross: CrossCache | None = None,
    ) -> None:
        if max_pages is not None and max_pages < 1:
            raise ValueError(f"max_pages must be at least 1, got {max_pages}")
        if max_positions is not None and max_positions < 1:
            raise ValueError(f"max_positions must be at least 1, got {max_positions}")
        if num_pages * geometry.page_size > MAX_SLOTS:
            raise ValueError(
                f"a pool has at most {MAX_SLOTS} slots, got {num_pages} pages of "
                f"{geometry.page_size}"
            )
        self.geometry = geometry
        self.allocator = PageAllocator(num_pages)
        self.counters = CacheCounters()
        self.index = SegmentIndex(self.allocator, identity=identity, digest=digest, share=share)
        times_taken = self.allocator.ledger.times_taken
        self.summaries = FrameSummaries(geometry, times_taken)
        self.heat = PageHeat(times_taken)
        self._pool = PoolState(
            allocator=self.allocator,
            index=self.index,
            observer=self.counters,
            geometry=geometry,
            summaries=self.summaries,
            heat=self.heat,
            max_pages=num_pages if max_pages is None else min(max_pages, num_pages),
            max_positions=max_positions,
            shiftable=shiftable,
            cross=cross,
        )

    @property
    def cross(self) -> CrossCache | None:
        """What sequences look at by cross-attention; None for a model without."""
        return self._pool.cross

    @property
    def counts(self) -> PageCounts:
        return self.allocator.counts

    @property
    def max_pages(self) -> int:
        """Most pages one sequence may hold."""
        return self._pool.max_pages

    @property
    def max_positions(self) -> int | None:
        return self._pool.max_positions

    @property
    def shiftable(self) -> bool:
        return self._pool.shiftable

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """The open sequences, in the order they were opened."""
        return tuple(self._pool.sequences.values())

    def observe(self, observer: CacheObserver | None) -> None:
        """Tell ``observer`` too of every change from now on; None = nobody but the counters."""
        self._pool.observer = (
            self.counters if observer is None else Observers((self.counters, observer))
        )

    def open(self) -> Sequence:
        """An empty sequence. It holds its page-table row from now on, and no page yet."""
        layout = Layout(self._pool.max_pages, self._pool.num_axes)
        sequence = Sequence(self._pool, layout, self.index.root)
        self._pool.observer.opened(sequence, None)
        return sequence

    def import_state(self, state: SequenceState) -> Sequence:
        """A sequence that continues what ``Sequence.export_state`` gave, in pages of its own.

        The caller puts what the pages held into ``sequence.table.page_ids``, in order. Raises
        ValueError for a state that no sequence of this cache can be in, ContextError and
        OutOfPagesError for one that does not fit; nothing is changed then.
        """
        self.check_importable(state)
        pool = self._pool
        if pool.max_pages < state.num_pages <= self.counts.available:
            raise ContextError(
                f"need {state.num_pages} pages, a sequence holds at most {pool.max_pages}"
            )
        pages = pool.allocate(state.num_pages)
        sequence = Sequence(pool, Layout.from_state(state, pages, pool.max_pages), None)
        pool.observer.opened(sequence, None)
        return sequence

    def check_importable(self, state: SequenceState) -> None:
        """Raise ValueError for a state that no sequence of this cache can be in."""
        pool = self._pool
        if state.shifts.shape[1] != pool.num_axes:
            raise ValueError(
                f"the saved context counts {state.shifts.shape[1]} position axes, "
                f"this cache {pool.num_axes}"
            )
        check_state(
            state,
            page_size=self.geometry.page_size,
            max_positions=pool.max_positions,
            shiftable=pool.shiftable,
        )

    def stop_sharing(self) -> None:
        """Make every context private and free what is cached: what the pages held is gone."""
        for sequence in self.sequences:
            sequence.make_private()
        pages = self.index.clear()
        if pages.size:
            self._pool.observer.shared("given up", None, pages)

    def begin_step(self, appends: Collection[Append]) -> Step:
        """Tables for one decoder step over pending appends of different sequences of this cache."""
        for append in appends:
            if self._pool.sequences.get(append.sequence.id) is not append.sequence:
                raise CacheError("the append's sequence is not open in this cache")
        return Step(self._pool, appends)

    def snapshot(self) -> CacheSnapshot:
        """The whole cache at one moment, read-only; ``check`` validates it."""
        return CacheSnapshot(
            page_size=self.geometry.page_size,
            shiftable=self._pool.shiftable,
            allocator=self.allocator.snapshot(),
            sequences=tuple(sequence.snapshot() for sequence in self.sequences),
            entries=self.index.snapshot(),
        )

    def utilisation(self) -> float:
        """Valid tokens / (live pages * page size), shared pages once; 1.0 if none is live."""
        live = self.counts.live
        if live == 0:
            return 1.0
        valid = np.zeros(self.allocator.num_pages, dtype=np.int32)
        for sequence in self._pool.sequences.values():
            ids = sequence.table.page_ids
            valid[ids] = np.maximum(valid[ids], sequence.table.valid)
        return int(valid.sum()) / (live * self.geometry.page_size)
