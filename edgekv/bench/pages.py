"""``edgekv bench pages``: what a page size costs on a given model, and which one to choose.

A live context as long as the model's window is laid out in pages of each size: the pinned start,
frames, one question. Measured are the share of slots that hold a token, the bytes of its page
table, what a dropped frame gives back, and the time of a decoded token and of a frame over it. The
kernel's time is what a chunk of 64 tokens takes longer over the full context than over the pinned
start alone. One thread; sizes take turns; a time is the least of all, as a busy machine only ever
adds to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
from rich.console import Console
from rich.progress import track

from edgekv.bench.report import BenchResult, machine
from edgekv.bundle import Bundle
from edgekv.cache import PageCache, Sequence
from edgekv.config import KVDtype, KVGeometry
from edgekv.executors import DecoderExecutor, choose_device, create_decoder
from edgekv.inputs import InputEncoder
from edgekv.types import SegmentKind

SIZES = (8, 16, 32, 64, 128)  # tokens
MAX_FRAME_WASTE = 0.06  # of a frame's slots
SLOWER = 1.05  # a size this much slower than the fastest is still as fast
_QUESTION, _RESERVE, _CHUNK = 24, 128, 64  # tokens
_ROUNDS, _REPEATS = 3, 15


@dataclass(frozen=True, slots=True)
class Context:
    """Tokens of a full live context."""

    start: int
    frame: int
    num_frames: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What one page size costs; ``_LEGEND`` says what of."""

    utilisation: float
    frame_waste: float
    table_bytes: int
    eviction_bytes: int
    decode_ms: float
    kernel_ms: float
    frame_ms: float


_LEGEND = {
    "": "page sizes, in tokens",
    "utilisation": "share of the full context's slots that hold a token, 1 = all",
    "frame_waste": "share of a frame's slots that hold none, 0 = none",
    "table_bytes": "the full context's page table, as each step sends it",
    "eviction_bytes": "of the pool, that a dropped frame gives back",
    "decode_ms": "milliseconds of one decoded token over the full context",
    "kernel_ms": f"milliseconds that the full context adds to a chunk of {_CHUNK} tokens",
    "frame_ms": "milliseconds of one frame's prefill over the full context",
}


def run(
    path: Path, *, sizes: tuple[int, ...] = SIZES, kv_dtype: KVDtype | None = None, console: Console
) -> BenchResult:
    """Measure every size on the bundle's decoder. Raises BundleError, ExecutorError."""
    bundle = Bundle.open(path)
    inputs = InputEncoder(bundle, None)
    start = max(len(inputs.start_ids(None)), 1)
    frame = inputs.tokens_per_frame if bundle.image is not None else _QUESTION
    num_frames = max((bundle.manifest.max_context_tokens - start - _RESERVE) // frame, 1)
    context = Context(start, frame, num_frames)
    best: dict[int, Cost] = {}
    turns = [size for _ in range(_ROUNDS) for size in sizes]
    for size in track(turns, "page sizes", console=console, transient=True):
        cost = _measure(bundle, size, kv_dtype, context)
        best[size] = _faster(best.get(size, cost), cost)
    chosen = recommend(best)
    figures: dict[str, float] = {}
    for size, cost in best.items():
        figures |= {f"{size}_{name}": getattr(cost, name) for name in Cost.__slots__}
    figures["recommended_page_size"] = chosen
    console.print(
        f"{bundle.manifest.name}: {context.num_frames} frames of {frame} tokens; "
        f"pages of {chosen} tokens recommended, the bundle has {bundle.geometry.page_size}"
    )
    baseline = {"page_size": bundle.geometry.page_size}
    rows = tuple(str(size) for size in sizes)
    return BenchResult("pages", machine(), figures, baseline, {}, rows=rows, legend=_LEGEND)


def recommend(costs: Mapping[int, Cost]) -> int:
    """The page size to take: frames waste at most 6 %, nearly as fast as the fastest such size, the
    best used of those, and of equals the one with the smallest table."""
    fine = {size: cost for size, cost in costs.items() if cost.frame_waste <= MAX_FRAME_WASTE}
    if not fine:
        least = min(cost.frame_waste for cost in costs.values())
        fine = {size: cost for size, cost in costs.items() if cost.frame_waste == least}
    fastest = min(cost.decode_ms + cost.frame_ms for cost in fine.values())
    quick = [s for s, c in fine.items() if c.decode_ms + c.frame_ms <= SLOWER * fastest]
    return max(quick, key=lambda size: (round(fine[size].utilisation, 3), size))


def _faster(one: Cost, other: Cost) -> Cost:
    names = ("decode_ms", "kernel_ms", "frame_ms")
    return replace(one, **{name: min(getattr(one, name), getattr(other, name)) for name in names})


def _measure(bundle: Bundle, size: int, kv_dtype: KVDtype | None, context: Context) -> Cost:
    geometry = replace(bundle.geometry_for(kv_dtype), page_size=size)
    frame_pages = geometry.pages_for(context.frame)
    num_pages = 2 * geometry.pages_for(context.start) + 2 * geometry.pages_for(_QUESTION)
    num_pages += context.num_frames * frame_pages + geometry.pages_for(max(_CHUNK, context.frame))
    cache = PageCache(geometry, num_pages)
    decoder = create_decoder(
        choose_device("cpu"),
        bundle.decoder_path_for(kv_dtype),
        geometry,
        num_pages=num_pages,
        num_threads=1,  # so that sizes differ and the machine's other work does not
    )
    try:
        short, full = cache.open(), cache.open()
        for sequence in (short, full):
            _lay_out(cache, sequence, "system", context.start)
        for _ in range(context.num_frames):
            _lay_out(cache, full, "frame", context.frame)
        hidden = bundle.manifest.hidden_size
        decode_ms = _time(decoder, cache, full, 1, hidden)
        chunk_ms, alone_ms = (_time(decoder, cache, s, _CHUNK, hidden) for s in (full, short))
        frame_ms = _time(decoder, cache, full, context.frame, hidden)
    finally:
        decoder.close()
    _lay_out(cache, full, "text", _QUESTION)
    return Cost(
        utilisation=full.num_tokens / (full.num_pages * size),
        frame_waste=1 - context.frame / (frame_pages * size),
        table_bytes=_table_bytes(geometry, full.num_pages),
        eviction_bytes=frame_pages * geometry.page_bytes,
        decode_ms=decode_ms,
        kernel_ms=max(chunk_ms - alone_ms, 0.0),
        frame_ms=frame_ms,
    )


def _lay_out(cache: PageCache, sequence: Sequence, kind: SegmentKind, num_tokens: int) -> None:
    """Give tokens their places; what the pools hold there does not change a time."""
    with cache.begin_step([sequence.append(kind, num_tokens)]) as step:
        step.commit()


def _time(
    decoder: DecoderExecutor, cache: PageCache, sequence: Sequence, num_tokens: int, hidden: int
) -> float:
    """Least milliseconds of a step with ``num_tokens`` more tokens, which are not kept."""
    embeds = np.zeros((num_tokens, hidden), np.float32)
    times = np.zeros(_REPEATS)
    for k in range(_REPEATS):
        with cache.begin_step([sequence.append("text", num_tokens)]) as step:
            began = perf_counter()
            decoder.run(embeds, step.tables, np.array([num_tokens - 1]))
            times[k] = 1e3 * (perf_counter() - began)
    return float(times.min())


def _table_bytes(geometry: KVGeometry, num_pages: int) -> int:
    return num_pages * (2 + geometry.num_rope_axes) * np.dtype(np.int32).itemsize
