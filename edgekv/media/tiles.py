"""From one picture to the tiles that a tiled vision tower takes.

Owns: applying ``TileSettings`` exactly as the family's Hugging Face image processor would
(tests/export/test_cross_preprocess.py compares the numbers).
Guarantees: one output buffer for its whole life; nothing kept per picture or per size.
Does not know: which family it serves, what a tile becomes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgekv.config import TileSettings
from edgekv.media.preprocess import FILTERS, check_pixels


class Tiler:
    """Turns pictures of any size into ``pixel_values`` of one size."""

    def __init__(self, settings: TileSettings) -> None:
        self.settings = settings
        mean = np.array(settings.mean, np.float32)[:, None]
        std = np.array(settings.std, np.float32)[:, None]
        scaled = (np.arange(256) * settings.rescale_factor).astype(np.float32)
        self._table: NDArray[np.float32] = (scaled - mean) / std  # (3, 256)
        size = settings.tile_size
        self._pixel_values = np.zeros((settings.max_tiles, 3, size, size), np.float32)

    def __call__(self, pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float32], int]:
        """(height, width, 3) uint8 RGB -> (max_tiles, 3, size, size) float32 and which arrangement.

        The array is the tiler's own buffer: it holds until the next call. Raises ValueError when
        ``pixels`` is anything else.
        """
        check_pixels(pixels)
        size, (height, width) = self.settings.tile_size, pixels.shape[:2]
        number = choose_arrangement(height, width, self.settings)
        rows, columns = self.settings.arrangements[number]
        height, width = fit(height, width, rows * size, columns * size, size)
        image = Image.fromarray(np.ascontiguousarray(pixels))
        canvas = np.zeros((rows * size, columns * size, 3), np.uint8)
        resized = image.resize((width, height), FILTERS[self.settings.resample])
        canvas[:height, :width] = np.asarray(resized)
        tiles = canvas.reshape(rows, size, columns, size, 3).transpose(0, 2, 4, 1, 3)
        tiles = tiles.reshape(rows * columns, 3, size, size)
        for channel in range(3):
            out = self._pixel_values[: len(tiles), channel]
            out[:] = self._table[channel][tiles[:, channel]]
        self._pixel_values[len(tiles) :] = 0
        return self._pixel_values, number


def choose_arrangement(height: int, width: int, settings: TileSettings) -> int:
    """Which of ``settings.arrangements`` shows a picture best.

    The smallest enlargement, where any arrangement holds the whole picture; else the slightest
    reduction. Of several alike, the one with the fewest tiles, then the first.
    """
    sizes = np.array(settings.arrangements) * settings.tile_size  # (n, 2) height, width
    scales = np.minimum(sizes[:, 0] / height, sizes[:, 1] / width)
    larger = scales[scales >= 1]
    best = larger.min() if larger.size else scales.max()
    (alike,) = np.nonzero(scales == best)
    return int(alike[np.argmin(sizes[alike].prod(axis=1))])


def fit(
    height: int, width: int, canvas_height: int, canvas_width: int, tile_size: int
) -> tuple[int, int]:
    """(height, width) of a picture that keeps its aspect on a canvas: as large as it is, at least a
    tile on its longer side, at most the canvas."""
    target_width = min(max(width, tile_size), canvas_width)
    target_height = min(max(height, tile_size), canvas_height)
    scale_height, scale_width = target_height / height, target_width / width
    if scale_width < scale_height:
        return min(math.floor(height * scale_width) or 1, target_height), target_width
    return target_height, min(math.floor(width * scale_height) or 1, target_width)
