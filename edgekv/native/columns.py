"""What is known of pages, put together by segment, in one native call each.

A page that was taken anew since something was known of it holds something else: nothing is known of
it then, and nobody has to say so (``Ledger.times_taken``).
Owns: the numbers, a row for every page, and the binding of plugins/cpu/columns.h.
Does not know: what is known of pages, and what for. ``segments`` are rows of ``segment_dtype``, as
    bytes, and ``pages`` their pages, int32, as bytes: a native call takes those as they are; where
    an array is must be found out.
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
_SEGMENTS = [_P, _N, _N, _P]


class _Numbers(ctypes.Structure):
    """``EdgekvNumbers``."""

    _fields_ = (("times_taken", _P), ("known", _P), ("numbers", _P), ("factor", ctypes.c_double))
    factor: float


class _Values(ctypes.Structure):
    """``EdgekvValues``."""

    _fields_ = (
        ("numbers", _P),
        ("scales", _P),
        *((name, _N) for name in ("dtype", "num_heads", "page_size", "head_dim")),
    )


class _Rows(ctypes.Structure):
    """``EdgekvRows``."""

    _fields_ = (
        *((name, _P) for name in ("times_taken", "known", "rows")),
        *((name, _N) for name in ("width", "num_axes", "frame_kind")),
        ("values", _P),
    )
    values: int | None


@uncopied("native calls know where it is")
class PageNumbers:
    """A number for every page of a pool, 0 at first; a segment's is the sum over its pages, times
    ``factor``."""

    def __init__(self, times_taken: NDArray[np.int64]) -> None:  # (num_pages,) of the ledger
        self.numbers = np.zeros(times_taken.size, dtype=np.float64)  # (num_pages,)
        self._times_taken = times_taken
        self._known = np.full(times_taken.size, -1, dtype=np.int64)
        arrays = (times_taken, self._known, self.numbers)
        self._state = _Numbers(*(address(array) for array in arrays), 1.0)
        self.at = ctypes.addressof(self._state)
        self._sum_pages = native_call("sum_pages", [*_SEGMENTS, _P, _P], None)

    @property
    def factor(self) -> float:
        return self._state.factor

    @factor.setter
    def factor(self, factor: float) -> None:
        self._state.factor = factor

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

    def of(self, segments: bytes, num_segments: int, pages: bytes) -> NDArray[np.float64]:
        """(num_segments,) sums, times ``factor``."""
        out = np.empty(num_segments, dtype=np.float64)
        size = len(segments) // max(num_segments, 1)
        self._sum_pages(segments, size, num_segments, pages, self.at, address(out))
        return out


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
        self.width = numbers.shape[1] * numbers.shape[3]


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
        frame_kind: int,  # what has rows
    ) -> None:
        num_pages = times_taken.size
        self.width = width
        self._rows = np.zeros((num_pages, width), dtype=np.float32)
        self._known = np.full(num_pages, -1, dtype=np.int64)
        self._times_taken = times_taken
        arrays = (times_taken, self._known, self._rows)
        at = (address(array) for array in arrays)
        self._state = _Rows(*at, width, num_axes, frame_kind, None)
        self.at = ctypes.addressof(self._state)
        self._make_rows = native_call("make_rows", [*_SEGMENTS, *[_P] * 4], _N)
        self._mean_rows = native_call("mean_rows", [_P, _N, _P, _N, _P, _P, _P], None)
        self._copy_rows = native_call("copy_rows", [*_SEGMENTS, _P, _P], None)

    def make_from(self, values: PageValues | None) -> None:
        """Make rows of these values of the pool, which the caller keeps as long as rows are made;
        None: they are not in memory."""
        if values is not None:
            self._check_width(values)
        self._state.values = None if values is None else values.at

    def make(self, segments: bytes, num_segments: int, pages: bytes) -> Missing | None:
        """Make the rows of frames that have none: what is missing still."""
        places = np.empty(num_segments, dtype=np.int64)
        found = np.empty(len(pages) // 4, dtype=np.int32)
        num_pages = _N()
        num_missing = self._make_rows(
            segments,
            len(segments) // max(num_segments, 1),
            num_segments,
            pages,
            self.at,
            address(places),
            address(found),
            ctypes.addressof(num_pages),
        )
        if not num_missing:
            return None
        return Missing(places[:num_missing], found[: num_pages.value])

    def fill(
        self,
        segments: bytes,
        num_segments: int,
        missing: Missing,
        values: PageValues,  # of ``missing.pages``, in this order
    ) -> None:
        """Make the rows that are missing."""
        self._check_width(values)
        self._mean_rows(
            segments,
            len(segments) // max(num_segments, 1),
            missing.places.tobytes(),
            missing.places.size,
            missing.pages.tobytes(),
            self.at,
            values.at,
        )

    def of(self, segments: bytes, num_segments: int, pages: bytes) -> NDArray[np.float32]:
        """(num_segments, width) rows, a copy; NaN where none is known."""
        out = np.empty((num_segments, self.width), dtype=np.float32)
        size = len(segments) // max(num_segments, 1)
        self._copy_rows(segments, size, num_segments, pages, self.at, address(out))
        return out

    def _check_width(self, values: PageValues) -> None:
        if values.width != self.width:
            raise ValueError(
                f"values must have Hk * D = {self.width} numbers a token, got {values.width}"
            )
