"""What the session needs from whatever runs a graph. Knows no graph library.

A decoder executor owns the pools: one key and one value tensor per layer, allocated once at
construction and never resized. It does not know sequences, only the arrays of one step. Where the
graph adds up attention, the executor also owns one float32 a page, zero at construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgekv.native.columns import PageValues
from edgekv.types import StepTables

# Called while an engine is built: file name of the graph, what is being done, the share that is.
Progress = Callable[[str, str, float], None]


@dataclass(frozen=True, slots=True)
class EngineSource:
    """What an executor that compiles graphs needs to find again what it compiled before."""

    folder: Path  # where engines are kept
    bundle: str  # its name
    sha256: str  # over all files of the bundle
    weights: Literal["fp32", "fp16", "int4"]  # as the bundle stores them
    progress: Progress | None = None


class DecoderExecutor(Protocol):
    """Runs decoder.onnx over pools it owns; exists so that CPU, CUDA and TensorRT look alike."""

    def run(
        self,
        embeds: NDArray[np.float32],  # (T, hidden)
        tables: StepTables,
        logit_indices: NDArray[np.int64],  # (N,)
    ) -> NDArray[np.float32]:
        """One step: writes the new keys and values into the pools, returns logits (N, vocab).

        The attention of each row counts ``tables.mass_weights`` times into the mass of the pages
        it looks at, in the graph's one layer that adds it up; where none does, they are ignored.
        """
        ...

    def take_mass(self, pages: NDArray[np.int32]) -> NDArray[np.float32]:
        """The attention that fell on pages (n,) since they were last asked about: (n,), and from
        now on 0. Zeros where no layer adds it up."""
        ...

    @property
    def shows_queries(self) -> bool:
        """Whether ``queries`` can be asked for."""
        ...

    def queries(
        self, embeds: NDArray[np.float32], tables: StepTables
    ) -> NDArray[np.float32]:  # (T, Hq * D)
        """One step as ``run``, for the queries of the graph's one layer that shows them, rotated at
        their positions. Raises ExecutorError where none does."""
        ...

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole pages (n,) -> (n,) in every layer's key and value pool."""
        ...

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """Contents (num_layers, 2, n, Hk, S, W) of pages; axis 1: keys, values; see
        ``edgekv.contents``."""
        ...

    def read_values(self, pages: NDArray[np.int32], layer: int) -> NDArray[np.generic]:
        """As ``read_pages``, of one layer the values: (n, Hk, S, W)."""
        ...

    def find_values(self, layer: int) -> PageValues | None:
        """Where the values of one layer are in memory; None where they are on a device."""
        ...

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put back what ``read_pages`` returned, at any pages (n,)."""
        ...

    def close(self) -> None:
        """Give the pools and the graph back; the executor cannot be used afterwards."""
        ...


class VisionExecutor(Protocol):
    """Runs vision.onnx: pictures in, embeddings for the decoder out."""

    def encode(self, pixel_values: NDArray[np.float32]) -> NDArray[np.float32]:
        """(num_images, 3, height, width) -> (num_images, tokens_per_image, hidden)."""
        ...

    def close(self) -> None:
        """Give the graph back; the executor cannot be used afterwards."""
        ...


class EncoderExecutor(Protocol):
    """Runs encoder.onnx: one input of a model with cross-attention in, its states out."""

    def encode(self, inputs: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float32]:
        """Tensors by name -> states (L, hidden)."""
        ...

    def close(self) -> None:
        """Give the graph back; the executor cannot be used afterwards."""
        ...


class CrossExecutor(Protocol):
    """Runs cross.onnx over the cross pools, which it owns and a decoder executor reads."""

    def write(self, states: NDArray[np.float32], slots: NDArray[np.int32]) -> None:
        """Keys and values of encoder states (L, hidden) into their slots (L,), -1 = nowhere."""
        ...

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """Contents (num_layers, 2, n, Hk, S, W) of pages; axis 1: keys, values; see
        ``edgekv.contents``."""
        ...

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put back what ``read_pages`` returned, at any pages (n,)."""
        ...

    def close(self) -> None:
        """Give pools and graph back; neither it nor the decoder can be used afterwards."""
        ...
