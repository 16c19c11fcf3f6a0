"""``edgekv bench soak``: a long life with drawn pictures, and what it leaves behind.

One process lives through all frames, those of every session counted. At its end a fresh process
begins the same life, and both run in turns, a block of frames each: whatever disturbs the machine
disturbs both, so the ratio of their times says what the long life has cost. Memory is anonymous and
swapped memory, sampled after a warm-up.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress, track

from edgekv.bench.drawn_model import drawn_model
from edgekv.bench.report import BenchResult, machine
from edgekv.bench.soak_load import SoakLoad
from edgekv.memory import anonymous_bytes

NUM_PAGES = 72  # fewer than the live session and two guests could fill
MAX_GROWTH_MIB, MAX_SLOWDOWN = 1.0, 1.05
_SAMPLE_EVERY = 250  # frames
_WARM_UP_FRAMES, _WARM_UP_SHARE = 5_000, 4  # or a quarter of a short soak
_BLOCK_FRAMES, _NUM_BLOCKS = 50, 40  # at the end, in each process


def run(
    path: Path, *, num_frames: int, num_blocks: int = _NUM_BLOCKS, console: Console
) -> BenchResult:
    """Live through ``num_frames``, then compare with a fresh process for ``num_blocks``."""
    with tempfile.TemporaryDirectory() as folder:
        model, cache = drawn_model(path, num_pages=NUM_PAGES)
        with model:
            load = SoakLoad(model, cache, Path(folder))
            times_s, growth = _live(load, num_frames, console)
            long_s, fresh_s = _in_turns(load, path, num_blocks, console)
            load.close()
            figures = _figures(load, times_s, long_s)
            figures["anonymous_growth_mib"] = growth
            figures["pages_lost"] = float(cache.counts.live + cache.counts.in_flight)
            figures["end_over_fresh"] = float(np.median(long_s) / np.median(fresh_s))
    return BenchResult(
        "soak",
        machine(),
        figures,
        {"run": "the same life in a fresh process", "end_ms": float(np.median(fresh_s)) * 1e3},
        {
            "anonymous_growth_mib": ("<=", MAX_GROWTH_MIB),
            "pages_lost": ("==", 0.0),
            "end_over_fresh": ("<=", MAX_SLOWDOWN),
        },
    )


def _live(load: SoakLoad, num_frames: int, console: Console) -> tuple[NDArray[np.float32], float]:
    """(n,) seconds of the live session's frames, and MiB by which memory grew."""
    times_s = np.zeros(num_frames, np.float32)
    times_s.fill(0.0)  # touched now, so that it does not look like growth
    warm = min(_WARM_UP_FRAMES, num_frames // _WARM_UP_SHARE)
    lowest, highest = float("inf"), 0.0
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("frames", total=num_frames)
        while load.num_frames < num_frames:
            k = load.num_live_frames
            times_s[k] = load.frame()
            if k % _SAMPLE_EVERY == 0:
                progress.update(task, completed=load.num_frames)
                held = anonymous_bytes() if load.num_frames > warm else None
                if held is not None:
                    lowest, highest = min(lowest, held), max(highest, held)
    return times_s[: load.num_live_frames], max(highest - lowest, 0.0) / 2**20


def _in_turns(
    load: SoakLoad, path: Path, num_blocks: int, console: Console
) -> tuple[list[float], list[float]]:
    """Seconds a frame, here and in a fresh process that begins now, block by block in turns."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_fresh, args=(there, path))
    process.start()
    long_s: list[float] = []
    fresh_s: list[float] = []
    with closing(here):
        there.close()
        here.recv()  # its context is full too
        for _ in track(range(num_blocks), "in turns", console=console, transient=True):
            long_s += [load.frame() for _ in range(_BLOCK_FRAMES)]
            here.send(_BLOCK_FRAMES)
            fresh_s += here.recv()
    process.join()
    return long_s, fresh_s


def _fresh(connection: Connection, path: Path) -> None:
    """The other process: lives on by as many frames as it is told to, until nobody asks."""
    with tempfile.TemporaryDirectory() as folder:
        model, cache = drawn_model(path, num_pages=NUM_PAGES)
        with model, connection:
            load = SoakLoad(model, cache, Path(folder), seed=1)
            for _ in range(10 * _BLOCK_FRAMES):
                load.frame()
            connection.send(None)
            while True:
                try:
                    count = connection.recv()
                except EOFError:
                    break
                connection.send([load.frame() for _ in range(count)])
            load.close()


def _figures(load: SoakLoad, times_s: NDArray[np.float32], long_s: list[float]) -> dict[str, float]:
    tenth = max(len(times_s) // 10, 1)
    figures = {
        "num_frames": float(load.num_frames),
        "num_live_frames": float(load.num_live_frames),
        "start_ms": float(np.median(times_s[:tenth])) * 1e3,
        "last_tenth_ms": float(np.median(times_s[-tenth:])) * 1e3,
        "end_ms": float(np.median(long_s)) * 1e3,
        "num_steps_checked": float(load.audit.num_checks),
        "allocation_p50_us": load.audit.allocation.percentile_ms(50) * 1e3,
        "allocation_p99_us": load.audit.allocation.percentile_ms(99) * 1e3,
    }
    return figures | {f"num_{name}": float(n) for name, n in sorted(load.done.items())}
