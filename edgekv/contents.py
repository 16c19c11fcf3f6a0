"""Keys and values outside of the pools: how what a page holds lies in an array.

Owns: the form of contents, ``(…, S, W)`` for ``(…, S, D)`` numbers, by the pools' KV dtype:
``float32`` and ``float16`` are themselves, W = D; ``bfloat16`` are its bits, uint16, W = D;
``int8`` are a token's numbers followed by the four bytes of their float32 scale, W = D + 4.
Guarantees: contents are the pools' bytes, so what was read and is put back is the same; a slot of
zero bytes is a slot of zeros.
Does not know: pools, pages, who stores contents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.config import KVDtype, KVGeometry

SCALE_BYTES = 4
_STORAGE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),  # NumPy has none
    "int8": np.dtype(np.int8),
}
_LEVELS = np.float32(127)
_LARGEST_SCALE = np.finfo(np.float32).max / _LEVELS
_BFLOAT16_EXPONENT = np.uint16(0x7F80)  # all of it set: infinite or no number


def storage_dtype(dtype: str) -> np.dtype[Any]:
    """What numbers of a KV dtype are in memory."""
    return _STORAGE[dtype]


def slot_shape(geometry: KVGeometry) -> tuple[int, int, int]:
    """(Hk, S, W): the contents of one page, of keys or of values of one layer."""
    scale = SCALE_BYTES if geometry.dtype == "int8" else 0
    return geometry.num_kv_heads, geometry.page_size, geometry.head_dim + scale


def join(numbers: NDArray[np.int8], scales: NDArray[np.float32]) -> NDArray[np.int8]:
    """int8 contents (…, D + 4) of numbers (…, D) and scales (…)."""
    beside = np.ascontiguousarray(scales)[..., None].view(np.int8)
    return np.concatenate([numbers, beside], axis=-1)


def split(contents: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """The numbers (…, D) and scales (…) of int8 contents (…, D + 4)."""
    beside = np.ascontiguousarray(contents[..., -SCALE_BYTES:])
    return contents[..., :-SCALE_BYTES], beside.view(np.float32)[..., 0]


def widen(contents: NDArray[Any], dtype: KVDtype) -> NDArray[np.floating[Any]]:
    """The numbers (…, D) that contents (…, W) stand for; float16 and float32 as they are."""
    if dtype == "bfloat16":
        bits: NDArray[np.uint32] = contents.astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    if dtype == "int8":
        numbers, scales = split(contents)
        wide: NDArray[np.float32] = numbers * scales[..., None]
        return wide
    return contents


def are_finite(contents: NDArray[Any], dtype: KVDtype) -> bool:
    """Whether contents (…, W) stand for finite numbers only."""
    if dtype == "bfloat16":
        return bool(((contents & _BFLOAT16_EXPONENT) != _BFLOAT16_EXPONENT).all())
    if dtype == "int8":
        return bool((np.abs(split(contents)[1]) <= _LARGEST_SCALE).all())
    return bool(np.isfinite(contents).all())


def narrow(numbers: NDArray[np.floating[Any]], dtype: KVDtype) -> NDArray[Any]:
    """Contents (…, W) nearest to finite numbers (…, D), as the operator would write them."""
    if dtype == "bfloat16":
        bits = numbers.astype(np.float32).view(np.uint32)
        even = (bits >> np.uint32(16)) & np.uint32(1)
        rounded: NDArray[np.uint32] = (bits + np.uint32(0x7FFF) + even) >> np.uint32(16)
        return rounded.astype(np.uint16)
    if dtype == "int8":
        wide = numbers.astype(np.float32)
        scales = np.abs(wide).max(axis=-1) / _LEVELS
        levels = np.rint(wide / np.where(scales > 0, scales, 1)[..., None])
        np.clip(levels, -_LEVELS, _LEVELS, out=levels)  # a scale may be a rounded subnormal number
        return join(levels.astype(np.int8), scales)
    return numbers.astype(storage_dtype(dtype), copy=False)
