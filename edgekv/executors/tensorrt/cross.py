"""Cross-attention's two graphs as TensorRT engines: the encoder, and the writer of the cross pools.

Owns: the cross pools in GPU memory, which a decoder on the same GPU reads. Guarantees: memory is
taken at construction; the pools are written in place, and a call that writes has ended when it
returns, so that whichever stream reads them next finds them whole. Does not know what an input is,
nor which pages hold what.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.tensorrt.fixed import FixedEngine


class TensorRTEncoder:
    """encoder.onnx; see ``EncoderExecutor``."""

    def __init__(self, engine: FixedEngine) -> None:
        self._engine = engine

    def encode(self, inputs: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float32]:
        """Tensors by name -> states (L, hidden)."""
        states: NDArray[np.float32] = self._engine.run(inputs)[names.ENCODER_STATES].copy()
        return states

    def close(self) -> None:
        """Give buffers and engine back."""
        self._engine.close()


class TensorRTCross:
    """cross.onnx over ``pools``, which ``engine`` writes; see ``CrossExecutor``."""

    def __init__(self, engine: FixedEngine, pools: DevicePools) -> None:
        self._engine = engine
        self.pools = pools

    def write(self, states: NDArray[np.float32], slots: NDArray[np.int32]) -> None:
        """Keys and values of encoder states (L, hidden) into their slots (L,)."""
        self._engine.run({names.ENCODER_STATES: states, names.CROSS_SLOT_MAPPING: slots})

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """Contents of pages, (num_layers, 2, n, Hk, S, W)."""
        return self.pools.read_pages(pages)

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, W) into pages."""
        self.pools.write_pages(pages, contents)

    def close(self) -> None:
        """Give buffers, pools and engine back."""
        self._engine.close()
