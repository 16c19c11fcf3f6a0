"""Preprocessing against transformers' own image processors (their pillow variants).

The measure: |ours - theirs| * std, per value, which undoes the normalisation's scaling; it must
stay within 1 / 255, the step of one 8-bit value. The outcome is 0: the values are bit-identical.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgekv.config import ImageSettings
from edgekv.media.preprocess import Preprocessor

idefics3 = pytest.importorskip("transformers.models.idefics3.image_processing_pil_idefics3")
smolvlm = pytest.importorskip("transformers.models.smolvlm.image_processing_pil_smolvlm")
siglip = pytest.importorskip("transformers.models.siglip.image_processing_pil_siglip")

SIZES = [(1, 1), (27, 257), (2, 2000), (2000, 2), (400, 800), (64, 64), (1080, 1920), (333, 331)]
HALF = (0.5, 0.5, 0.5)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# SmolVLM2's own numbers, its numbers for video frames, the classes' defaults, and the demo's size.
SPLITLESS = [
    ImageSettings(512, 512, longest_edge=2048),
    ImageSettings(512, 512, longest_edge=512),
    ImageSettings(364, 364, longest_edge=1456, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    ImageSettings(64, 64, longest_edge=64, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    ImageSettings(64, 64, longest_edge=5000, resample="bicubic"),
]


def picture(height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Noise over a gradient: every filter tap matters."""
    rng = np.random.default_rng(height * 10_007 + width)
    noise = rng.integers(0, 128, (height, width, 3), np.uint8)
    return noise + np.linspace(0, 127, width, dtype=np.uint8)[None, :, None]


def theirs(kind: Any, settings: ImageSettings, pixels: Any) -> Any:
    processor = kind(
        size={"longest_edge": settings.longest_edge},
        max_image_size={"longest_edge": settings.height},
        do_image_splitting=False,
        resample={"lanczos": 1, "bicubic": 3}[settings.resample],
        image_mean=list(settings.mean),
        image_std=list(settings.std),
    )
    out = processor([[pixels]], return_tensors="np", input_data_format="channels_last")
    return out["pixel_values"][0]


def check(ours: Any, theirs: Any, settings: ImageSettings) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape == (1, 3, settings.height, settings.width)
    std = np.array(settings.std, np.float32)[:, None, None]
    assert float((np.abs(ours - theirs) * std).max()) <= 1 / 255
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("settings", SPLITLESS, ids=lambda s: f"{s.longest_edge}-{s.height}")
def test_matches_smolvlm_without_splitting(settings: ImageSettings, size: tuple[int, int]) -> None:
    pixels = picture(*size)
    expected = theirs(smolvlm.SmolVLMImageProcessorPil, settings, pixels)
    check(Preprocessor(settings)(pixels), expected, settings)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matches_idefics3_without_splitting(size: tuple[int, int]) -> None:
    settings, pixels = SPLITLESS[2], picture(*size)
    expected = theirs(idefics3.Idefics3ImageProcessorPil, settings, pixels)
    check(Preprocessor(settings)(pixels), expected, settings)


def test_matches_on_8k() -> None:
    settings, pixels = SPLITLESS[1], picture(4320, 7680)
    expected = theirs(smolvlm.SmolVLMImageProcessorPil, settings, pixels)
    check(Preprocessor(settings)(pixels), expected, settings)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matches_a_plain_stretch(size: tuple[int, int]) -> None:
    settings, pixels = ImageSettings(224, 224, resample="bicubic"), picture(*size)
    processor = siglip.SiglipImageProcessorPil(image_mean=HALF, image_std=HALF)
    expected = processor(pixels, return_tensors="np", input_data_format="channels_last")
    check(Preprocessor(settings)(pixels), expected["pixel_values"], settings)


def test_sizes_agree_over_many_shapes() -> None:
    from edgekv.media.preprocess import longest_edge_size

    rng = np.random.default_rng(0)
    for height, width in rng.integers(1, 5000, (3000, 2)).tolist():
        edge = int(rng.integers(1, 6000))
        shape = type("Shape", (), {"shape": (3, height, width)})()
        expected = smolvlm.get_resize_output_image_size(shape, resolution_max_side=edge)
        assert longest_edge_size(height, width, edge) == tuple(expected)
