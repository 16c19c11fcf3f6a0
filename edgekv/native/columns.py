"""What is known of pages, put together by segment, in one native call each.

A page that was taken anew since something was known of it holds something else: nothing is known of
it then, and nobody has to say so (``Ledger.times_taken``).
Owns: the numbers, a row for every page, and the binding of ``edgekv_sum_pages``,
    ``edgekv_first_rows`` and ``edgekv_mean_rows`` (plugins/cpu/columns.h).
Does not know: what is known of pages, and what for. ``segments`` are rows of ``segment_dtype``, as
    bytes: a native call takes those as they are; where an array is must be found out.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekv.native.library import native_call
from edgekv.native.memory import address
from edgekv.uncopied import uncopied

_P, _N = ctypes.c_void_p, ctypes.c_int64
_DTYPES = ("f4", "f2", "u2", "i1")  # as ``EdgekvValues`` numbers them


class _Since(ctypes.Structure):
    """``EdgekvSince``."""

    _fields_ = (("times_taken", _P), ("known", _P))


@uncopied("native calls know where it is")
class PageNumbers:
    """A number for every page of a pool, 0 at first; a segment's is the sum over its pages."""

    def __init__(self, times_taken: NDArray[np.int64]) -> None:  # (num_pages,) of the ledger
        num_pages = times_taken.size
        self.numbers = np.zeros(num_pages, dtype=np.float64)
        self._times_taken = times_taken
        self._known = np.full(num_pages, -1, dtype=np.int64)
        self._since = _Since(address(times_taken), address(self._known))
        self._since_at = ctypes.addressof(self._since)
        self._sums = np.empty(num_pages, dtype=np.float64)  # scratch
        self._numbers_at, self._sums_at = address(self.numbers), address(self._sums)
        self._sum_pages = native_call(
            "sum_pages", [_P, _N, _N, _P, _P, _P, ctypes.c_double, _P], None
        )

    def add(
        self,
        pages: NDArray[np.int32],  # (n,) distinct
        amounts: NDArray[np.float64],  # (n,)
    ) -> None:
        """Add to the numbers of pages."""
        times_taken = self._times_taken[pages]
        self.numbers[pages[self._known[pages] != times_taken]] = 0
        self._known[pages] = times_taken
        self.numbers[pages] += amounts

    def of(
        self,
        segments: bytes,
        num_segments: int,
        pages: NDArray[np.int32],  # (n,) of the segments, in order
        factor: float,
    ) -> NDArray[np.float64]:
        """(num_segments,) sums, times ``factor``."""
        self._sum_pages(
            segments,
            len(segments) // max(num_segments, 1),
            num_segments,
            pages.tobytes(),
            self._since_at,
            self._numbers_at,
            factor,
            self._sums_at,
        )
        sums: NDArray[np.float64] = self._sums[:num_segments].copy()
        return sums


class _Values(ctypes.Structure):
    """``EdgekvValues``."""

    _fields_ = (
        ("numbers", _P),
        ("scales", _P),
        *((name, _N) for name in ("dtype", "num_heads", "page_size", "head_dim")),
    )


@uncopied("native calls know where it is")
class PageValues:
    """Where the values that pages hold in one layer are in memory."""

    def __init__(
        self,
        numbers: NDArray[
            Any
        ],  # (n, Hk, S, D) C-contiguous: float32, float16, int8, bfloat16's bits
        scales: NDArray[np.float32] | None = None,  # (n, Hk, S) C-contiguous, of int8
    ) -> None:
        if numbers.dtype.str[1:] not in _DTYPES or not numbers.flags.c_contiguous:
            raise ValueError(f"values must be C-contiguous numbers of a pool, got {numbers.dtype}")
        self._arrays = (numbers, scales)
        self._state = _Values(
            address(numbers),
            None if scales is None else address(scales),
            _DTYPES.index(numbers.dtype.str[1:]),
            *numbers.shape[1:],
        )
        self.at = ctypes.addressof(self._state)
        self._width = numbers.shape[1] * numbers.shape[3]

    def check_width(self, width: int) -> None:
        """Raise ValueError unless Hk * D is ``width``."""
        if self._width != width:
            raise ValueError(
                f"values must have Hk * D = {width} numbers a token, got {self._width}"
            )


class Missing(NamedTuple):
    """Frames whose row is not known."""

    places: NDArray[np.int64]  # (m,) among the segments
    pages: NDArray[np.int32]  # (n,) of these, in order


@uncopied("native calls know where it is")
class PageRows:
    """A row of numbers for every page of a pool; a segment's is that of its first page, the mean of
    its tokens' values."""

    def __init__(
        self,
        times_taken: NDArray[np.int64],  # (num_pages,) of the ledger
        width: int,  # > 0
        *,
        num_axes: int,  # position axes, which say where in a segment its kind is
        frame_kind: int,
    ) -> None:
        num_pages = times_taken.size
        self._rows = np.zeros((num_pages, width), dtype=np.float32)
        self._times_taken = times_taken
        self._known = np.full(num_pages, -1, dtype=np.int64)
        self._since = _Since(address(times_taken), address(self._known))
        self._since_at = ctypes.addressof(self._since)
        self._width, self._num_axes, self._frame_kind = width, num_axes, frame_kind
        self._places = np.empty(num_pages, dtype=np.int64)  # scratch
        self._pages = np.empty(num_pages, dtype=np.int32)  # scratch
        self._num_pages = ctypes.c_int64()
        self._rows_at = address(self._rows)
        self._scratch_at = (
            address(self._places),
            address(self._pages),
            ctypes.addressof(self._num_pages),
        )
        self._first_rows = native_call(
            "first_rows", [_P, *[_N] * 3, *[_P] * 4, _N, ctypes.c_int32, *[_P] * 4], _N
        )
        self._mean_rows = native_call("mean_rows", [_P, _N, _P, _N, _P, _P, _P, _P], None)

    def of(
        self,
        segments: bytes,
        num_segments: int,
        pages: NDArray[np.int32],  # (n,) of the segments, in order
        values: PageValues | None,  # of the pool, where they are in memory
    ) -> tuple[NDArray[np.float32], Missing | None]:
        """(num_segments, width) rows, a copy, NaN where none is known; those of frames are made
        from ``values`` if need be. And what is missing still."""
        if values is not None:
            values.check_width(self._width)
        out = np.empty((num_segments, self._width), dtype=np.float32)
        num_missing = self._first_rows(
            segments,
            len(segments) // max(num_segments, 1),
            self._num_axes,
            num_segments,
            pages.tobytes(),
            None if values is None else values.at,
            self._since_at,
            self._rows_at,
            self._width,
            self._frame_kind,
            address(out),
            *self._scratch_at,
        )
        if not num_missing:
            return out, None
        return out, Missing(self._places[:num_missing], self._pages[: self._num_pages.value])

    def make(
        self,
        segments: bytes,
        num_segments: int,
        missing: Missing,
        values: PageValues,  # of ``missing.pages``, in this order
    ) -> None:
        """Make the rows that ``of`` has just said are missing."""
        values.check_width(self._width)
        self._mean_rows(
            segments,
            len(segments) // max(num_segments, 1),
            missing.places.tobytes(),
            missing.places.size,
            missing.pages.tobytes(),
            values.at,
            self._since_at,
            self._rows_at,
        )
