"""Segments taken out of a sequence's page table by one native call.

Owns: the binding of ``edgekv_layout_drop`` (plugins/cpu/layout.h).
Guarantees: ids are checked before anything changes; a call that raises has changed nothing.
Does not know: what segments and pages are, who else holds them.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekv.errors import CacheError
from edgekv.native.library import native_call
from edgekv.native.memory import address

_UNKNOWN, _REPEATED = 1, 2
_P, _N = ctypes.c_void_p, ctypes.c_int64


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
    )
    num_pages: int
    num_segments: int
    num_tokens: int
    culprit: int


class Dropped(NamedTuple):
    """What is left, and what was taken out."""

    num_segments: int
    num_tokens: int
    pages: NDArray[np.int32]  # (n,) taken out, in order


class LayoutDropper:
    """Takes segments out of ``entries`` and ``segments``, which stay where they are in memory."""

    def __init__(
        self,
        entries: NDArray[np.int32],  # (max_pages, 2 + 2 R) id, valid, shifts, where written
        segments: NDArray[np.void],  # (max_segments,) fields as in ``segment_dtype``
        next_position: NDArray[np.int32],  # (R,)
        *,
        pinned_kind: int,
    ) -> None:
        self._arrays = (entries, segments, next_position)
        self._released = np.empty(len(entries), dtype=np.int32)
        self._ids = np.empty((2, segments.size), dtype=np.int64)  # and scratch
        self._state = LayoutState(
            address(entries),
            0,
            next_position.size,
            address(segments),
            0,
            segments.itemsize,
            0,
            address(next_position),
            0,
        )
        self._at = ctypes.addressof(self._state)
        self._ids_at, self._places_at = (address(row) for row in self._ids)
        self._released_at = address(self._released)
        self._pinned_kind = pinned_kind
        self._drop = native_call("layout_drop", [_P, _P, _N, ctypes.c_int32, _P, _P])

    def drop(
        self, ids: NDArray[np.int64], num_pages: int, num_segments: int, num_tokens: int
    ) -> Dropped:
        """Take segments ``ids`` (k > 0,) out of so many: what stays moves to the front, and its
        shifts and ``next_position`` are lowered by the spans that have left before it.

        Raises ValueError for unknown or repeated ids, CacheError for one of the pinned kind.
        """
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise ValueError(f"segment ids must be integers (k,), got {ids.dtype} {ids.shape}")
        if ids.size > len(self._ids[0]):
            raise ValueError(f"cannot drop {ids.size} of {num_segments} segments")
        state = self._state
        self._ids[0, : ids.size] = ids
        state.num_pages, state.num_segments, state.num_tokens = num_pages, num_segments, num_tokens
        code = self._drop(
            self._at, self._ids_at, ids.size, self._pinned_kind, self._released_at, self._places_at
        )
        if code == _UNKNOWN:
            raise ValueError(f"no segment {state.culprit} in this sequence")
        if code == _REPEATED:
            raise ValueError("segment ids of one call must be distinct")
        if code:
            raise CacheError("system segments are pinned and cannot be dropped")
        released = self._released[: num_pages - state.num_pages].copy()
        return Dropped(state.num_segments, state.num_tokens, released)
