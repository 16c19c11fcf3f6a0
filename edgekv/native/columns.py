"""What is known of pages, put together by segment, in one native call each.

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


@uncopied("native calls know where it is")
class PageNumbers:
    """A number for every page of a pool; a segment's is the sum over its pages."""

    def __init__(self, num_pages: int) -> None:
        self.numbers = np.zeros(num_pages, dtype=np.float64)
        self._sums = np.empty(num_pages, dtype=np.float64)  # scratch
        self._numbers_at, self._sums_at = address(self.numbers), address(self._sums)
        self._sum_pages = native_call("sum_pages", [_P, _N, _N, _P, _P, ctypes.c_double, _P], None)

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


class Rows(NamedTuple):
    """Of segments: what is known, and what is not."""

    rows: NDArray[np.float32]  # (num_segments, width)
    places: NDArray[np.int64]  # (m,) of frames whose row is not known
    pages: NDArray[np.int32]  # (n,) of these


@uncopied("native calls know where it is")
class PageRows:
    """A row of numbers for every page of a pool, NaN = not known; a segment's is that of its first
    page, the mean of its tokens' values."""

    def __init__(self, num_pages: int, width: int, *, num_axes: int, frame_kind: int) -> None:
        # ``width`` > 0; position axes say where in a segment its kind is
        self.rows = np.full((num_pages, width), np.nan, dtype=np.float32)
        self._width, self._num_axes, self._frame_kind = width, num_axes, frame_kind
        self._places = np.empty(num_pages, dtype=np.int64)  # scratch
        self._pages = np.empty(num_pages, dtype=np.int32)  # scratch
        self._num_pages = ctypes.c_int64()
        self._rows_at = address(self.rows)
        self._scratch_at = (
            address(self._places),
            address(self._pages),
            ctypes.addressof(self._num_pages),
        )
        self._first_rows = native_call(
            "first_rows", [_P, _N, _N, _N, _P, _P, _P, _N, ctypes.c_int32, _P, _P, _P, _P], _N
        )
        self._mean_rows = native_call("mean_rows", [_P, _N, _P, _N, _P, _P, _P], None)

    def of(
        self,
        segments: bytes,
        num_segments: int,
        pages: NDArray[np.int32],  # (n,) of the segments, in order
        values: PageValues | None,  # of the pool, where they are in memory
    ) -> Rows:
        """The rows of segments, a copy; those that are missing are made from ``values``."""
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
            self._rows_at,
            self._width,
            self._frame_kind,
            address(out),
            *self._scratch_at,
        )
        return Rows(out, self._places[:num_missing], self._pages[: self._num_pages.value])

    def make(
        self,
        segments: bytes,
        num_segments: int,
        missing: Rows,
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
            self._rows_at,
        )
