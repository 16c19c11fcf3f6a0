"""Preprocessing by itself. Parity with transformers is in tests/export."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgekv.config import ImageSettings
from edgekv.media.preprocess import Preprocessor, longest_edge_size

RNG = np.random.default_rng(1)


def test_the_numbers_without_resizing() -> None:
    settings = ImageSettings(6, 8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    pixels = RNG.integers(0, 256, (6, 8, 3), np.uint8)
    values = Preprocessor(settings)(pixels)
    wanted = (pixels / 255 - settings.mean) / settings.std
    assert values.shape == (1, 3, 6, 8)
    assert values.dtype == np.float32
    assert np.allclose(values[0], wanted.transpose(2, 0, 1), atol=1e-6)


def test_a_flat_picture_stays_flat_at_any_size() -> None:
    settings = ImageSettings(64, 64, longest_edge=64)
    preprocess = Preprocessor(settings)
    for size in ((1, 1), (27, 257), (2, 2000), (400, 800), (64, 64), (1080, 1920)):
        values = preprocess(np.full((*size, 3), (10, 100, 200), np.uint8))
        for channel, level in enumerate((10, 100, 200)):
            assert np.allclose(values[0, channel], (level / 255 - 0.5) / 0.5)


def test_downscaling_is_antialiased() -> None:
    """A checkerboard of single pixels becomes grey, not a pattern."""
    board = (np.indices((512, 512)).sum(axis=0) % 2 * 255).astype(np.uint8)
    values = Preprocessor(ImageSettings(64, 64))(np.dstack([board] * 3))
    assert np.abs(values[..., 4:-4, 4:-4]).max() < 0.03


def test_one_buffer_whatever_comes() -> None:
    preprocess = Preprocessor(ImageSettings(32, 48))
    first = preprocess(RNG.integers(0, 256, (50, 60, 3), np.uint8))
    for _ in range(50):
        height, width = RNG.integers(1, 300, 2)
        values = preprocess(RNG.integers(0, 256, (height, width, 3), np.uint8))
        assert values is first


def test_strided_pictures_are_taken() -> None:
    pixels = RNG.integers(0, 256, (40, 60, 3), np.uint8)
    settings = ImageSettings(16, 16)
    turned = pixels[::-1, ::2]
    wanted = Preprocessor(settings)(turned.copy())
    assert np.array_equal(Preprocessor(settings)(turned), wanted)


@pytest.mark.parametrize(
    ("pixels", "got"),
    [
        (np.zeros((4, 4, 3), np.float32), r"\(4, 4, 3\) float32"),
        (np.zeros((4, 4), np.uint8), r"\(4, 4\) uint8"),
        (np.zeros((4, 4, 4), np.uint8), r"\(4, 4, 4\) uint8"),
        (np.zeros((3, 4, 4), np.uint8), r"\(3, 4, 4\) uint8: the channels must come last"),
        (np.zeros((0, 4, 3), np.uint8), r"\(0, 4, 3\) uint8"),
        (np.zeros((4, 0, 3), np.uint8), r"\(4, 0, 3\) uint8"),
        ([[0, 0, 0]], "list"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_picture_is_refused(pixels: Any, got: str) -> None:
    with pytest.raises(ValueError, match=rf"want \(height, width, 3\) uint8 RGB, got {got}$"):
        Preprocessor(ImageSettings(8, 8))(pixels)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((1080, 1920), (288, 512)),
        ((1, 1), (512, 512)),
        ((2, 2000), (1, 512)),
        ((27, 257), (54, 512)),
    ],
)
def test_longest_edge(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    assert longest_edge_size(*size, 512) == wanted
    assert longest_edge_size(*size[::-1], 512) == wanted[::-1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"height": 0, "width": 8}, "height must be a whole number of at least 1, got 0"),
        ({"height": 8, "width": 8.5}, "width must be a whole number"),
        ({"height": 8, "width": 8, "longest_edge": -1}, "longest_edge must be"),
        ({"height": 8, "width": 8, "resample": "sinc"}, "resample must be one of nearest"),
        ({"height": 8, "width": 8, "mean": [0.5]}, "mean must hold 3 numbers"),
        ({"height": 8, "width": 8, "std": [0, 1, 1]}, "std must not be 0"),
        ({"height": 8, "width": 8, "rescale_factor": 0}, "rescale_factor must be positive"),
    ],
)
def test_settings_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageSettings(**fields)
