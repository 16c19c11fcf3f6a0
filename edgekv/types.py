"""Values that cross between parts. Frozen data, no behaviour beyond checks.

Owns: what a frame, one step of the decoder and an answer are. Knows no library but NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SegmentKind = Literal["system", "frame", "text", "answer"]
FinishReason = Literal["stop", "length", "stop_string", "cancelled"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture of a stream."""

    pixels: NDArray[np.uint8]  # (height, width, 3) RGB
    time_s: float  # seconds since the stream began
    index: int = 0  # number of the frame in its source


@dataclass(frozen=True, slots=True)
class StepTables:
    """Where the tokens of one step stand and what they may see: the host's side of the operator."""

    position_ids: NDArray[np.int64]  # (max(A, 1), T) current positions, one row per rope axis
    page_table: NDArray[np.int32]  # (B, M, 2 + A): page id, valid tokens, shift per axis
    query_starts: NDArray[np.int32]  # (B + 1,)
    slot_mapping: NDArray[np.int32]  # (T,)
    kv_limits: NDArray[np.int32]  # (T,)
    query_indices: NDArray[np.int32]  # (T,)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question got."""

    text: str
    token_ids: tuple[int, ...]
    ttft_s: float  # seconds to first token
    tokens_per_s: float  # decode speed after the first token, 0.0 when there was only one
    finish_reason: FinishReason


Fit = Literal["stretch", "pad", "crop"]
Resample = Literal["nearest", "bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """How a picture becomes pixel values: fit to (height, width), times ``rescale``, normalised.

    ``stretch`` ignores the aspect ratio; ``pad`` keeps it, scales the longer side to fit and fills
    the right and the bottom with black before normalising; ``crop`` keeps it, scales the shorter
    side to fit and cuts the middle. Resampling is antialiased when it shrinks.
    """

    height: int
    width: int
    fit: Fit
    resample: Resample
    rescale: float  # usually 1 / 255
    mean: tuple[float, float, float]  # RGB, in units of the rescaled values
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise ValueError(f"image size must be positive, got {self.height}x{self.width}")
        if self.rescale <= 0 or min(self.std) <= 0:
            raise ValueError("rescale and std must be positive")
