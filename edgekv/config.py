"""Plain settings and the arithmetic on them: sizes, durations, KV geometry, image preprocessing.

Owns: how byte sizes and durations are written by users, how many bytes a page takes, and which
numbers turn a picture or a sound into what an encoder takes (a bundle carries them, ``media``
applies them).
Knows nothing of files, graphs or the cache.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from edgekv.checks import MAX_WHOLE, finite, refuse, whole

KVDtype = Literal["float32", "float16", "bfloat16", "int8"]
Resample = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Rounding = Literal["nearest", "down", "up"]

_DTYPE_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
_SCALE_BYTES = 4  # int8 pools carry one float32 scale per token and KV head
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tb": 10**12,
    "tib": 2**40,
}
_MIN_S = 1e-6
_MAX_SIDE = 2**20  # of anything a page is measured by
_TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """What one token's keys and values look like in a model.

    ``num_rope_axes`` is 0 for a model without rotary positions, 1 for RoPE, 3 for M-RoPE.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: KVDtype
    num_rope_axes: int = 1

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "page_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
            whole(getattr(self, name), name, most=_MAX_SIDE)
        if self.dtype not in get_args(KVDtype):
            raise ValueError(
                f"KV dtype must be one of {', '.join(get_args(KVDtype))}, got {self.dtype!r}"
            )
        if not 0 <= self.num_rope_axes <= 4:
            raise ValueError(f"num_rope_axes must be 0 to 4, got {self.num_rope_axes}")

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, keys and values (and int8 scales) together."""
        per_slot = self.head_dim * _DTYPE_BYTES[self.dtype] + (
            _SCALE_BYTES if self.dtype == "int8" else 0
        )
        return 2 * self.num_layers * self.num_kv_heads * self.page_size * per_slot

    def pages_for(self, num_tokens: int) -> int:
        """Pages that a run of ``num_tokens`` tokens takes when it starts on a page of its own."""
        return -(-num_tokens // self.page_size)


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """How a family turns a uint8 RGB picture into ``pixel_values`` (1, 3, height, width) float32.

    In this order, each resize antialiased and rounded back to uint8 as Hugging Face's do:

    1. if ``longest_edge``: resize keeping the aspect, longest side = ``longest_edge`` (capped at
       4096), the other side rounded down, then up to the next even number (Idefics3, SmolVLM)
    2. resize to ``height`` x ``width``, whatever the aspect (alone this is SigLIP, Gemma 3,
       PaliGemma, Florence-2)
    3. ``(pixel * rescale_factor - mean[c]) / std[c]``

    All fields are plain JSON values; a bundle's manifest holds them.
    """

    height: int
    width: int
    longest_edge: int | None = None
    resample: Resample = "lanczos"
    rescale_factor: float = 1 / 255
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        for name in ("height", "width", "longest_edge"):
            value = getattr(self, name)
            if name == "longest_edge" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.resample not in get_args(Resample):
            known = ", ".join(get_args(Resample))
            raise ValueError(f"resample must be one of {known}, got {self.resample!r}")
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != 3:
                raise ValueError(f"{name} must hold 3 numbers (R, G, B), got {len(values)}")
            object.__setattr__(self, name, values)
        if 0.0 in self.std or self.rescale_factor <= 0:
            raise ValueError(
                "std must not be 0 and rescale_factor must be positive, "
                f"got {self.std} and {self.rescale_factor}"
            )


@dataclass(frozen=True, slots=True)
class TileSettings:
    """How a picture is cut into square tiles: ``pixel_values`` (max_tiles, 3, size, size) float32.

    As Llama 3.2 Vision does: of all arrangements of at most ``max_tiles`` tiles the one that shows
    the picture largest, else with the fewest pixels; the picture fitted into it, black behind it;
    ``(pixel * rescale_factor - mean[c]) / std[c]``; tiles that are not used are zeros.
    """

    tile_size: int
    max_tiles: int
    resample: Resample = "bilinear"
    rescale_factor: float = 1 / 255
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        for name in ("tile_size", "max_tiles"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if 0.0 in self.std or self.rescale_factor <= 0:
            raise ValueError(
                "std must not be 0 and rescale_factor must be positive, "
                f"got {self.std} and {self.rescale_factor}"
            )

    @property
    def arrangements(self) -> tuple[tuple[int, int], ...]:
        """(rows, columns) of tiles that a picture may be cut into; number k has the model's id
        k + 1."""
        sizes = range(1, self.max_tiles + 1)
        pairs = ((rows, columns) for rows in sizes for columns in sizes)
        return tuple(pair for pair in pairs if pair[0] * pair[1] <= self.max_tiles)


@dataclass(frozen=True, slots=True)
class AudioSettings:
    """How sound becomes ``input_features`` (1, num_mels, num_samples / hop_samples) float32.

    As Whisper does: cut, or padded with silence, to ``num_samples``; power of a short-time Fourier
    transform under a Hann window; Slaney's mel scale up to 8 kHz; log10, the lowest 8 below the
    highest; ``(x + 4) / 4``.
    """

    sampling_rate: int  # samples per second that the model expects
    num_samples: int
    fft_size: int
    hop_samples: int
    num_mels: int

    def __post_init__(self) -> None:
        for name in ("sampling_rate", "num_samples", "fft_size", "hop_samples", "num_mels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_samples % self.hop_samples:
            raise ValueError(
                f"num_samples must be a multiple of hop_samples {self.hop_samples}, "
                f"got {self.num_samples}"
            )


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a layer rotates its queries and keys: what a kernel needs to add or undo a shift."""

    inv_freq: tuple[float, ...]  # (rotary_dim / 2,) radians per position; empty = no rotation
    freq_axes: tuple[int, ...] = ()  # (rotary_dim / 2,) rope axis of each; empty = axis 0
    interleaved: bool = False  # pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)

    def __post_init__(self) -> None:
        if self.freq_axes and len(self.freq_axes) != len(self.inv_freq):
            raise ValueError(
                f"freq_axes must name an axis for each of {len(self.inv_freq)} frequencies, "
                f"got {len(self.freq_axes)}"
            )


