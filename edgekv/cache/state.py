"""The committed tokens of one sequence, apart from any pool: what it takes to continue elsewhere.

Owns: ``SequenceState``, the plain arrays it is stored as, and the checks of one that comes from
    outside.
Guarantees: a state that passed ``check_state`` is one a sequence can be in: every invariant of
    ``check`` holds of it. Page ids are not part of it, they mean nothing in another pool.
Does not know: what the pages hold, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.invariants import InvariantError, check_partition, check_positions
from edgekv.cache.segments import KINDS, MAX_TIME_S, SYSTEM_CODE, segment_dtype
from edgekv.cache.snapshot import SequenceSnapshot, frozen

_MAX_ID = 2**62  # leaves as many for what is still to come
_SEGMENT = "segment."  # prefix of the arrays that are columns of the segments


@dataclass(frozen=True, slots=True, eq=False)
class SequenceState:
    """A sequence without its page ids. R = max(rope axes, 1)."""

    valid: NDArray[np.int32]  # (num_pages,) tokens in each page
    shifts: NDArray[np.int32]  # (num_pages, R)
    written: NDArray[np.int32]  # (num_pages, R) where each page's segment started when written
    segments: NDArray[np.void]  # (num_segments,) fields as in segment_dtype
    next_segment_id: int

    @property
    def num_pages(self) -> int:
        return int(self.valid.size)

    @property
    def num_tokens(self) -> int:
        return int(self.valid.sum())

    @property
    def num_pinned_tokens(self) -> int:
        """Tokens that never leave."""
        return int(self.segments["num_tokens"][self.segments["kind"] == SYSTEM_CODE].sum())

    @property
    def next_position(self) -> NDArray[np.int32]:
        """(R,) where the next token will stand."""
        position: NDArray[np.int32] = self.segments["span"].sum(axis=0).astype(np.int32)
        return position

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """All of it as plain arrays by name: the form in which it is stored."""
        columns: dict[str, NDArray[np.generic]] = {}
        for name in self.segments.dtype.names or ():
            column = np.ascontiguousarray(self.segments[name])
            columns[_SEGMENT + name] = column.view(np.uint8) if column.dtype.kind == "b" else column
        return {
            "page.valid": self.valid,
            "page.shift": self.shifts,
            "page.written": self.written,
            "next_segment_id": np.array(self.next_segment_id, np.int64),
            **columns,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]], num_axes: int) -> SequenceState:
        """Back from ``to_arrays`` on ``num_axes`` = R position axes. Raises ValueError."""
        num_pages = len(_array(arrays, "page.valid", np.dtype(np.int32), (None,)))
        num_segments = len(_array(arrays, _SEGMENT + "id", np.dtype(np.int64), (None,)))
        dtype = segment_dtype(num_axes)
        segments = np.zeros(num_segments, dtype)
        for name in dtype.names or ():
            stored = np.dtype(np.uint8) if dtype[name].kind == "b" else dtype[name].base
            shape = (num_segments, *dtype[name].shape)
            segments[name] = _array(arrays, _SEGMENT + name, stored, shape)
        int32, paged = np.dtype(np.int32), (num_pages, num_axes)
        return cls(
            valid=frozen(_array(arrays, "page.valid", int32, (num_pages,))),
            shifts=frozen(_array(arrays, "page.shift", int32, paged)),
            written=frozen(_array(arrays, "page.written", int32, paged)),
            segments=frozen(segments),
            next_segment_id=int(_array(arrays, "next_segment_id", np.dtype(np.int64), ())),
        )


def check_state(
    state: SequenceState, *, page_size: int, max_positions: int | None, shiftable: bool
) -> None:
    """Raise ValueError unless a sequence of such a cache can be in this state."""
    segments = state.segments
    if segments.size and not (
        segments["num_pages"].min() >= 1
        and segments["span"].min() >= 0
        and 0 <= segments["kind"].min() <= segments["kind"].max() < len(KINDS)
        and segments["id"].min() >= 0
        and segments["id"].max() < state.next_segment_id <= _MAX_ID
        and segments["index"].min() >= -1
        and not (np.abs(segments["time_s"]) > MAX_TIME_S).any()
    ):
        raise ValueError(
            "a segment of the saved context has an impossible size, kind, id, index or time"
        )
    ends = np.cumsum(segments["span"], axis=0, dtype=np.int64)
    bound = np.iinfo(np.int32).max if max_positions is None else max_positions
    if (ends > bound).any() or (state.written < 0).any() or (state.written > bound).any():
        raise ValueError(f"the saved context has positions beyond {bound}")
    ids = np.arange(state.num_pages, dtype=np.int32)[:, None]
    snapshot = SequenceSnapshot(
        id=0,
        num_tokens=state.num_tokens,
        next_position=state.next_position,
        page_table=np.concatenate([ids, state.valid[:, None], state.shifts, state.written], axis=1),
        segments=segments,
        pending_pages=np.empty(0, np.int32),
        reserved_pages=np.empty(0, np.int32),
        aside_pages=np.empty(0, np.int32),
    )
    try:
        check_partition(snapshot, page_size)
        check_positions(snapshot, shiftable)
    except InvariantError as error:
        raise ValueError(f"the saved context contradicts itself: {error}") from None


def _array(
    arrays: Mapping[str, NDArray[np.generic]],
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int | None, ...],
) -> NDArray[Any]:
    """The array ``name`` if it has this dtype and shape (None = any length)."""
    if name not in arrays:
        raise ValueError(f"array {name!r} is missing from the saved context")
    array = arrays[name]
    fits = len(array.shape) == len(shape) and all(
        want in (None, got) for want, got in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        raise ValueError(
            f"array {name!r} of the saved context must be {dtype} {shape}, "
            f"got {array.dtype} {array.shape}"
        )
    return array
