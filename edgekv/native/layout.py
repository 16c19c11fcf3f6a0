"""Segments taken out of a sequence's page table by one native call, and put back by another.

Owns: the binding of ``edgekv_layout_*`` (plugins/cpu/layout.h), and the memory that what was taken
    out can be put back from.
Guarantees: ids are checked before anything changes; a call that raises has changed nothing.
Does not know: what segments and pages are, who else holds them.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from edgekv.errors import CacheError
from edgekv.native.library import native_call
from edgekv.native.memory import address
from edgekv.uncopied import uncopied

_INT64 = np.dtype(np.int64)
_UNKNOWN, _REPEATED = 1, 2
_P, _N, _CODE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class LayoutState(ctypes.Structure):
    """``EdgekvLayout``."""

    _fields_ = (
        ("entries", _P),
        ("num_pages", _N),
        ("num_axes", _N),
        ("segments", _P),
        ("num_segments", _N),
        ("segment_bytes", _N),
        ("num_tokens", _N),
        ("next_position", _P),
        ("culprit", _N),
        ("num_gone", _N),
        ("saved_entries", _P),
        ("saved_segments", _P),
        ("saved_position", _P),
    )
    num_pages: int
    num_segments: int
    num_tokens: int
    culprit: int
    num_gone: int
    saved_entries: int
    saved_segments: int
    saved_position: int


Counts = tuple[int, int, int]  # pages, segments and tokens of a layout


@uncopied("native calls know where it is")
class LayoutDropper:
    """Takes segments out of ``entries`` and ``segments``, which stay where they are in memory."""

    def __init__(
        self,
        entries: NDArray[np.int32],  # (max_pages, 2 + 2 R) id, valid, shifts, where written
        segments: NDArray[np.void],  # (max_segments,) fields as in ``segment_dtype``
        next_position: NDArray[np.int32],  # (R,)
        *,
        pinned_kind: int,
        frame_kind: int,
    ) -> None:
        self._arrays = (entries, segments, next_position)
        self._saved: tuple[NDArray[np.generic], ...] = ()
        self._released = np.empty(len(entries), dtype=np.int32)
        self._places = np.empty(segments.size, dtype=np.int64)  # scratch
        self._state = LayoutState(
            entries=address(entries),
            num_axes=next_position.size,
            segments=address(segments),
            segment_bytes=segments.itemsize,
            next_position=address(next_position),
        )
        self._at = ctypes.addressof(self._state)
        self._places_at, self.released_at = address(self._places), address(self._released)
        self._kinds = pinned_kind, frame_kind
        self._drop = native_call("layout_drop", [_P, _P, _N, _CODE, _CODE, _CODE, _P, _P])
        self._restore = native_call("layout_restore", [_P], None)

    def drop(
        self, ids: NDArray[np.int64], counts: Counts, *, save: bool = False
    ) -> tuple[Counts, NDArray[np.int32], int]:
        """Take segments ``ids`` (k > 0,) out of so many: what stays moves to the front, and its
        shifts and ``next_position`` are lowered by the spans that have left before it.

        What is left, the pages (n,) that were taken out, in order, a view until the next time, and
        how many frames. With ``save`` it can be undone. Raises ValueError for unknown or repeated
        ids, CacheError for one of the pinned kind.
        """
        if ids.dtype is not _INT64:
            if ids.dtype.kind not in "iu":
                raise ValueError(f"segment ids must be integers, got {ids.dtype}")
            ids = ids.astype(_INT64)
        if ids.ndim != 1 or ids.size > self._places.size:
            raise ValueError(f"cannot drop segments of shape {ids.shape}, there are {counts[1]}")
        if save and not self._saved:
            self._make_saved()
        state, given = self._state, ids.tobytes()
        state.num_pages, state.num_segments, state.num_tokens = counts
        code = self._drop(
            self._at, given, ids.size, *self._kinds, save, self.released_at, self._places_at
        )
        if code == _UNKNOWN:
            raise ValueError(f"no segment {state.culprit} in this sequence")
        if code == _REPEATED:
            raise ValueError("segment ids of one call must be distinct")
        if code:
            raise CacheError("system segments are pinned and cannot be dropped")
        left = (state.num_pages, state.num_segments, state.num_tokens)
        return left, self._released[: counts[0] - left[0]], state.num_gone

    def restore(self, counts: Counts) -> None:
        """All as it was, with so many, before the last ``drop`` with ``save``."""
        self._state.num_pages, self._state.num_segments, self._state.num_tokens = counts
        self._restore(self._at)

    def _make_saved(self) -> None:
        saved = tuple(np.empty_like(array) for array in self._arrays)
        at = (address(array) for array in saved)
        self._state.saved_entries, self._state.saved_segments, self._state.saved_position = at
        self._saved = saved  # last: from now on it is written to
