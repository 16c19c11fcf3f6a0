"""Cross-attention's two graphs on the CPU: the encoder, and the writer of the cross pools.

Owns: the cross pools and two inference sessions. Guarantees: memory is taken at construction; the
pools are written in place. Does not know what an input is, nor which pages hold what.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.ort_cpu import make_pool, shared_value
from edgekv.executors.ort_session import open_graph
from edgekv.executors.signature import Signature, check_signature
from edgekv.native import ort_library_path


class OrtEncoder:
    """encoder.onnx; see ``EncoderExecutor``."""

    def __init__(
        self, path: Path, *, num_threads: int = 0, signature: Signature | None = None
    ) -> None:
        self._session: Any
        self._session, found = open_graph(path, num_threads)
        if signature is not None:
            check_signature(path.name, signature, found)

    def encode(self, inputs: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float32]:
        """Tensors by name -> states (L, hidden)."""
        if self._session is None:
            raise ExecutorError("the encoder executor is closed")
        try:
            (states,) = self._session.run([names.ENCODER_STATES], dict(inputs))
        except Exception as error:  # onnxruntime raises a dozen unrelated types here
            raise ExecutorError(f"encoder graph failed: {str(error).splitlines()[0]}") from error
        found: NDArray[np.float32] = states
        return found

    def close(self) -> None:
        """Give the graph back."""
        self._session = None


class OrtCross:
    """cross.onnx with pools of ``num_pages`` pages; see ``CrossExecutor``."""

    def __init__(
        self,
        path: Path,
        geometry: KVGeometry,
        *,
        num_pages: int,
        num_threads: int = 0,
        signature: Signature | None = None,
    ) -> None:
        self._session: Any
        self._session, found = open_graph(path, num_threads, library=ort_library_path())
        if signature is not None:
            check_signature(path.name, signature, found)
        self._binding = self._session.io_binding()
        shape = (num_pages, geometry.num_kv_heads, geometry.page_size, geometry.head_dim)
        self.pools: dict[str, NDArray[np.generic]] = {}  # by the names of their graph inputs
        for layer in range(geometry.num_layers):
            for takes, gives in (
                (names.cross_key_pool(layer), names.cross_key_pool_out(layer)),
                (names.cross_value_pool(layer), names.cross_value_pool_out(layer)),
            ):
                self.pools[takes] = make_pool(shape, geometry)
                value = shared_value(self.pools[takes])
                self._binding.bind_ortvalue_input(takes, value)
                self._binding.bind_ortvalue_output(gives, value)

    def write(self, states: NDArray[np.float32], slots: NDArray[np.int32]) -> None:
        """Keys and values of encoder states (L, hidden) into their slots (L,)."""
        if self._session is None:
            raise ExecutorError("the cross executor is closed")
        self._binding.bind_cpu_input(names.ENCODER_STATES, np.ascontiguousarray(states))
        self._binding.bind_cpu_input(names.CROSS_SLOT_MAPPING, slots)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # onnxruntime raises a dozen unrelated types here
            raise ExecutorError(f"cross graph failed: {str(error).splitlines()[0]}") from error

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """Contents of pages, (num_layers, 2, n, Hk, S, D)."""
        stacked = np.stack([pool[pages] for pool in self.pools.values()])
        return stacked.reshape(len(self.pools) // 2, 2, *stacked.shape[1:])

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, D) into pages."""
        parts = contents.reshape(-1, *contents.shape[2:])
        for pool, content in zip(self.pools.values(), parts, strict=True):
            pool[pages] = content

    def close(self) -> None:
        """Give pools and graph back."""
        self._session = None
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        self.pools.clear()
