"""Pixels of the drawn video: backgrounds, and shapes as signed distances.

Owns how things look. Guarantees that every function is a pure function of its arguments (random
generators included). Does not know what moves where, nor what is asked about it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

FRAME_SIZE: Final = 64
COLOURS: Final = ("red", "green", "blue", "yellow", "purple", "white")
SHAPES: Final = ("circle", "square", "triangle")

_RGB: Final = np.array(  # (6, 3), RGB levels of COLOURS
    [
        (212, 48, 44),
        (48, 172, 70),
        (52, 92, 220),
        (228, 206, 56),
        (164, 66, 192),
        (234, 234, 232),
    ],
    dtype=np.float32,
)
_GRID: Final = np.arange(FRAME_SIZE, dtype=np.float32) + 0.5  # (64,), pixel centres


def colour_rgb(colour: int) -> NDArray[np.float32]:
    """RGB levels (3,), float32, 0..255, of ``COLOURS[colour]``."""
    return np.array(_RGB[colour])


def shape_area(shape: int, radius: float) -> float:
    """Area in square pixels of ``SHAPES[shape]`` when nothing hides it."""
    if shape == 0:
        return float(np.pi * radius**2)
    if shape == 1:
        return float(4 * (0.88 * radius) ** 2)
    return float(3 * np.sqrt(3) * (0.66 * radius) ** 2)


def shape_coverage(
    shape: int, radius: float, angle: float, centres: NDArray[np.float32]
) -> NDArray[np.float32]:
    """How much of each pixel the shape covers, one image per centre.

    ``centres`` is (n, 2) float32, x and y in pixels; the answer is (n, 64, 64) float32, 0..1.
    """
    dx = _GRID[None, None, :] - centres[:, 0, None, None]  # (n, 1, 64)
    dy = _GRID[None, :, None] - centres[:, 1, None, None]  # (n, 64, 1)
    if shape == 0:
        distance = np.sqrt(dx * dx + dy * dy) - np.float32(radius)
    else:
        sides, inradius = (4, 0.88 * radius) if shape == 1 else (3, 0.66 * radius)
        turns = angle + np.pi / 2 + 2 * np.pi * np.arange(sides) / sides
        planes = [dx * np.float32(np.cos(t)) + dy * np.float32(np.sin(t)) for t in turns]
        distance = np.maximum.reduce(planes) - np.float32(inradius)
    return np.asarray(np.clip(np.float32(0.5) - distance, 0, 1), np.float32)


def draw_background(rng: np.random.Generator) -> NDArray[np.float32]:
    """A still, muted background, (64, 64, 3) float32, levels about 40..165."""
    base = rng.uniform(55, 145) + rng.uniform(-10, 10, 3)
    other = base + rng.uniform(-34, 34) + rng.uniform(-8, 8, 3)
    pattern = _PATTERNS[rng.integers(len(_PATTERNS))](rng)  # (64, 64), 0..1
    image = base + (other - base) * pattern[:, :, None]
    grain = _smooth_noise(rng, 16) * rng.uniform(0, 16)
    return np.clip(image + grain[:, :, None], 35, 170).astype(np.float32)


def _flat(rng: np.random.Generator) -> NDArray[np.float64]:
    return np.zeros((FRAME_SIZE, FRAME_SIZE))


def _gradient(rng: np.random.Generator) -> NDArray[np.float64]:
    angle = rng.uniform(0, 2 * np.pi)
    ramp = (_GRID[None, :] - 32) * np.cos(angle) + (_GRID[:, None] - 32) * np.sin(angle)
    return np.asarray(np.clip(ramp / 64 + 0.5, 0, 1), np.float64)


def _stripes(rng: np.random.Generator) -> NDArray[np.float64]:
    angle, period = rng.uniform(0, np.pi), rng.uniform(6, 20)
    ramp = _GRID[None, :] * np.cos(angle) + _GRID[:, None] * np.sin(angle)
    return np.asarray(np.clip(0.5 + 1.5 * np.sin(2 * np.pi * ramp / period), 0, 1), np.float64)


def _checks(rng: np.random.Generator) -> NDArray[np.float64]:
    side, shift = rng.uniform(6, 18), rng.uniform(0, 18)
    cells = np.floor((_GRID + shift) / side)
    return np.asarray((cells[None, :] + cells[:, None]) % 2, np.float64)


def _horizon(rng: np.random.Generator) -> NDArray[np.float64]:
    return np.broadcast_to(_GRID[:, None] > rng.uniform(18, 48), (64, 64)).astype(np.float64)


def _blobs(rng: np.random.Generator) -> NDArray[np.float64]:
    return np.clip(0.5 + _smooth_noise(rng, int(rng.integers(3, 8))), 0, 1)


_PATTERNS: Final = (_flat, _gradient, _stripes, _checks, _horizon, _blobs)


def _smooth_noise(rng: np.random.Generator, cells: int) -> NDArray[np.float64]:
    """Noise of ``cells`` lattice points a side, interpolated to (64, 64), about -1..1."""
    lattice = rng.uniform(-1, 1, (cells + 1, cells + 1))
    at = _GRID.astype(np.float64) * cells / FRAME_SIZE
    low = at.astype(np.intp)
    part = at - low
    rows = lattice[low] * (1 - part)[:, None] + lattice[low + 1] * part[:, None]
    return np.asarray(rows[:, low] * (1 - part) + rows[:, low + 1] * part)
