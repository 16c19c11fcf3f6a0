"""The segments that leave first by a rating, in one native call.

Owns: the binding of ``edgekv_thin_out`` (plugins/cpu/thinning.h).
Does not know: what the rating is made of, which segments are offered.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.native.library import native_call

_P, _N = ctypes.c_void_p, ctypes.c_int64


def thin_out(
    segments: bytes,  # rows of ``segment_dtype``
    num_segments: int,
    num_past: int,
    num_pages: int,
    pages: NDArray[np.int32] | None,  # (num_segments,) that each gives back, None: all that it has
    worth: NDArray[np.float64] | None,  # (num_segments,)
    vectors: NDArray[np.float32] | None,  # (num_segments, width)
    by_gap: bool,
) -> tuple[NDArray[np.int64], int]:
    """Which of the first ``num_past`` segments leave for ``num_pages``: (k,) ascending, and the
    pages that these do not give back. Raises ValueError for columns of another length."""
    out = (_N * (num_past + 1))()
    at = ctypes.addressof(out)
    num_gone = _thin_out()(
        segments,
        len(segments) // max(num_segments, 1),
        num_segments,
        num_past,
        None if pages is None else _bytes(pages, np.int32, num_segments),
        None if worth is None else _bytes(worth, np.float64, num_segments),
        None if vectors is None else _bytes(vectors, np.float32, num_segments),
        0 if vectors is None else vectors.shape[1],
        by_gap,
        num_pages,
        at + ctypes.sizeof(_N),
        at,
    )
    if num_gone < 0:
        raise MemoryError(f"no memory to choose among {num_segments} segments")
    gone = np.frombuffer(memoryview(out), np.int64, num_gone, ctypes.sizeof(_N))
    return gone, out[0]


def _bytes(column: NDArray[Any], dtype: type, num_segments: int) -> bytes:
    """What a native call takes as it is: where an array is must be found out."""
    if len(column) != num_segments:
        raise ValueError(f"got {len(column)} numbers or vectors for {num_segments} segments")
    return column.astype(dtype, copy=False).tobytes()


@cache
def _thin_out() -> Callable[..., int]:
    return native_call("thin_out", [_P, *[_N] * 3, *[_P] * 3, _N, ctypes.c_int32, _N, _P, _P], _N)
