"""Copying pages in all pools: one native call against NumPy, for ``bench alloc``.

Both in turns, over the pools of the demo model and of a larger one: (num_pools, num_pages, …).
"""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from edgekv.native.pages import PageCopier

_POOLS = {"demo": (10, 51, 2, 16, 32), "large": (64, 400, 5, 16, 64)}  # float16
_COUNTS = (1, 16)  # pages
_NUM_TURNS = 300


def page_copies(*, num_turns: int = _NUM_TURNS) -> tuple[dict[str, float], dict[str, float]]:
    """Median microseconds, natively and in NumPy, by ``copy_POOLS_COUNT_us``."""
    native: dict[str, float] = {}
    plain: dict[str, float] = {}
    for name, (num_pools, *shape) in _POOLS.items():
        pools = [np.zeros(shape, np.float16) for _ in range(num_pools)]
        copier = PageCopier(pools)
        for count in _COUNTS:
            pages = np.arange(2 * count, dtype=np.int32)
            source, target = pages[:count], pages[count:]
            times = np.zeros((num_turns, 2))
            for turn in range(num_turns):
                began = perf_counter_ns()
                copier.copy(source, target)
                between = perf_counter_ns()
                for pool in pools:
                    pool[target] = pool[source]
                times[turn] = between - began, perf_counter_ns() - between
            figure = f"copy_{name}_{count}_us"
            native[figure], plain[figure] = (np.median(times, axis=0) / 1e3).tolist()
    return native, plain
