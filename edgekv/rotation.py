"""Turning keys and queries by positions, as layers with rotary positions do.

Owns: the one place where the runtime itself turns numbers; the operator turns queries in kernels.
Guarantees: turning by p and then by -p gives the same numbers up to rounding in float32.
Does not know: caches, graphs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.config import Rotation


def turn(
    numbers: NDArray[np.float32],  # (..., D)
    positions: NDArray[np.integer],  # (..., R), one row for each vector of ``numbers``, broadcast
    rotation: Rotation,
) -> NDArray[np.float32]:
    """R(p) x: each pair turned by its axis' position times its frequency. A new array."""
    if not rotation.inv_freq:
        return np.array(numbers)
    axes = np.array(rotation.freq_axes or (0,) * len(rotation.inv_freq), np.int64)
    angle = positions[..., axes] * np.array(rotation.inv_freq, np.float64)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    half = len(rotation.inv_freq)
    first, second = slice(0, half), slice(half, 2 * half)
    if rotation.interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    turned: NDArray[np.float32] = np.array(numbers)
    turned[..., first] = numbers[..., first] * cos - numbers[..., second] * sin
    turned[..., second] = numbers[..., second] * cos + numbers[..., first] * sin
    return turned
