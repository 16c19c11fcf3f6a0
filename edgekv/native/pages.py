"""Copies of whole pages in all pools of a model at once.

Owns: the binding of ``edgekv_copy_pages`` (plugins/cpu/pages.h).
Guarantees: arrays are checked when the copier is made, ids before anything is written; the same as
    ``pool[target] = pool[source]`` in each pool, in one call.
Does not know: what pages hold, what runs over the pools.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgekv.native.library import native_call
from edgekv.uncopied import uncopied


@uncopied("native calls know where its pools are")
class PageCopier:
    """Copies pages within ``pools``, each (num_pages, …), C-contiguous, of one shape and dtype.

    The pools must live, and stay where they are, as long as the copier is used; it holds them.
    """

    def __init__(self, pools: Sequence[NDArray[np.generic]]) -> None:
        if not pools or any(
            pool.shape != pools[0].shape
            or pool.dtype != pools[0].dtype
            or not pool.flags.c_contiguous
            or not pool.flags.writeable
            for pool in pools
        ):
            raise ValueError(
                "pages are copied in writable C-contiguous pools of one shape and dtype"
            )
        self._pools = tuple(pools)
        self._num_pages = len(pools[0])
        self._page_bytes = pools[0].nbytes // max(self._num_pages, 1)
        self._data = (ctypes.c_void_p * len(pools))(*(pool.ctypes.data for pool in pools))
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._copy = native_call(
            "copy_pages", [pointer, number, number, number, pointer, pointer, number]
        )

    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy pages (n,) -> (n,). Raises ValueError for ids outside the pools, and for a target
        that is named twice or is a source too; nothing is copied then."""
        if not source.dtype == target.dtype == np.int32 or source.shape != target.shape:
            raise ValueError(
                f"pages must be int32 (n,) twice, got {source.dtype} {source.shape} "
                f"and {target.dtype} {target.shape}"
            )
        source, target = np.ascontiguousarray(source), np.ascontiguousarray(target)
        code = self._copy(
            self._data,
            len(self._pools),
            self._num_pages,
            self._page_bytes,
            source.ctypes.data,
            target.ctypes.data,
            source.size,
        )
        if code == 1:
            raise ValueError(f"page ids must be 0 to {self._num_pages - 1}")
        if code == 2:
            raise ValueError("a page that is copied to must be named once, and not be copied from")
