"""``edgekv bench alloc``: batches of pages against two plain allocators, and what pages waste.

The load: batches of 64 pages come and go, small runs of 1 to 12 (questions) come and go between
them, and whoever leaves is drawn at random. All three allocators get the same load, in turns of 100
batches, so that a busy machine disturbs them alike. The whole is run five times: percentiles are of
the quietest run, for each allocator its own, and ``..._all_runs`` of all five together.

Beside it, how much of what is taken holds tokens: sessions at different stages with a question
each, in pages and in reservations of a whole window.

``mixed_...`` are of whole sessions that come, watch, are asked and leave (``mixed_load``), in pages
and in contiguous runs. Their life is the same each of the five times, so that an allocation's time
is the least of five: what the machine disturbs once it does not disturb five times. What is left is
how much longer the mechanism itself takes for some allocations than for others; ``..._as_met`` is
with the disturbances. The fewer slots are wasted and the smaller the spread, the better.

``copy_...`` are pages copied in all pools of a model, by one native call and by NumPy.
``frame_...`` is what the host does for one frame of 5 pages or of 64 (``frame_life``).
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import numpy as np

from edgekv.bench.frame_life import frame_life
from edgekv.bench.mixed_load import InPages, InRuns, MixedLoad
from edgekv.bench.page_copies import page_copies
from edgekv.bench.report import BenchResult, machine
from edgekv.bench.rivals import FirstFit, OrderedDictLRU
from edgekv.cache import PageAllocator, PageCache, Sequence
from edgekv.config import KVGeometry

BATCH = 64  # pages
NUM_PAGES = 4096
NUM_BATCHES, NUM_RUNS = 5_000, 5
TURN = 100  # batches
MAX_P99_US = 10.0
MIN_UTILISATION = 0.95
NUM_EVENTS = 4_000  # of a mixed life
MIXED_PAGES = 1_400  # as many as that life takes at most, and hardly more
MAX_MIXED_SPREAD = 3.0

_PAGE_SIZE = 16
_FRAME_TOKENS = 77  # 64 of a picture, 13 of the separators and the time around it
_WINDOW_FRAMES = 100
_SYSTEM_TOKENS, _QUESTION_TOKENS = 45, 30


class Load:
    """One allocator under the common load; notes what each batch takes."""

    def __init__(
        self, allocate: Callable[[int], Any], release: Callable[[Any, int], None], num_batches: int
    ) -> None:
        self._allocate, self._release = allocate, release
        self._held: list[tuple[Any, int]] = []
        self._num_held = 0  # pages
        self._random = random.Random(0)  # noqa: S311 - to be repeatable, not secret
        self.allocate_ns = np.zeros(num_batches, dtype=np.int64)  # (num_batches,)
        self.release_ns = np.zeros(num_batches, dtype=np.int64)  # (num_batches,)
        self.num_gaps_too_small = 0  # free slots were enough, no gap was

    def batch(self, number: int, num_held_most: int) -> None:
        """One timed batch comes, one timed batch goes, and small runs around them."""
        self._take(self._random.randint(1, 12))
        while self._num_held + BATCH > num_held_most:
            self._let_one_go()
        start = perf_counter_ns()
        got = self._allocate(BATCH)
        self.allocate_ns[number] = perf_counter_ns() - start
        while got is None:  # room enough, but no gap
            self.num_gaps_too_small += 1
            self._let_one_go()
            got = self._allocate(BATCH)
        start = perf_counter_ns()
        self._release(got, BATCH)
        self.release_ns[number] = perf_counter_ns() - start
        self._take(BATCH)

    def _take(self, size: int) -> None:
        got = self._allocate(size)
        if got is not None:
            self._held.append((got, size))
            self._num_held += size

    def _let_one_go(self) -> None:
        which = self._random.randrange(len(self._held))
        self._held[which], self._held[-1] = self._held[-1], self._held[which]
        got, size = self._held.pop()
        self._release(got, size)
        self._num_held -= size


def run(
    *,
    num_batches: int = NUM_BATCHES,
    num_runs: int = NUM_RUNS,
    num_events: int = NUM_EVENTS,
) -> BenchResult:
    """Latency of a batch and utilisation, each against its baselines."""
    with _no_collection():
        runs = [_loaded(num_batches) for _ in range(num_runs)]
    figures: dict[str, float] = {}
    baseline: dict[str, str | float] = {}
    for rival in runs[0]:
        latencies = _latency([loads[rival] for loads in runs])
        if rival:
            baseline |= {f"{rival}.{figure}": value for figure, value in latencies.items()}
        else:
            figures |= latencies
    figures["utilisation"], baseline["reserved_windows.utilisation"] = _utilisation()
    with _no_collection():
        mixed, mixed_in_runs = _mixed(num_events, num_runs)
        copies, copies_in_numpy = page_copies(num_turns=num_batches // 10)
        frames = frame_life(num_frames=num_batches // 5)
    figures |= mixed | copies | frames
    baseline |= {f"first_fit.{figure}": value for figure, value in mixed_in_runs.items()}
    baseline |= {f"numpy.{figure}": value for figure, value in copies_in_numpy.items()}
    bounds = {
        "allocate_64_p99_us": ("<=", MAX_P99_US),
        "utilisation": (">=", MIN_UTILISATION),
        "mixed_p99_over_p50": ("<=", MAX_MIXED_SPREAD),
    }
    return BenchResult("alloc", machine(), figures, baseline, bounds)


def _loaded(num_batches: int) -> dict[str, Load]:
    """One run of the load by allocator; the page allocator's name is empty."""
    pages, extents, lru = PageAllocator(NUM_PAGES), FirstFit(NUM_PAGES), OrderedDictLRU(NUM_PAGES)

    def allocate_pages(size: int) -> Any:
        return pages.allocate(size) if size <= pages.num_free else None

    loads = {
        "": Load(allocate_pages, lambda got, _: pages.release(got), num_batches),
        "first_fit": Load(extents.allocate, extents.release, num_batches),
        "ordered_dict_lru": Load(lru.allocate, lambda got, _: lru.release(got), num_batches),
    }
    for start in range(0, num_batches, TURN):
        for load in loads.values():
            for number in range(start, min(start + TURN, num_batches)):
                load.batch(number, NUM_PAGES * 9 // 10)
    return loads


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection in timed stretches, as in ``timeit``."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _latency(runs: list[Load]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for what in ("allocate", "release"):
        times = np.array([getattr(load, f"{what}_ns") for load in runs]) / 1e3  # (runs, batches)
        for percent in (50, 99):
            figures[f"{what}_64_p{percent}_us"] = float(np.percentile(times, percent, axis=1).min())
        figures[f"{what}_64_p99_us_all_runs"] = float(np.percentile(times, 99))
    return figures | {"gaps_too_small": float(sum(load.num_gaps_too_small for load in runs))}


def _utilisation() -> tuple[float, float]:
    """Valid tokens / slots taken: in pages, and with a whole window reserved for each context."""
    geometry = KVGeometry(1, 1, 1, _PAGE_SIZE, "float32")
    window = _SYSTEM_TOKENS + _WINDOW_FRAMES * _FRAME_TOKENS + _QUESTION_TOKENS
    cache = PageCache(geometry, 8 * geometry.pages_for(window))
    contexts: list[Sequence] = []
    for quarter in range(1, 5):  # of a window
        live = cache.open()
        _add(live, "system", _SYSTEM_TOKENS)
        for _ in range(_WINDOW_FRAMES * quarter // 4):
            _add(live, "frame", _FRAME_TOKENS)
        question = live.fork()
        _add(question, "text", _QUESTION_TOKENS)
        contexts += [live, question]
    num_tokens = sum(context.num_tokens for context in contexts)
    return cache.utilisation(), num_tokens / (len(contexts) * window)


def _add(sequence: Sequence, kind: Any, num_tokens: int) -> None:
    with_tokens = sequence.append(kind, num_tokens)
    sequence.commit(with_tokens)


def _mixed(num_events: int, num_runs: int) -> tuple[dict[str, float], dict[str, float]]:
    """The mixed life in pages and in contiguous runs."""
    times: tuple[list[Any], list[Any]] = ([], [])
    for _ in range(num_runs):
        ways: tuple[InPages, InRuns] = (
            InPages(MIXED_PAGES * _PAGE_SIZE),
            InRuns(MIXED_PAGES * _PAGE_SIZE),
        )
        load = MixedLoad(ways)
        shares = np.array([load.live(TURN) for _ in range(num_events // TURN)])  # (turns, 2)
        times[0].append(ways[0].times_ns)
        times[1].append(ways[1].times_ns)
    waste = 1 - shares.mean(axis=0)
    return (
        _spread(np.array(times[0]) / 1e3, float(waste[0]), ways[0].num_refused),
        _spread(np.array(times[1]) / 1e3, float(waste[1]), ways[1].num_refused),
    )


def _spread(times_us: Any, waste: float, num_refused: int) -> dict[str, float]:
    """Figures of (runs, n) times of the same n allocations."""
    p50, p99 = np.percentile(times_us.min(axis=0), (50, 99))
    met50, met99 = np.percentile(times_us, (50, 99))
    return {
        "mixed_p50_us": float(p50),
        "mixed_p99_us": float(p99),
        "mixed_p99_over_p50": float(p99 / p50),
        "mixed_p99_over_p50_as_met": float(met99 / met50),
        "mixed_spread_us": float(p99 - p50),
        "mixed_waste": waste,
        "mixed_refused": float(num_refused),
    }