def parse_bytes(size: str | int, name: str = "size", *, least: int = 1) -> int:
    """``"64MiB"``, ``"1.5GB"`` or a plain number of bytes -> bytes. Raises ValueError."""
    expected = "look like 64MiB, 1.5GB or 4096"
    if not isinstance(size, str):
        if not isinstance(size, Integral) or isinstance(size, bool):
            refuse(name, expected, size)
        return whole(size, name, least=least)
    num_bytes = _in_units(size, _SIZE_UNITS)
    if num_bytes is None:
        refuse(name, expected, size)
    if not least <= num_bytes <= MAX_WHOLE:
        refuse(name, "be positive and finite, below 8 EiB", size)
    return int(num_bytes)


def parse_seconds(duration: str | float, name: str = "duration") -> float:
    """``"2s"``, ``"500ms"``, ``"10m"`` or a number of seconds -> seconds. Raises ValueError."""
    expected = "look like 2s, 500ms or 10m"
    if isinstance(duration, str):
        seconds = _in_units(duration, _TIME_UNITS)
        if seconds is None:
            refuse(name, expected, duration)
    else:
        seconds = finite(duration, name, expected)
    if not _MIN_S <= seconds < float("inf"):
        refuse(name, f"be positive and finite, at least {_MIN_S:g} s", duration)
    return seconds


def _in_units(text: str, units: Mapping[str, float]) -> float | None:
    """A number with its unit in the unit's own measure; None for what is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    if match is None or match[2].lower() not in units:
        return None
    return float(match[1]) * units[match[2].lower()]


def _tenths(value: float, rounded: Rounding) -> float:
    if rounded == "nearest":
        return value
    return (math.floor if rounded == "down" else math.ceil)(value * 10) / 10


def format_bytes(size: int, *, rounded: Rounding = "nearest") -> str:
    """Bytes for people: ``8.0 MiB``. What is read back by ``parse_bytes`` is at most ``size`` when
    rounded down, at least when rounded up."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} B" if unit == "B" else f"{_tenths(value, rounded):.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
