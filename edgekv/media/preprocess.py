"""From one picture to the ``pixel_values`` a vision graph takes.

Owns: applying ``ImageSettings`` exactly as the family's Hugging Face image processor would
(measured bit-identical to its pillow variant, see tests/export/test_preprocess_parity.py).
Guarantees: one output buffer for its whole life; nothing kept per picture or per size.
Does not know: which family it serves, how pictures are decoded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgekv.config import ImageSettings

MAX_EDGE = 4096  # Idefics3's cap on the longest edge after its first resize

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def longest_edge_size(height: int, width: int, longest_edge: int) -> tuple[int, int]:
    """(height, width) of Idefics3's first resize: the other side is rounded down, then up to even.

    In floating point and in this order, as the original: exact fractions would differ by a pixel.
    """
    aspect = width / height
    if width >= height:
        width = longest_edge
        height = int(width / aspect)
        height += height % 2
    else:
        height = longest_edge
        width = int(height * aspect)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    aspect = width / height
    if width >= height and width > MAX_EDGE:
        width = MAX_EDGE
        height = int(width / aspect)
    elif height > width and height > MAX_EDGE:
        height = MAX_EDGE
        width = int(height * aspect)
    return max(height, 1), max(width, 1)


class Preprocessor:
    """Turns pictures of any size into ``pixel_values`` of one size.

    Resizing is pillow's (antialiased, rounded to uint8 after each step). The rest is a table: a
    pixel has 256 values, so each channel has 256 results.
    """

    def __init__(self, settings: ImageSettings) -> None:
        self.settings = settings
        # As Hugging Face computes it: scaled in float64, then rounded, normalised in float32.
        scaled = (np.arange(256) * settings.rescale_factor).astype(np.float32)
        mean = np.array(settings.mean, np.float32)[:, None]
        std = np.array(settings.std, np.float32)[:, None]
        self._table: NDArray[np.float32] = (scaled - mean) / std  # (3, 256)
        shape = (1, 3, settings.height, settings.width)
        self._pixel_values = np.empty(shape, np.float32)

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(height, width, 3) uint8 RGB -> (1, 3, H, W) float32.

        The result is the preprocessor's own buffer: it holds until the next call. Raises ValueError
        when ``pixels`` is anything else.
        """
        check_pixels(pixels)
        settings = self.settings
        resample = FILTERS[settings.resample]
        image = Image.fromarray(np.ascontiguousarray(pixels))
        if settings.longest_edge is not None:
            height, width = longest_edge_size(image.height, image.width, settings.longest_edge)
            image = image.resize((width, height), resample)
        image = image.resize((settings.width, settings.height), resample)
        resized = np.asarray(image)
        for channel in range(3):
            out = self._pixel_values[0, channel]
            np.take(self._table[channel], resized[..., channel], out=out, mode="clip")
        return self._pixel_values


def check_pixels(pixels: NDArray[np.uint8]) -> None:
    """Raises ValueError unless ``pixels`` is (height, width, 3) uint8 with a pixel in it."""
    wanted = "want (height, width, 3) uint8 RGB"
    if not isinstance(pixels, np.ndarray):
        got = type(pixels).__name__
        raise ValueError(f"{wanted}, got {got}")
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
        planes = pixels.ndim == 3 and pixels.shape[0] == 3
        advice = ": the channels must come last" if planes and pixels.shape[2] != 3 else ""
        raise ValueError(f"{wanted}, got {pixels.shape} {pixels.dtype}{advice}")
