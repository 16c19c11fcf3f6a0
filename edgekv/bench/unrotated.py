"""The plain truth beside relocated pages: a run whose keys are stored unrotated.

Owns: one sequence's keys in float64, as they are before any rotation, and where they stand. Before
every step they are rotated to there and written into contiguous pages without shifts.
Does not know: the cache, shifts, what it is compared with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.config import KVGeometry, Rotation
from edgekv.executors import DecoderExecutor
from edgekv.types import StepTables


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
        num_axes = max(geometry.num_rope_axes, 1)
        self._positions = np.zeros((num_axes, 0), np.int64)  # (A, n) as they stand now

    def copy(self) -> UnrotatedRun:
        """The same tokens, to go on with otherwise; on the same decoder, whose pages hold nothing
        from one step to the next."""
        twin = UnrotatedRun(self._decoder, self._geometry, self._rotations)
        twin._keys, twin._values, twin._positions = self._keys, self._values, self._positions
        return twin

    def feed(
        self,
        embeds: NDArray[np.float32],  # (n, hidden)
        positions: NDArray[np.int64],  # (A, n) where they stand
    ) -> NDArray[np.float32]:
        """Append tokens; logits (vocab,) of the last one."""
        num_old, num_new = self._keys.shape[1], len(embeds)
        self._write(num_old)
        tables = self._tables(num_old, positions)
        logits = self._decoder.run(embeds, tables, np.array([num_new - 1]))
        keys, values = self._read(num_old + num_new)
        new = slice(num_old, None)
        plain = [
            rotate(k[new], positions, r, -1) for k, r in zip(keys, self._rotations, strict=True)
        ]
        self._keys = np.concatenate([self._keys, np.stack(plain)], axis=1)
        self._values = np.concatenate([self._values, values[:, new]], axis=1)
        self._positions = np.concatenate([self._positions, positions], axis=1)
        last: NDArray[np.float32] = logits[0]
        return last

    def drop(self, first: int, count: int, span: tuple[int, ...]) -> None:
        """Forget tokens; those behind them stand ``span`` (A,) earlier from now on."""
        gone = np.s_[first : first + count]
        self._keys = np.delete(self._keys, gone, axis=1)
        self._values = np.delete(self._values, gone, axis=1)
        self._positions = np.delete(self._positions, gone, axis=1)
        self._positions[:, first:] -= np.array(span)[:, None]

    def _write(self, num_tokens: int) -> None:
        if not num_tokens:
            return
        turned = [
            rotate(k, self._positions, r) for k, r in zip(self._keys, self._rotations, strict=True)
        ]
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

    def _tables(self, num_old: int, positions: NDArray[np.int64]) -> StepTables:
        geometry, num_new = self._geometry, positions.shape[1]
        num_tokens = num_old + num_new
        num_pages = geometry.pages_for(num_tokens)
        table = np.zeros((1, num_pages, 2 + geometry.num_rope_axes), np.int32)
        table[0, :, 0] = np.arange(num_pages)
        table[0, :, 1] = geometry.page_size
        table[0, -1, 1] = num_tokens - (num_pages - 1) * geometry.page_size
        indices = np.arange(num_old, num_tokens, dtype=np.int32)
        return StepTables(
            position_ids=positions,
            page_table=table,
            query_starts=np.array([0, num_new], np.int32),
            slot_mapping=indices,  # pages 0, 1, 2, … in order: the slot is the index
            kv_limits=indices + np.int32(1),
            query_indices=indices,
        )
