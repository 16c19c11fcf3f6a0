"""``edgekv bench relocate``: relocated pages against keys stored unrotated, eviction after eviction.

Two runs of the same decoder over the same endless input. One is edgekv's: keys are written once,
rotated, and moved by page shifts. The other is the plain truth: its keys are kept unrotated in
float64 and, before every step, rotated to where they stand now and written into contiguous pages
without shifts. With the same tokens in the context both must give the same logits (design: 1e-4
with float32 pools, 2e-2 with float16).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from edgekv.bench.report import BenchResult, machine
from edgekv.bundle import Bundle, Rotation
from edgekv.cache import PageCache
from edgekv.config import KVDtype
from edgekv.executors import DecoderExecutor, choose_device, create_decoder
from edgekv.generate import Runner
from edgekv.types import StepTables

CHECKPOINTS = (1, 100, 5000)
BOUNDS: dict[KVDtype, float] = {"float32": 1e-4, "float16": 2e-2}
_NUM_FRAMES = 12  # in the window
_NUM_PINNED = 5  # tokens; not a multiple of the page size, so that a partly filled page stands first


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
    turned = keys.copy()
    turned[..., first] = keys[..., first] * np.cos(angle) - keys[..., second] * np.sin(angle)
    turned[..., second] = keys[..., second] * np.cos(angle) + keys[..., first] * np.sin(angle)
    return turned


class UnrotatedRun:
    """The reference: one sequence, its keys unrotated in float64, rewritten before every step."""

    def __init__(self, decoder: DecoderExecutor, bundle: Bundle) -> None:
        self._decoder = decoder
        self._geometry = bundle.geometry
        self._rotations = bundle.manifest.layer_rotations()
        shape = (bundle.geometry.num_layers, 0, bundle.geometry.num_kv_heads, bundle.geometry.head_dim)
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
        plain = [rotate(k[new], positions, r, -1) for k, r in zip(keys, self._rotations, strict=True)]
        self._keys = np.concatenate([self._keys, np.stack(plain)], axis=1)
        self._values = np.concatenate([self._values, values[:, new]], axis=1)
        return logits[0]

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


@dataclass(frozen=True, slots=True)
class _Case:
    dtype: KVDtype
    max_difference: dict[int, float]  # at each checkpoint: the largest of |Δlogit| so far
    max_logit: float


def run(path: Path, *, evictions: int = CHECKPOINTS[-1], console: Console) -> BenchResult:
    """Compare at evictions 1, 100 and 5,000, float32 and float16 pools."""
    figures: dict[str, float] = {}
    bounds: dict[str, tuple[str, float]] = {}
    for dtype, bound in BOUNDS.items():
        case = _compare(path, dtype, evictions, console)
        for eviction, difference in case.max_difference.items():
            name = f"{dtype}_max_dlogit_at_{eviction}"
            figures[name] = difference
            bounds[name] = ("<=", bound)
            console.print(
                f"{dtype} pools, up to eviction {eviction}: |Δlogit| ≤ {difference:.2e} "
                f"(bound {bound:g}, largest logit {case.max_logit:.1f})"
            )
    return BenchResult("relocate", machine(), figures, {"baseline": "keys stored unrotated"}, bounds)


def _compare(path: Path, dtype: KVDtype, evictions: int, console: Console) -> _Case:
    bundle = Bundle.open(path, kv_dtype=dtype)
    device = choose_device("cpu")
    num_frame_tokens = bundle.tokens_per_image or bundle.geometry.page_size
    window = _NUM_PINNED + (_NUM_FRAMES + 1) * num_frame_tokens
    num_pages = 4 * bundle.geometry.pages_for(window)
    decoders = [
        create_decoder(device, bundle.decoder_path, bundle.geometry, num_pages=num_pages)
        for _ in range(2)
    ]
    cache = PageCache(bundle.geometry, num_pages)
    runner, reference, sequence = Runner(decoders[0], cache), UnrotatedRun(decoders[1], bundle), cache.open()
    random = np.random.default_rng(0)

    def tokens(count: int) -> NDArray[np.float32]:
        return bundle.embed(random.integers(0, bundle.manifest.vocab_size, count))

    start = tokens(_NUM_PINNED)
    runner.feed(sequence, "system", start)
    reference.feed(start)
    for _ in range(_NUM_FRAMES):
        frame = tokens(num_frame_tokens)
        runner.feed(sequence, "frame", frame)
        reference.feed(frame)
    largest, biggest, at = 0.0, 0.0, {}
    for eviction in track(
        range(1, evictions + 1), f"{dtype} pools", console=console, transient=True
    ):
        which = int(random.integers(_NUM_FRAMES)) if eviction % 3 == 0 else 0
        sequence.drop([int(sequence.segment_table().ids[1 + which])])
        reference.drop(_NUM_PINNED + which * num_frame_tokens, num_frame_tokens)
        frame = tokens(num_frame_tokens)
        got, expected = runner.feed(sequence, "frame", frame), reference.feed(frame)
        largest = max(largest, float(np.abs(got - expected).max()))
        biggest = max(biggest, float(np.abs(expected).max()))
        if eviction in CHECKPOINTS or eviction == evictions:
            at[eviction] = largest
    for decoder in decoders:
        decoder.close()
    return _Case(dtype, at, biggest)
