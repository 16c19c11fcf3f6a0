"""The plan of one append: where its tokens will stand, what they may see, which pages they take.

Owns: ``Append`` (a pending plan), and what can be asked for in one.
Guarantees: making a plan changes nothing a reader of the sequence can see; its arrays are its own
    and never written again, and die with it.
Does not know: the allocator, other sequences, steps beyond the one that may carry it.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.segments import KIND_CODES, KINDS
from edgekv.cache.snapshot import Scalar
from edgekv.native.appends import LARGEST, AppendPlanner
from edgekv.types import SegmentKind

if TYPE_CHECKING:
    from edgekv.cache.sequence import Sequence

Runs = Collection[tuple[int, int]]  # (start, stop) within the append


def read_only(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """``array``, which nobody writes from now on."""
    array.setflags(write=False)
    return array


_NO_COPIES = read_only(np.empty((0, 2), dtype=np.int32))


@dataclass(slots=True, eq=False)
class Append:
    """Tokens that a sequence has room for but does not hold yet. R = max(rope axes, 1)."""

    sequence: Sequence
    native: AppendPlanner  # in which it is pending
    kind: SegmentKind
    num_tokens: int
    extend: bool
    tail_tokens: int  # how many go into the page the sequence ends with
    copy_page: int  # replaces that page because others hold it or a step uses it, -1 = none
    taken: NDArray[np.int32]  # (k,) every page the plan holds, the copy's target first
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
    def pages(self) -> NDArray[np.int32]:
        """(n,) new pages behind the sequence's."""
        return self.taken[1:] if self.copy_page >= 0 else self.taken

    @property
    def copies(self) -> NDArray[np.int32]:
        """(0 or 1, 2) pages ``(source, target)`` to copy before the step runs; read-only."""
        if self.copy_page < 0:
            return _NO_COPIES
        pages = [[self.sequence.table.page_ids[-1], self.copy_page]]
        return read_only(np.array(pages, dtype=np.int32))

    def used_pages(self) -> NDArray[np.int32]:
        """(n,) distinct pages that a step with this append reads or writes."""
        return np.concatenate([self.sequence.table.page_ids, self.taken])

    def abort(self) -> None:
        """Give everything back; the sequence is exactly as before. Allowed while a step runs it."""
        self.sequence.abort(self)


def checked_size(kind: str, num_tokens: int) -> tuple[int, int]:
    """The code of ``kind``, and ``num_tokens``, at least one."""
    if kind not in KIND_CODES:
        raise ValueError(f"segment kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if num_tokens < 1:
        raise ValueError(f"an append needs at least 1 token, got {num_tokens}")
    return KIND_CODES[kind], index(num_tokens)


def checked_positions(
    num_axes: int, num_tokens: int, positions: NDArray[np.integer] | None
) -> NDArray[np.int64] | None:
    """(R, n) positions relative to a sequence's next one; None: they count up on every axis."""
    if positions is None:
        return None
    given = np.asarray(positions)
    fits = given.dtype.kind in "iu" and given.dtype != np.uint64
    if given.shape != (num_axes, num_tokens) or not fits:
        wanted = f"({num_axes}, {num_tokens})"
        raise ValueError(f"positions must be integers {wanted}, got {given.dtype} {given.shape}")
    return np.ascontiguousarray(given, dtype=np.int64)


def refuse_negative(positions: NDArray[np.int64]) -> NoReturn:
    """Raise ValueError for ``positions`` of which some are negative."""
    raise ValueError(f"positions are relative and not negative, got {positions.min()}")


def checked_advance(
    num_axes: int, advance: int | Collection[int] | None
) -> NDArray[np.int64] | None:
    """(R,) how far the next position moves; None: one behind the largest position of any axis, as
    Qwen2-VL counts."""
    if advance is None:
        return None
    given = np.asarray(advance)
    if given.shape not in ((), (num_axes,)) or given.dtype.kind not in "iu":
        raise ValueError(
            f"advance must be one integer or one for each of {num_axes} axes, got {advance!r}"
        )
    if given.min() < 0:
        raise ValueError(f"advance must not be negative, got {advance!r}")
    if given.max() > LARGEST:
        raise ValueError(f"advance must be at most {LARGEST}, got {advance!r}")
    return np.full(num_axes, given, dtype=np.int64)


def checked_runs(num_tokens: int, bidirectional: bool | Runs) -> Runs:
    """Runs of tokens that see to the end of their run."""
    if isinstance(bidirectional, bool):
        return [(0, num_tokens)] if bidirectional else ()
    runs = [(index(start), index(stop)) for start, stop in bidirectional]
    for start, stop in runs:
        if not 0 <= start < stop <= num_tokens:
            raise ValueError(
                f"bidirectional run must lie in 0 to {num_tokens}, got {start} to {stop}"
            )
    return runs
