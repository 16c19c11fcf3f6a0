"""Pixels as indices into a palette: a PNG of a third of the bytes.

Guarantees: colours that are named stay exactly what they are, however few pixels have them; of the
    others, which are shades of edges, the rarest become the nearest that stays.
Does not know: what a picture shows.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_MOST = 256


def indexed(pixels: NDArray[np.uint8], named: Collection[tuple[int, int, int]]) -> Image.Image:
    """A picture of ``pixels`` (height, width, 3) with at most 256 colours."""
    packed = pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
    found, where, number = np.unique(packed, return_inverse=True, return_counts=True)
    first = np.isin(found, [(red << 16) + (green << 8) + blue for red, green, blue in named])
    order = np.lexsort((-number, ~first))
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1)  # (n, 3)
    palette = colours[order[:_MOST]]
    index = np.empty(found.size, np.uint8)
    index[order[:_MOST]] = np.arange(len(palette))
    for rest in order[_MOST:]:
        index[rest] = np.square(palette - colours[rest]).sum(axis=1).argmin()
    image = Image.fromarray(index[where].reshape(packed.shape))
    image.putpalette(palette.astype(np.uint8).tobytes())
    return image
