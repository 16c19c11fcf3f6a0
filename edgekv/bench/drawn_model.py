"""A bundle whose pictures are drawn numbers: everything of a model but the vision encoder's time.

Owns: a vision executor that draws, and the model around it.
Guarantees: frames take the same way through session, cache and decoder as encoded ones do; no two
    pictures are alike.
Does not know: what is measured with it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekv.bundle import Bundle
from edgekv.cache import PageCache
from edgekv.executors import choose_device, create_decoder
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder
from edgekv.model import Model


class DrawnVision:
    """A ``VisionExecutor`` that looks at nothing: rows of a normal distribution."""

    def __init__(self, tokens_per_image: int, hidden_size: int, seed: int = 0) -> None:
        self._shape = (tokens_per_image, hidden_size)
        self._random = np.random.default_rng(seed)

    def encode(self, pixel_values: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, 3, height, width) -> (n, tokens_per_image, hidden)."""
        size = (len(pixel_values), *self._shape)
        return self._random.standard_normal(size, dtype=np.float32)

    def close(self) -> None:
        """Nothing to give back."""


def drawn_model(path: Path, *, num_pages: int) -> tuple[Model, PageCache]:
    """The bundle at ``path`` with drawn pictures and a pool of ``num_pages``, on one CPU thread."""
    bundle, device = Bundle.open(path), choose_device("cpu")
    manifest = bundle.manifest
    cache = PageCache(
        bundle.geometry,
        num_pages,
        max_pages=manifest.max_context_tokens,
        max_positions=manifest.max_context_tokens,
        shiftable=manifest.shiftable,
    )
    decoder = create_decoder(
        device, bundle.decoder_path, bundle.geometry, num_pages=num_pages, num_threads=1
    )
    vision = DrawnVision(bundle.tokens_per_image, manifest.hidden_size)
    return Model(bundle, device, Runner(decoder, cache), InputEncoder(bundle, vision)), cache


class DrawnPictures:
    """(side, side, 3) uint8 noise, another one each time."""

    def __init__(self, side: int = 32, seed: int = 0) -> None:
        self._side = side
        self._random = np.random.default_rng(seed)

    def next(self) -> NDArray[np.uint8]:
        noise = np.frombuffer(self._random.bytes(3 * self._side**2), dtype=np.uint8)
        return noise.reshape(self._side, self._side, 3)
