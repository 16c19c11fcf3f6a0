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
from edgekv.native.memory import address

_P, _N = ctypes.c_void_p, ctypes.c_int64


def thin_out(
    segments: NDArray[np.void],  # (n,) fields as in ``segment_dtype``
    num_past: int,
    num_pages: int,
    *,
    pages: NDArray[np.int32] | None,  # (n,) that each gives back, None: all that it has
    worth: NDArray[np.float64] | None,  # (n,)
    products: NDArray[np.float32] | None,  # (n, n) of their vectors
    by_gap: bool,
) -> tuple[NDArray[np.int64], int]:
    """Which of the first ``num_past`` segments leave for ``num_pages``: (k,) ascending, and the
    pages that these do not give back."""
    segments = np.ascontiguousarray(segments)
    arrays = [_whole(pages, np.int32), _whole(worth, np.float64), _whole(products, np.float32)]
    out = np.empty(num_past + 1, dtype=np.int64)
    at = address(out)
    num_gone = _thin_out()(
        address(segments),
        segments.itemsize,
        segments.size,
        num_past,
        *(None if array is None else address(array) for array in arrays),
        by_gap,
        num_pages,
        at + out.itemsize,
        at,
    )
    if num_gone < 0:
        raise MemoryError(f"no memory to choose among {segments.size} segments")
    return out[1 : 1 + num_gone], int(out[0])


def _whole(array: NDArray[Any] | None, dtype: type) -> NDArray[Any] | None:
    return None if array is None else np.ascontiguousarray(array, dtype)


@cache
def _thin_out() -> Callable[..., int]:
    return native_call("thin_out", [_P, *[_N] * 3, *[_P] * 3, ctypes.c_int32, _N, _P, _P], _N)
