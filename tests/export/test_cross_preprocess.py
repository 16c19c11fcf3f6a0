"""Tiles and log-mel features against the image processor and feature extractor of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

from edgekv.config import AudioSettings, TileSettings
from edgekv.media.mel import MelFeatures
from edgekv.media.tiles import Tiler

SIZES = [(1, 1), (27, 257), (2, 2000), (2000, 2), (400, 800), (56, 56), (57, 55), (112, 113),
         (300, 90), (90, 300), (28, 28), (1080, 1920), (224, 56)]  # fmt: skip


@pytest.mark.parametrize("max_tiles", [1, 4, 6])
@pytest.mark.parametrize("size", SIZES)
def test_tiles(size: tuple[int, int], max_tiles: int) -> None:
    mean, std = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
    tiler = Tiler(TileSettings(56, max_tiles, mean=mean, std=std))
    processor = MllamaImageProcessorPil(
        size={"height": 56, "width": 56}, max_image_tiles=max_tiles, image_mean=mean, image_std=std
    )
    rng = np.random.default_rng(5)
    for _ in range(2):  # the second picture finds the first in the buffer
        pixels = rng.integers(0, 256, (*size, 3), np.uint8)
        theirs = processor(pixels, input_data_format="channels_last", return_tensors="np")
        ours, number = tiler(pixels)
        assert number + 1 == theirs["aspect_ratio_ids"][0, 0]
        rows, columns = tiler.settings.arrangements[number]
        assert rows * columns == theirs["num_tiles"][0][0]
        assert np.abs(ours - theirs["pixel_values"][0, 0]).max() <= 1e-6


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("seconds", [0.01, 0.5, 2, 2.7])
def test_log_mel(seconds: float, num_mels: int) -> None:
    extractor = WhisperFeatureExtractor(feature_size=num_mels, chunk_length=2)
    ours = MelFeatures(AudioSettings(16000, 32000, 400, 160, num_mels))
    rng = np.random.default_rng(5)
    time_s = np.arange(int(seconds * 16000)) / 16000
    sound = np.sin(2 * np.pi * (300 + 200 * time_s) * time_s) + 0.1 * rng.standard_normal(
        len(time_s)
    )
    sound = sound.astype(np.float32)
    theirs = extractor(sound, sampling_rate=16000, return_tensors="np")["input_features"]
    got = ours(sound)
    assert got.shape == theirs.shape
    assert got.dtype == np.float32
    assert np.abs(got - theirs).max() <= 1e-4  # theirs is computed in float32


def test_silence_is_the_floor_everywhere() -> None:
    got = MelFeatures(AudioSettings(16000, 32000, 400, 160, 80))(np.zeros(10, np.float32))
    assert (got == got[0, 0, 0]).all()
