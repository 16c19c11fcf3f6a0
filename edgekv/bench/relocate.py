"""``edgekv bench relocate``: relocated pages against keys stored unrotated.

Two runs of the same decoder over the same endless input. One is edgekv's: keys are written once,
rotated, and moved by page shifts. The other is the plain truth: its keys are kept unrotated in
float64 and, before every step, rotated to where they stand now and written into contiguous pages
without shifts. With the same tokens in the context both must give the same logits (design: 1e-4
with float32 pools, 2e-2 with float16).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from edgekv.bench.report import BenchResult, machine
from edgekv.bundle import Bundle
from edgekv.cache import PageCache
from edgekv.config import KVDtype, KVGeometry, Rotation
from edgekv.executors import DecoderExecutor, choose_device, create_decoder
from edgekv.generate import Runner
from edgekv.types import SegmentKind, StepTables

CHECKPOINTS = (1, 100, 5000)
BOUNDS: dict[KVDtype, float] = {"float32": 1e-4, "float16": 2e-2}
_NUM_FRAMES = 12  # in the window
_NUM_PINNED = (
    5  # tokens; not a multiple of the page size, so that a partly filled page stands first
)


def rotate(
    keys: NDArray[np.float64],  # (n, Hk, D)
    positions: NDArray[np.int64],  # (A, n)
    rotation: Rotation,
    sign: int = 1,
) -> NDArray[np.float64]:
    """Turn each pair of key numbers by position * frequency, in float64: R(sign * p) k."""
    axes = np.array(rotation.freq_axes or (0,) * len(rotation.inv_freq), np.int64)
    inv_freq = np.array(rotation.inv_freq, np.float64)
    angle = sign * positions[axes].T[:, None, :] * inv_freq  # (n, 1, rotary_dim / 2)
    half = len(inv_freq)
    first, second = slice(0, half), slice(half, 2 * half)
    if rotation.interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    turned: NDArray[np.float64] = keys.copy()
    turned[..., first] = keys[..., first] * np.cos(angle) - keys[..., second] * np.sin(angle)
    turned[..., second] = keys[..., second] * np.cos(angle) + keys[..., first] * np.sin(angle)
    return turned


class UnrotatedRun:
    """The reference: one sequence, its keys unrotated in float64, rewritten before every step."""

    def __init__(
        self, decoder: DecoderExecutor, geometry: KVGeometry, rotations: list[Rotation]
    ) -> None:
        self._decoder = decoder
        self._geometry = geometry
        self._rotations = rotations  # one per layer
        shape = (geometry.num_layers, 0, geometry.num_kv_heads, geometry.head_dim)
        self._keys: NDArray[np.float64] = np.zeros(shape)  # (L, n, Hk, D), unrotated
        self._values: NDArray[np.float64] = np.zeros(shape)  # (L, n, Hk, D)

    def feed(self, embeds: NDArray[np.float32]) -> NDArray[np.float32]:
        """Append tokens at the next positions; logits (vocab,) of the last one."""
        num_old, num_new = self._keys.shape[1], len(embeds)
        self._write(num_old)
        tables = self._tables(num_old, num_new)
        logits = self._decoder.run(embeds, tables, np.array([num_new - 1]))
        keys, values = self._read(num_old + num_new)
        new = slice(num_old, None)
        positions = np.arange(num_old, num_old + num_new)[None].repeat(self._num_axes, 0)
        plain = [
            rotate(k[new], positions, r, -1) for k, r in zip(keys, self._rotations, strict=True)
        ]
        self._keys = np.concatenate([self._keys, np.stack(plain)], axis=1)
        self._values = np.concatenate([self._values, values[:, new]], axis=1)
        last: NDArray[np.float32] = logits[0]
        return last

    def drop(self, first: int, count: int) -> None:
        """Forget tokens; those behind them stand ``count`` positions earlier from now on."""
        self._keys = np.delete(self._keys, np.s_[first : first + count], axis=1)
        self._values = np.delete(self._values, np.s_[first : first + count], axis=1)

    @property
    def _num_axes(self) -> int:
        return max(self._geometry.num_rope_axes, 1)

    def _write(self, num_tokens: int) -> None:
        if not num_tokens:
            return
        positions = np.arange(num_tokens)[None].repeat(self._num_axes, 0)
        turned = [rotate(k, positions, r) for k, r in zip(self._keys, self._rotations, strict=True)]
        geometry = self._geometry
        num_pages = geometry.pages_for(num_tokens)
        padded = np.zeros(
            (geometry.num_layers, 2, num_pages * geometry.page_size, *self._keys.shape[2:]),
            np.dtype(geometry.dtype),
        )
        padded[:, 0, :num_tokens] = np.stack(turned)
        padded[:, 1, :num_tokens] = self._values
        pages = padded.reshape(
            geometry.num_layers, 2, num_pages, geometry.page_size, *self._keys.shape[2:]
        )
        self._decoder.write_pages(np.arange(num_pages, dtype=np.int32), pages.swapaxes(3, 4))

    def _read(self, num_tokens: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        num_pages = self._geometry.pages_for(num_tokens)
        pages = self._decoder.read_pages(np.arange(num_pages, dtype=np.int32)).astype(np.float64)
        flat = pages.swapaxes(3, 4).reshape(
            self._geometry.num_layers, 2, -1, *self._keys.shape[2:]
        )[:, :, :num_tokens]
        return flat[:, 0], flat[:, 1]

    def _tables(self, num_old: int, num_new: int) -> StepTables:
        geometry, num_tokens = self._geometry, num_old + num_new
        num_pages = geometry.pages_for(num_tokens)
        table = np.zeros((1, num_pages, 2 + geometry.num_rope_axes), np.int32)
        table[0, :, 0] = np.arange(num_pages)
        table[0, :, 1] = geometry.page_size
        table[0, -1, 1] = num_tokens - (num_pages - 1) * geometry.page_size
        indices = np.arange(num_old, num_tokens, dtype=np.int32)
        return StepTables(
            position_ids=indices.astype(np.int64)[None].repeat(self._num_axes, 0),
            page_table=table,
            query_starts=np.array([0, num_new], np.int32),
            slot_mapping=indices,  # pages 0, 1, 2, … in order: the slot is the index
            kv_limits=indices + np.int32(1),
            query_indices=indices,
        )


def run(path: Path, *, evictions: int = CHECKPOINTS[-1], console: Console) -> BenchResult:
    """Compare at evictions 1, 100 and 5,000, float32 and float16 pools.

    Bounded is the largest |Δlogit| at those evictions. Reported beside it: the largest over all
    evictions, and the medians of the first and the last hundred, which would show a drift.
    """
    bundle = Bundle.open(path)
    figures: dict[str, float] = {}
    bounds: dict[str, tuple[str, float]] = {}
    for dtype, bound in BOUNDS.items():
        differences = _compare(bundle, dtype, evictions, console)
        for eviction in sorted({*CHECKPOINTS, evictions}):
            if eviction <= evictions:
                name = f"{dtype}_dlogit_at_{eviction}"
                figures[name] = float(differences[eviction - 1])
                bounds[name] = ("<=", bound)
        figures[f"{dtype}_dlogit_median_first_100"] = float(np.median(differences[:100]))
        figures[f"{dtype}_dlogit_median_last_100"] = float(np.median(differences[-100:]))
        figures[f"{dtype}_dlogit_largest_of_all"] = float(differences.max())
    return BenchResult("relocate", machine(), figures, {"run": "keys stored unrotated"}, bounds)


class _Pair:
    """The two runs side by side, fed the same tokens."""

    def __init__(self, bundle: Bundle, dtype: KVDtype) -> None:
        geometry = bundle.geometry_for(dtype)
        self.num_frame = bundle.tokens_per_image or geometry.page_size
        num_pages = 2 * geometry.pages_for(_NUM_PINNED + (_NUM_FRAMES + 2) * self.num_frame)
        device, graph = choose_device("cpu"), bundle.decoder_path_for(dtype)
        self.decoders = [
            create_decoder(device, graph, geometry, num_pages=num_pages) for _ in range(2)
        ]
        cache = PageCache(geometry, num_pages)
        self._runner = Runner(self.decoders[0], cache)
        self._sequence = cache.open()
        manifest = bundle.manifest
        rotations = [manifest.rotations[place] for place in manifest.layer_rotations]
        self._reference = UnrotatedRun(self.decoders[1], geometry, rotations)

    def feed(self, kind: SegmentKind, embeds: NDArray[np.float32]) -> float:
        """Append to both; the largest difference of their logits."""
        got = self._runner.feed(self._sequence, kind, embeds)
        return float(np.abs(got - self._reference.feed(embeds)).max())

    def drop(self, which: int) -> None:
        """Drop frame number ``which`` of the window from both."""
        self._sequence.drop([int(self._sequence.segment_table().ids[1 + which])])
        self._reference.drop(_NUM_PINNED + which * self.num_frame, self.num_frame)


def _compare(
    bundle: Bundle, dtype: KVDtype, evictions: int, console: Console
) -> NDArray[np.float64]:
    """(evictions,) largest |Δlogit| after each; every third eviction takes a middle frame."""
    pair = _Pair(bundle, dtype)
    random = np.random.default_rng(0)

    def tokens(count: int) -> NDArray[np.float32]:
        return bundle.embed(random.integers(0, bundle.manifest.vocab_size, count))

    pair.feed("system", tokens(_NUM_PINNED))
    for _ in range(_NUM_FRAMES):
        pair.feed("frame", tokens(pair.num_frame))
    differences = np.zeros(evictions)
    for k in track(range(evictions), f"{dtype} pools", console=console, transient=True):
        pair.drop(int(random.integers(_NUM_FRAMES)) if k % 3 == 2 else 0)
        differences[k] = pair.feed("frame", tokens(pair.num_frame))
    for decoder in pair.decoders:
        decoder.close()
    return differences
