"""Values that cross between parts. Frozen data, no behaviour beyond checks.

Owns: what a frame, one step of the decoder and an answer are. Knows no library but NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgekv.config import KVGeometry

SegmentKind = Literal["system", "frame", "text", "answer"]
FinishReason = Literal["stop", "length", "stop_string", "cancelled"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture of a stream."""

    pixels: NDArray[np.uint8]  # (height, width, 3) RGB
    time_s: float  # seconds since the stream began
    index: int = 0  # number of the frame in its source


@dataclass(frozen=True, slots=True)
class Sound:
    """A piece of sound, for models that hear."""

    samples: NDArray[np.float32]  # (num_samples,) at the model's own rate, -1 to 1
    time_s: float = 0.0  # seconds since the stream began
    index: int = 0  # number of the piece in its source


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What must be equal for stored keys and values to mean the same."""

    name: str
    weights_sha256: str  # over all files of the bundle
    operator_version: int
    geometry: KVGeometry  # with the pool's dtype


@dataclass(frozen=True, slots=True)
class CrossTables:
    """What the tokens of one step see by cross-attention: read-only pages of pools of their own."""

    page_table: NDArray[np.int32]  # (B, M, 2): page id, valid tokens
    kv_limits: NDArray[np.int32]  # (T,)


@dataclass(frozen=True, slots=True)
class StepTables:
    """Where the tokens of one step stand and what they may see: the host's side of the operator.

    The arrays are made for one step, are read-only, and stay as they are for as long as anybody
    holds them: a copy to a device may still read them after the step was handed over.
    """

    position_ids: NDArray[np.int64]  # (max(A, 1), T) current positions, one row per rope axis
    page_table: NDArray[np.int32]  # (B, M, 2 + A): page id, valid tokens, shift per axis
    query_starts: NDArray[np.int32]  # (B + 1,)
    slot_mapping: NDArray[np.int32]  # (T,)
    kv_limits: NDArray[np.int32]  # (T,)
    query_indices: NDArray[np.int32]  # (T,)
    mass_weights: NDArray[np.float32] | None = None  # (B,), None = zeros: see ``DecoderExecutor``
    cross: CrossTables | None = None  # None: the model has no cross-attention


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question got."""

    text: str
    token_ids: tuple[int, ...]
    ttft_s: float  # seconds to first token
    tokens_per_s: float  # decode speed after the first token, 0.0 when there was only one
    finish_reason: FinishReason
    # Frames that came back for it, oldest first: their numbers in the sources that they came from,
    # of which a session that was restored has had several, and when they were pushed. Session time
    # never goes back.
    recalled_frames: tuple[int, ...] = ()
    recalled_times_s: tuple[float, ...] = ()
