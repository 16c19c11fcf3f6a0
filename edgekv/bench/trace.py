"""``edgekv bench trace``: what leaving the event log on costs a frame, in time and on disk.

The cache's own work for a frame is done over and over without a model, logged and not logged in
turns: the log costs the difference of the fastest rounds. Beside it stands a whole push of the same
model, which that is a share of. One thread, and its processor time: what else runs counts less.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
from rich.console import Console

from edgekv.bench.report import BenchResult, machine
from edgekv.bundle import Bundle
from edgekv.cache import PageCache
from edgekv.inputs import InputEncoder
from edgekv.loading import load
from edgekv.trace import TraceWriter

MAX_BYTES, MAX_SHARE = 64, 0.02  # a frame, and of a push
_NUM_FRAMES, _WINDOW, _BATCH, _NUM_PUSHES = 3000, 24, 4, 60


def run(path: Path, *, num_rounds: int = 9, console: Console) -> BenchResult:
    """Measure on a bundle. Raises BundleError, BudgetError, ExecutorError."""
    bundle = Bundle.open(path)
    if bundle.image is None:
        raise ValueError(f"{bundle.manifest.name} is a text-only model, it takes no frames")
    num_tokens = InputEncoder(bundle, None).tokens_per_frame
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        times = [
            (_stream(bundle, num_tokens), _stream(bundle, num_tokens, log))
            for _ in range(num_rounds)
        ]
        num_bytes = log.stat().st_size
    plain, logged = (1e6 * min(column) / _NUM_FRAMES for column in zip(*times, strict=True))
    push_ms = 1e3 * _push(path)
    figures = {
        "cache_us": logged,
        "log_us": logged - plain,
        "log_bytes": num_bytes / _NUM_FRAMES,
        "push_ms": push_ms,
        "share_of_push": (logged - plain) / 1e3 / push_ms,
    }
    bounds: dict[str, tuple[str, float]] = {
        "log_bytes": ("<=", MAX_BYTES),
        "share_of_push": ("<=", MAX_SHARE),
    }
    console.print(f"{bundle.manifest.name}: {num_tokens} tokens a frame, all figures a frame")
    return BenchResult("trace", machine(), figures, {"cache_us": plain}, bounds)


def _stream(bundle: Bundle, num_tokens: int, log: Path | None = None) -> float:
    """Processor seconds that a cache works for a stream of frames, which leave in batches."""
    pages = bundle.geometry.pages_for(num_tokens)
    cache = PageCache(bundle.geometry, (_WINDOW + 1) * pages)
    writer = None if log is None else TraceWriter(cache, log)
    with cache.open() as sequence:
        began = process_time()
        for k in range(_NUM_FRAMES):
            if sequence.num_segments == _WINDOW:
                sequence.drop(sequence.segment_table().ids[:_BATCH].tolist(), rule="window")
            append = sequence.append("frame", num_tokens, index=k, time_s=k / 2)
            with cache.begin_step([append]) as step:
                step.commit()
        took_s = process_time() - began
        if writer is not None:
            writer.close()
    return took_s


def _push(path: Path) -> float:
    """Processor seconds of one push of a picture that was not seen before, the median."""
    random, times = np.random.default_rng(1), list[float]()
    with (
        load(path, kv_budget=256 * Bundle.open(path).geometry.page_bytes, num_threads=1) as model,
        model.session() as session,
    ):
        for k in range(_NUM_PUSHES):
            picture = random.integers(0, 256, (256, 256, 3), np.uint8)
            began = process_time()
            session.push(picture, k / 2)
            times.append(process_time() - began)
    return median(times)
