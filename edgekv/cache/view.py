"""What can be read of a sequence: its tokens, its segments, its pages. Nothing here changes it.

Owns: the parts that make up one sequence, and what rules, observers and people read of them.
Guarantees: what is given away is a copy or says that it is a live view.
Does not know: how a sequence changes, who else holds its pages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.append import Append
from edgekv.cache.cross import CrossInput
from edgekv.cache.identity import Entry
from edgekv.cache.layout import Layout
from edgekv.cache.lineage import Lineage
from edgekv.cache.pool import PoolState
from edgekv.cache.reserve import Reserve
from edgekv.cache.segments import FRAME_CODE, Segment, SegmentTable
from edgekv.cache.snapshot import SequenceSnapshot, frozen
from edgekv.cache.state import SequenceState
from edgekv.cache.table import PageTable
from edgekv.errors import CacheError

_NO_PAGES = np.empty(0, dtype=np.int32)


class Aside(NamedTuple):
    """What was dropped and may be wanted back."""

    pages: NDArray[np.int32]  # (n,) still held
    found_by: Entry | None
    num_tokens: int  # that were left


class SequenceView:
    """The side of a sequence that everybody may look at."""

    def __init__(self, pool: PoolState, layout: Layout, found_by: Entry | None) -> None:
        self._pool = pool
        self.id = next(pool.ids)
        self._layout = layout
        self._lineage = Lineage(pool.index, layout, found_by)
        self._pending: Append | None = None
        self._reserve = Reserve(pool)
        self._aside: Aside | None = None
        self._closed = False
        self._source: CrossInput | None = None

    @property
    def table(self) -> PageTable:
        """The committed page table: to read, never to write."""
        return self._layout.table

    @property
    def num_tokens(self) -> int:
        return self._layout.num_tokens

    @property
    def num_pages(self) -> int:
        return self._layout.table.num_pages

    @property
    def num_segments(self) -> int:
        return len(self._layout.segments)

    @property
    def next_position(self) -> NDArray[np.int32]:
        """(R,) where the next token stands on each axis; not the number of tokens. A copy."""
        return np.array(self._layout.next_position)

    @property
    def next_segment_id(self) -> int:
        """The id that the next segment gets."""
        return self._layout.segments.next_id

    @property
    def pending(self) -> Append | None:
        return self._pending

    @property
    def reserved_pages(self) -> NDArray[np.int32]:
        """(n,) pages held for appends to come; a copy."""
        return np.array(self._reserve.pages)

    @property
    def has_set_aside(self) -> bool:
        """Whether something has left that may yet be put back."""
        return self._aside is not None

    @property
    def source(self) -> CrossInput | None:
        """What tokens appended from now on see by cross-attention."""
        return self._source

    @property
    def is_findable(self) -> bool:
        """Whether other contexts can find what this one holds, and this one what comes next."""
        return self._lineage.reaches_end

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first, as views: for people and tests, costs one object each."""
        return self._layout.views()

    def segment_table(self, *, summaries: bool = False, heat: bool = False) -> SegmentTable:
        """All segments as columns, oldest first: what retention rules read, with ``summaries`` and
        ``heat`` for those that need them."""
        layout, pool = self._layout, self._pool
        if not (summaries or heat):
            return layout.segments.table()
        known = (pool.summaries if summaries else None, pool.heat if heat else None)
        return layout.segments.table(layout.table.page_ids.tobytes(), known)

    @property
    def num_frames(self) -> int:
        return self._layout.segments.table().codes.count(FRAME_CODE)

    def num_tokens_in(self, segment_ids: NDArray[np.int64]) -> int:
        """Tokens in the segments with these ids (k,). Raises ValueError: unknown, repeated."""
        segments = self._layout.segments
        return int(segments.rows["num_tokens"][segments.indices_of(segment_ids)].sum())

    def private_pages(self) -> NDArray[np.int32]:
        """(num_segments,) pages of each segment that nobody else holds: what a drop frees."""
        alone = self._pool.allocator.ref_counts(self.table.page_ids) == 1
        owner = np.repeat(np.arange(self.num_segments), self._layout.segments.rows["num_pages"])
        return np.bincount(owner[alone], minlength=self.num_segments).astype(np.int32)

    def holders(self) -> NDArray[np.int32]:
        """(num_pages,) how many sequences hold each page, this one included."""
        return self._pool.allocator.ref_counts(self.table.page_ids)

    def summaries(self) -> NDArray[np.float32]:
        """(num_segments, width) what each frame's pages say, NaN where no summary is kept."""
        return self.segment_table(summaries=True).summaries

    def heat(self) -> NDArray[np.float64]:
        """(num_segments,) how much attention each segment's pages got, older use fading."""
        return self.segment_table(heat=True).heat

    def export_state(self) -> SequenceState:
        """What it takes to continue in another pool, beside what the pages hold."""
        self._require_open()
        return self._layout.state()

    def snapshot(self) -> SequenceSnapshot:
        """Everything the sequence knows, as read-only copies."""
        pending = self._pending.taken if self._pending is not None else _NO_PAGES
        found_by = self._lineage.path_pages()
        return SequenceSnapshot(
            id=self.id,
            num_tokens=self.num_tokens,
            next_position=frozen(self._layout.next_position),
            page_table=frozen(self.table.rows),
            segments=frozen(self._layout.segments.rows),
            pending_pages=frozen(pending),
            reserved_pages=frozen(self._reserve.pages),
            aside_pages=frozen(_NO_PAGES if self._aside is None else self._aside.pages),
            found_by=None if found_by is None else frozen(found_by),
        )

    def _require_open(self) -> None:
        if self._closed:
            raise CacheError(f"sequence {self.id} is closed")
