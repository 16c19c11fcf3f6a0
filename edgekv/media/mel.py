"""From sound to the log-mel features that a speech encoder takes.

Owns: applying ``AudioSettings`` as Whisper's feature extractor does
(tests/export/test_cross_preprocess.py compares the numbers).
Guarantees: everything that does not depend on the sound is computed once.
Does not know: where sound comes from; resampling is the caller's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.config import AudioSettings

_MAX_HERTZ = 8000.0
_FLOOR = 1e-10  # power below which a band counts as silent
_RANGE = 8.0  # decades kept below the loudest band
# Slaney's mel scale: linear up to 1 kHz, then logarithmic.
_LINEAR_HERTZ = 200.0 / 3
_LOG_FROM_HERTZ = 1000.0
_LOG_STEP = np.log(6.4) / 27.0


class MelFeatures:
    """Turns sound of any length into ``input_features`` of one size."""

    def __init__(self, settings: AudioSettings) -> None:
        self.settings = settings
        size = settings.fft_size
        self._window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)  # (fft_size,)
        self._filters = mel_filters(settings)  # (fft_size / 2 + 1, num_mels)

    def __call__(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n,) float32 samples at the model's rate -> (1, num_mels, num_frames) float32.

        Raises ValueError when ``samples`` is anything else, or holds a number that is not finite.
        """
        check_samples(samples)
        settings = self.settings
        sound = np.zeros(settings.num_samples, np.float64)
        sound[: len(samples)] = samples[: settings.num_samples]
        sound = np.pad(sound, settings.fft_size // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(sound, settings.fft_size)
        num_frames = settings.num_samples // settings.hop_samples
        spectrum = np.fft.rfft(frames[:: settings.hop_samples][:num_frames] * self._window)
        power = spectrum.real**2 + spectrum.imag**2
        decades = np.log10(np.maximum(power @ self._filters, _FLOOR)).T
        scaled = (np.maximum(decades, decades.max() - _RANGE) + 4.0) / 4.0
        return np.ascontiguousarray(scaled, np.float32)[None]


def mel_filters(settings: AudioSettings) -> NDArray[np.float64]:
    """(fft_size / 2 + 1, num_mels) triangles of equal area, evenly spaced on the mel scale."""
    num_bins = settings.fft_size // 2 + 1
    hertz = np.linspace(0, settings.sampling_rate // 2, num_bins)
    edges = _to_hertz(np.linspace(_to_mel(0.0), _to_mel(_MAX_HERTZ), settings.num_mels + 2))
    widths = np.diff(edges)
    slopes = edges[None, :] - hertz[:, None]  # (num_bins, num_mels + 2)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    triangles = np.maximum(0, np.minimum(rising, falling))
    filters: NDArray[np.float64] = triangles * (2.0 / (edges[2:] - edges[:-2]))
    return filters


def _to_mel(hertz: float) -> float:
    if hertz < _LOG_FROM_HERTZ:
        return hertz / _LINEAR_HERTZ
    return float(_LOG_FROM_HERTZ / _LINEAR_HERTZ + np.log(hertz / _LOG_FROM_HERTZ) / _LOG_STEP)


def _to_hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    start = _LOG_FROM_HERTZ / _LINEAR_HERTZ
    logarithmic = _LOG_FROM_HERTZ * np.exp(_LOG_STEP * (mels - start))
    return np.where(mels < start, mels * _LINEAR_HERTZ, logarithmic)


def check_samples(samples: NDArray[np.float32]) -> None:
    """Raises ValueError unless ``samples`` is (n,) float32, n at least 1, of finite numbers."""
    wanted = "want (num_samples,) float32 sound"
    if not isinstance(samples, np.ndarray):
        raise ValueError(f"{wanted}, got {type(samples).__name__}")
    if samples.dtype != np.float32 or samples.ndim != 1 or samples.size == 0:
        raise ValueError(f"{wanted}, got {samples.shape} {samples.dtype}")
    if not np.isfinite(samples).all():
        raise ValueError(f"{wanted}, got a sample that is not finite")
