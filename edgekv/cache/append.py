"""The plan of one append: where its tokens will stand, what they may see, which pages they take.

Owns: ``Append`` (a pending plan) and the arithmetic behind its per-token arrays.
Guarantees: making a plan changes nothing a reader of the sequence can see; its arrays are its own
    and never written again, and die with it.
Does not know: the allocator, other sequences, steps beyond the one that may carry it.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.table import ID
from edgekv.types import SegmentKind

if TYPE_CHECKING:
    from edgekv.cache.sequence import Sequence

Runs = Collection[tuple[int, int]]  # (start, stop) within the append


@dataclass(slots=True, eq=False)
class Append:
    """Tokens that a sequence has room for but does not hold yet. R = max(rope axes, 1)."""

    sequence: Sequence
    kind: SegmentKind
    num_tokens: int
    extend: bool
    tail_tokens: int  # how many go into the page the sequence ends with
    copy_page: int  # replaces that page because others hold it or a step uses it, -1 = none
    pages: NDArray[np.int32]  # (k,) new pages behind the sequence's
    slots: NDArray[np.int32]  # (num_tokens,) page * page_size + offset
    positions: NDArray[np.int64]  # (R, num_tokens) current positions
    query_indices: NDArray[np.int32]  # (num_tokens,) logical indices
    kv_limits: NDArray[np.int32]  # (num_tokens,)
    advance: NDArray[np.int32]  # (R,) how far the sequence's next position moves
    uniform: bool  # every token advances every axis by one
    index: int
    time_s: float
    mass_weight: float  # how much what these tokens look at counts, 0 = not
    num_reserved: int  # of ``taken``, the first so many are from the sequence's reserve
    state: Literal["pending", "committed", "aborted"] = "pending"
    in_step: bool = field(default=False)

    @property
    def taken(self) -> NDArray[np.int32]:
        """(k,) or (k + 1,) every page the plan holds, the copy's target first."""
        if self.copy_page < 0:
            return self.pages
        return np.concatenate([np.array([self.copy_page], dtype=np.int32), self.pages])

    @property
    def copies(self) -> NDArray[np.int32]:
        """(0 or 1, 2) pages ``(source, target)`` to copy before the step runs."""
        if self.copy_page < 0:
            return np.empty((0, 2), dtype=np.int32)
        return np.array([[self.sequence.table.page_ids[-1], self.copy_page]], dtype=np.int32)

    def used_pages(self) -> NDArray[np.int32]:
        """(n,) distinct pages that a step with this append reads or writes."""
        return np.concatenate([self.sequence.table.page_ids, self.taken])

    def table_rows(self, num_columns: int) -> NDArray[np.int32]:
        """(pages, num_columns) page-table entries as the step must see them: a copy."""
        table = self.sequence.table
        rows = np.array(table.staged(self.pages.size)[:, :num_columns])
        if self.tail_tokens:
            rows[table.num_pages - 1, 1] += self.tail_tokens
            if self.copy_page >= 0:
                rows[table.num_pages - 1, ID] = self.copy_page
        return rows

    def abort(self) -> None:
        """Give everything back; the sequence is exactly as before. Allowed while a step runs it."""
        self.sequence.abort(self)


def slots_for(
    tail_slot: int, tail_tokens: int, pages: NDArray[np.int32], num_tokens: int, page_size: int
) -> NDArray[np.int32]:
    """(num_tokens,) slots: ``tail_tokens`` from ``tail_slot`` on, then new pages from the start."""
    grid = pages[:, None] * np.int32(page_size) + np.arange(page_size, dtype=np.int32)
    fresh: NDArray[np.int32] = grid.ravel()[: num_tokens - tail_tokens]
    if not tail_tokens:
        return fresh
    tail = np.arange(tail_slot, tail_slot + tail_tokens, dtype=np.int32)
    return np.concatenate([tail, fresh])


def limits_for(indices: NDArray[np.int32], bidirectional: bool | Runs) -> NDArray[np.int32]:
    """(n,) how many tokens each may see: itself and all before, or to the end of its run."""
    num_tokens = indices.size
    limits: NDArray[np.int32] = indices + np.int32(1)
    if isinstance(bidirectional, bool):
        bidirectional = [(0, num_tokens)] if bidirectional else []
    for start, stop in bidirectional:
        if not 0 <= start < stop <= num_tokens:
            raise ValueError(
                f"bidirectional run must lie in 0 to {num_tokens}, got {start} to {stop}"
            )
        limits[start:stop] = limits[stop - 1]
    return limits


def relative_positions(
    num_axes: int,
    num_tokens: int,
    positions: NDArray[np.integer] | None,
    advance: int | Collection[int] | None,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Positions relative to the sequence's next one (R, n), and how far that one moves (R,).

    Without ``positions`` tokens count up on every axis; without ``advance`` the next position is
    one behind the largest of any axis, as Qwen2-VL counts.
    """
    if positions is None:
        relative = np.empty((num_axes, num_tokens), dtype=np.int64)
        relative[:] = np.arange(num_tokens)
        largest = num_tokens - 1
    else:
        given = np.asarray(positions)
        if given.shape != (num_axes, num_tokens) or not np.issubdtype(given.dtype, np.integer):
            wanted = f"({num_axes}, {num_tokens})"
            raise ValueError(
                f"positions must be integers {wanted}, got {given.dtype} {given.shape}"
            )
        if given.min() < 0:
            raise ValueError(f"positions are relative and not negative, got {given.min()}")
        relative = given.astype(np.int64)
        largest = int(relative.max())
    if advance is None:
        move = np.full(num_axes, largest + 1, dtype=np.int32)
    else:
        given = np.asarray(advance)
        if given.shape not in ((), (num_axes,)) or not np.issubdtype(given.dtype, np.integer):
            raise ValueError(
                f"advance must be one integer or one for each of {num_axes} axes, got {advance!r}"
            )
        if given.min() < 0:
            raise ValueError(f"advance must not be negative, got {advance!r}")
        move = np.full(num_axes, given, dtype=np.int32)
    return relative, move
