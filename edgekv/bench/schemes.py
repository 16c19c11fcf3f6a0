"""The ways in which positions can turn keys: one small decoder's shape for each.

Owns: the list of schemes, and how the tokens of a frame stand in each.
Does not know: graphs, caches, what is compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.config import KVDtype, KVGeometry, Rotation

_KV_HEADS, _HEAD_DIM, _PAGE_SIZE = 2, 32, 8
_GRID = (2, 3)  # rows and columns of a frame's tokens: 6 of a page's 8 slots, so pages stay partial


@dataclass(frozen=True, slots=True)
class Scheme:
    """One position scheme: a rotation for each layer, and how frames stand."""

    name: str
    what: str  # for people
    rotations: tuple[Rotation, ...]  # one per layer
    num_axes: int = 1
    frames_move: tuple[int, ...] | None = None  # (num_axes,), None = one behind the largest

    def geometry(self, dtype: KVDtype) -> KVGeometry:
        """What its cache looks like."""
        return KVGeometry(
            num_layers=len(self.rotations),
            num_kv_heads=_KV_HEADS,
            head_dim=_HEAD_DIM,
            page_size=_PAGE_SIZE,
            dtype=dtype,
            num_rope_axes=self.num_axes,
        )

    def frame_positions(self) -> NDArray[np.int64]:
        """(num_axes, tokens of a frame) where they stand, from where the frame begins."""
        rows, columns = _GRID
        if self.num_axes == 1:
            return np.arange(rows * columns)[None]
        row, column = np.divmod(np.arange(rows * columns), columns)
        return np.stack([np.zeros_like(row), row, column])

    def frame_moves(self) -> tuple[int, ...]:
        """(num_axes,) how far a frame moves what comes after it."""
        largest = int(self.frame_positions().max())
        return self.frames_move or (largest + 1,) * self.num_axes


def _frequencies(pairs: int, base: float = 10000.0) -> NDArray[np.float64]:
    return np.asarray(base ** -(np.arange(pairs) / pairs))


def _rotation(
    inv_freq: NDArray[np.float64], axes: tuple[int, ...] = (), *, interleaved: bool = False
) -> Rotation:
    return Rotation(tuple(float(np.float32(f)) for f in inv_freq), axes, interleaved)


def _llama3(inv_freq: NDArray[np.float64]) -> NDArray[np.float64]:
    """Llama 3.1's static scaling: slow frequencies an eighth as fast, with a smooth passage."""
    wavelength = 2 * math.pi / inv_freq
    smooth = np.clip((64 / wavelength - 1) / 3, 0, 1)
    return np.asarray(inv_freq * (smooth + (1 - smooth) / 8))


_PAIRS = _HEAD_DIM // 2
_ALL, _HALF, _NONE = _frequencies(_PAIRS), _frequencies(_PAIRS // 2), Rotation(())
_SECTIONS = (0,) * 4 + (1,) * 6 + (2,) * 6
_WOVEN = tuple(i % 3 if i < 12 else 0 for i in range(_PAIRS))  # as Qwen3-VL weaves them

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("half-split", "RoPE, halves paired (Llama, Qwen2)", (_rotation(_ALL),) * 2),
        Scheme("linear", "RoPE, all frequencies a quarter as fast", (_rotation(_ALL / 4),) * 2),
        Scheme("llama3", "RoPE with Llama 3's scaling", (_rotation(_llama3(_ALL)),) * 2),
        Scheme(
            "interleaved",
            "RoPE, neighbours paired (GPT-J, Cohere)",
            (_rotation(_ALL, interleaved=True),) * 2,
        ),
        Scheme("partial", "half of a head turns (Phi)", (_rotation(_HALF),) * 2),
        Scheme(
            "partial-interleaved",
            "half of a head turns, neighbours paired (GLM)",
            (_rotation(_HALF, interleaved=True),) * 2,
        ),
        Scheme(
            "layers-without",
            "one layer of three does not turn (SmolLM3)",
            (_rotation(_ALL), _NONE, _rotation(_ALL)),
        ),
        Scheme(
            "two-bases",
            "layers with different bases (Gemma 3)",
            (_rotation(_ALL), _rotation(_frequencies(_PAIRS, 1e6))),
        ),
        Scheme(
            "mrope-sections",
            "M-RoPE in sections, frames move on all axes (Qwen2-VL)",
            (_rotation(_ALL, _SECTIONS),) * 2,
            num_axes=3,
        ),
        Scheme(
            "mrope-interleaved",
            "M-RoPE, axes woven, frames move on all axes (Qwen3-VL)",
            (_rotation(_ALL, _WOVEN),) * 2,
            num_axes=3,
        ),
        Scheme(
            "mrope-time",
            "M-RoPE in sections, frames move in time only",
            (_rotation(_ALL, _SECTIONS),) * 2,
            num_axes=3,
            frames_move=(1, 0, 0),
        ),
    )
}
