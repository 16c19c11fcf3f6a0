"""The segments that leave first by a rating, in one native call.

Owns: the binding of ``edgekv_thin_out`` (plugins/cpu/thinning.h).
Does not know: what the rating is for.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgekv.native.columns import PageNumbers, PageRows
from edgekv.native.library import native_call
from edgekv.native.memory import address
from edgekv.uncopied import uncopied

_P, _N = ctypes.c_void_p, ctypes.c_int64
_NO_MEMORY, _UNREAD = -1, -2


class UnreadError(Exception):
    """Rows are missing, and what they are made of is not in memory."""


class Offer(Protocol):
    """Segments to choose from: those from ``first`` on, n of them. Exists so that this need not
    know of tables."""

    memory: bytes  # rows of ``segment_dtype``
    num_all: int  # of them
    first: int
    pages: bytes | None  # int32, of all of them, in order, where they are known
    given_pages: NDArray[np.int32] | None  # (n,) that each gives back, None: all that it has


def choose(
    offer: Offer,
    num_past: int,
    num_pages: int,
    worth: NDArray[np.float64] | None,  # (n,)
    heat: PageNumbers | None,
    looks: PageRows | NDArray[np.float32] | None,  # (n, width)
    by_gap: bool,
) -> tuple[NDArray[np.int64], int]:
    """Which of the first ``num_past`` leave for ``num_pages``: (k,) ascending, and the pages that
    these do not give back. Raises ValueError for columns of another length, UnreadError."""
    memory, first, num_all = offer.memory, offer.first, offer.num_all
    given, num_offered = offer.given_pages, num_all - first
    vectors, width, rows = None, 0, None
    if isinstance(looks, PageRows):
        rows = looks.at
    elif looks is not None:
        vectors, width = _bytes(looks, np.float32, num_offered), looks.shape[1]
    scratch = _scratch
    if num_past >= scratch.out.size:
        scratch.take(2 * num_past)
    out, at = scratch.out, scratch.at
    num_gone = _thin_out()(
        memory,
        len(memory) // num_all if num_all else 0,
        num_all,
        offer.pages,
        first,
        num_past,
        None if given is None else _bytes(given, np.int32, num_offered),
        None if worth is None else _bytes(worth, np.float64, num_offered),
        None if heat is None else heat.at,
        vectors,
        width,
        rows,
        by_gap,
        num_pages,
        at + out.itemsize,
        at,
    )
    if num_gone == _UNREAD:
        raise UnreadError
    if num_gone == _NO_MEMORY:
        raise MemoryError(f"no memory to choose among {num_offered} segments")
    return out[1 : 1 + num_gone].copy(), int(out[0])


@uncopied("native calls know where it is")
class _Scratch(threading.local):
    """Memory whose place is known, for each thread that chooses."""

    def __init__(self) -> None:
        self.take(128)

    def take(self, num_places: int) -> None:
        out = np.empty(num_places, dtype=np.int64)
        self.out, self.at = out, address(out)  # both or none


_scratch = _Scratch()


def _bytes(column: NDArray[Any], dtype: type, num_offered: int) -> bytes:
    """What a native call takes as it is: where an array is must be found out."""
    if len(column) != num_offered:
        raise ValueError(
            f"what segments are rated by must be (n,) for {num_offered} segments, got {len(column)}"
        )
    return column.astype(dtype, copy=False).tobytes()


@cache
def _thin_out() -> Callable[..., int]:
    return native_call(
        "thin_out",
        [_P, _N, _N, _P, _N, _N, *[_P] * 4, _N, _P, ctypes.c_int32, _N, _P, _P],
        _N,
    )
