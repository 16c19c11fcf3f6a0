"""Which tokens a sequence holds and where they stand: a page table and its segments, kept in step.

Owns: one page table, the segments that split it, the next position and the token count.
Guarantees: a call that raises changes nothing; keys are never moved, so forgetting a segment lowers
    the shift of everything behind it.
Does not know: reference counts. Calls that take pages out return them; the caller gives them up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.append import Append
from edgekv.cache.identity import Entry
from edgekv.cache.segment_list import SegmentList
from edgekv.cache.segments import (
    FRAME_CODE,
    KINDS,
    SYSTEM_CODE,
    Segment,
)
from edgekv.cache.snapshot import frozen
from edgekv.cache.state import SequenceState, check_state
from edgekv.cache.table import ID, SHIFT, VALID, PageTable
from edgekv.native.layout import Counts, LayoutDropper
from edgekv.uncopied import uncopied


@uncopied("use its copy()")
class Layout:
    """The committed tokens of one sequence, on ``num_axes`` position axes."""

    def __init__(self, max_pages: int, num_axes: int) -> None:
        self.table = PageTable(max_pages, num_axes)
        self.segments = SegmentList(max_pages, num_axes)
        self.next_position = np.zeros(num_axes, dtype=np.int32)  # (num_axes,)
        self.num_tokens = 0
        self._dropper: LayoutDropper | None = None  # made when something is dropped first
        self._before: Counts | None = None  # the last ``drop`` that was saved

    def copy(self) -> Layout:
        """The same tokens in a layout of their own."""
        twin = Layout.__new__(Layout)
        twin.table, twin.segments = self.table.copy(), self.segments.copy()
        twin.next_position, twin.num_tokens = self.next_position.copy(), self.num_tokens
        twin._dropper = twin._before = None
        return twin

    @classmethod
    def from_state(cls, state: SequenceState, pages: NDArray[np.int32], max_pages: int) -> Layout:
        """The tokens of ``state`` in a layout of their own, in ``pages`` (state.num_pages,)."""
        layout = cls(max_pages, state.shifts.shape[1])
        layout.table.num_pages = state.num_pages
        rows = layout.table.rows
        rows[:, ID], rows[:, VALID] = pages, state.valid
        rows[:, SHIFT:] = np.concatenate([state.shifts, state.written], axis=1)
        layout.segments.fill(state.segments, state.next_segment_id)
        layout.next_position[:] = state.next_position
        layout.num_tokens = state.num_tokens
        return layout

    def state(self) -> SequenceState:
        """The tokens apart from their pages' ids, as read-only copies."""
        base = SHIFT + self.table.num_axes
        return SequenceState(
            valid=frozen(self.table.valid),
            shifts=frozen(self.table.rows[:, SHIFT:base]),
            written=frozen(self.table.rows[:, base:]),
            segments=frozen(self.segments.rows),
            next_segment_id=self.segments.next_id,
        )

    def clear(self) -> NDArray[np.int32]:
        """Forget everything: (n,) pages taken out."""
        released = np.array(self.table.page_ids)
        self.table.num_pages = 0
        self.segments.cut(0)
        self.next_position[:] = 0
        self.num_tokens = 0
        return released

    def grow(self, append: Append) -> None:
        """Count the tokens of ``append``, whose entries and segment are in place."""
        if not append.extend:
            self.segments.grow()
        self.table.num_pages += append.pages.size
        self.num_tokens += append.num_tokens

    def join(self, entry: Entry, page_size: int, index: int, time_s: float) -> None:
        """Count the tokens of a kept segment, in its pages, as the last segment."""
        self.segments.push(entry.kind, index, time_s)
        row = self.segments.last
        row["num_pages"], row["num_tokens"] = entry.pages.size, entry.num_tokens
        row["span"], row["uniform"] = entry.span, entry.uniform
        self.table.stage(entry.pages, entry.num_tokens, page_size, self.next_position)
        self.table.num_pages += entry.pages.size
        self.num_tokens += entry.num_tokens
        self.next_position += entry.span

    def drop(self, ids: NDArray[np.int64], *, save: bool = False) -> tuple[NDArray[np.int32], int]:
        """Forget the segments with ``ids`` (k > 0,): (n,) pages taken out, a view until the next
        time, and how many frames they were. With ``save``, ``restore`` undoes it until then."""
        if self._dropper is None:
            self._dropper = LayoutDropper(
                self.table.memory,
                self.segments.memory,
                self.next_position,
                pinned_kind=SYSTEM_CODE,
                frame_kind=FRAME_CODE,
            )
        table, segments = self.table, self.segments
        before = (table.num_pages, len(segments), self.num_tokens)
        left, pages, num_frames = self._dropper.drop(ids, before, save=save)
        if save:
            self._before = before
        table.num_pages, num_segments, self.num_tokens = left
        segments.cut(num_segments)
        return pages, num_frames

    @property
    def dropped_at(self) -> int:
        """Where the pages are in memory that were taken out last."""
        assert self._dropper is not None, "nothing was dropped"
        return self._dropper.released_at

    def restore(self) -> None:
        """Hold the tokens from before the last ``drop`` with ``save``, and no others; ids go on
        from where they are."""
        assert self._dropper is not None, "nothing was saved"
        assert self._before is not None, "nothing was saved"
        self._dropper.restore(self._before)
        self.table.num_pages, num_segments, self.num_tokens = self._before
        self.segments.cut(num_segments)

    def check_insertable(self, state: SequenceState, page_size: int) -> None:
        """Raise ValueError unless the segments of ``state`` can be put among these."""
        ids, own = state.segments["id"], self.segments.rows["id"]
        if not ids.size:
            raise ValueError("need at least one segment to insert")
        if (ids[1:] <= ids[:-1]).any() or ids[0] < 0 or ids[-1] >= self.segments.next_id:
            raise ValueError(
                f"inserted segments need growing ids below {self.segments.next_id}, "
                f"got {ids.tolist()}"
            )
        if (here := np.isin(ids, own)).any():
            raise ValueError(f"segment {ids[here.argmax()]} is in this sequence already")
        if (state.segments["kind"] == SYSTEM_CODE).any():
            raise ValueError("system segments are pinned and never come back")
        if state.shifts.shape[1] != self.table.num_axes:
            raise ValueError(
                f"inserted segments count {state.shifts.shape[1]} position axes, "
                f"this sequence {self.table.num_axes}"
            )
        check_state(state, page_size=page_size, max_positions=None, shiftable=True)

    def insert(self, state: SequenceState, pages: NDArray[np.int32]) -> None:
        """Put segments that passed ``check_insertable`` among these by their ids, in ``pages``."""
        rows, table = self.segments.rows, self.table
        places = np.searchsorted(rows["id"], state.segments["id"])  # in front of which segment
        page_starts = np.concatenate([[0], np.cumsum(rows["num_pages"])])[places]
        page_places = np.repeat(page_starts, state.segments["num_pages"])
        entries = np.zeros((state.num_pages, table.rows.shape[1]), np.int32)
        entries[:, ID], entries[:, VALID] = pages, state.valid
        entries[:, SHIFT + table.num_axes :] = state.written
        self.segments.insert(places, state.segments)
        table.insert(page_places, entries)
        rows = self.segments.rows
        starts = np.cumsum(rows["span"], axis=0, dtype=np.int32) - rows["span"]
        table.place(np.repeat(starts, rows["num_pages"], axis=0))
        self.num_tokens += state.num_tokens
        self.next_position += state.segments["span"].sum(axis=0, dtype=np.int32)

    def truncate(self, num_tokens: int) -> NDArray[np.int32]:
        """Keep the first ``num_tokens`` tokens, fewer than there are: (n,) pages taken out."""
        rows = self.segments.rows
        token_ends = np.cumsum(rows["num_tokens"])
        cut = int(np.searchsorted(token_ends, num_tokens, side="right"))  # first that loses tokens
        left = num_tokens - int(token_ends[cut] - rows["num_tokens"][cut])
        if left and (rows["kind"][cut] == FRAME_CODE or not rows["uniform"][cut]):
            kind = KINDS[rows["kind"][cut]]
            raise ValueError(f"cannot cut inside {kind} segment {rows['id'][cut]}")
        valid_ends = np.cumsum(self.table.valid)
        num_pages = int(np.searchsorted(valid_ends, num_tokens)) + 1 if num_tokens else 0
        released = np.array(self.table.page_ids[num_pages:])
        self.next_position -= rows["span"][cut:].sum(axis=0, dtype=np.int32)
        if left:
            rows["num_pages"][cut] = num_pages - int(rows["num_pages"][:cut].sum())
            rows["num_tokens"][cut] = left
            rows["span"][cut] = left
            self.next_position += left
            self.table.valid[num_pages - 1] -= valid_ends[num_pages - 1] - num_tokens
        self.segments.cut(cut + bool(left))
        self.table.num_pages = num_pages
        self.num_tokens = num_tokens
        return released

    def views(self) -> tuple[Segment, ...]:
        """All segments, oldest first."""
        rows = self.segments.rows
        ends = np.cumsum(rows["num_pages"])
        starts = np.cumsum(rows["span"], axis=0) - rows["span"]
        return tuple(
            Segment(
                id=int(row["id"]),
                kind=KINDS[row["kind"]],
                pages=self.table.page_ids[end - row["num_pages"] : end].copy(),
                num_tokens=int(row["num_tokens"]),
                position=tuple(start.tolist()),
                span=tuple(row["span"].tolist()),
                index=int(row["index"]),
                time_s=float(row["time_s"]),
            )
            for row, end, start in zip(rows, ends, starts, strict=True)
        )
