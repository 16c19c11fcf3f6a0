"""ONNX Runtime on the CPU.

Owns: the pools, host memory bound as graph inputs and outputs at once, so steps write in place.
Guarantees: memory is taken at construction. Does not know sequences, bundles or pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.host_pools import HostPools
from edgekv.executors.ort_library import ort
from edgekv.executors.ort_session import OrtStep, OrtVision, element_type, open_graph
from edgekv.executors.pool_tensors import PoolTensor, mass_tensor
from edgekv.executors.signature import Signature, check_signature, decoder_signature
from edgekv.native import ort_library_path
from edgekv.native.columns import PageValues
from edgekv.types import StepTables

__all__ = ["OrtDecoder", "OrtVision"]


def shared_value(tensor: PoolTensor, array: NDArray[Any]) -> ort.OrtValue:
    """The same memory, as ONNX Runtime binds it."""
    element = element_type(tensor.dtype)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, element)
    if value.data_ptr() != array.ctypes.data:
        raise ExecutorError("this onnxruntime copies arrays it should share; please report it")
    return value


class OrtDecoder:
    """decoder.onnx with pools of ``num_pages`` pages; see ``DecoderExecutor``."""

    def __init__(
        self,
        path: Path,
        geometry: KVGeometry,
        *,
        num_pages: int,
        num_threads: int = 0,
        signature: Signature | None = None,  # None = what the geometry alone asks for
        cross_pools: HostPools | None = None,
    ) -> None:
        session, found = open_graph(path, num_threads, library=ort_library_path())
        page_mass = names.PAGE_MASS in found.taken
        signature = signature or decoder_signature(geometry, page_mass=page_mass)
        check_signature(path.name, signature, found)
        self._step = OrtStep(session, num_rope_axes=geometry.num_rope_axes)
        self._pools = HostPools(geometry, num_pages)
        for tensor, array in zip(self._pools.tensors, self._pools.arrays, strict=True):
            self._bind_in_place(tensor, array)
        self._mass = np.zeros(num_pages, np.float32)
        if page_mass:
            self._bind_in_place(mass_tensor(num_pages), self._mass)
        if cross_pools is not None:
            for tensor, array in zip(cross_pools.tensors, cross_pools.arrays, strict=True):
                self._step.bind_input(tensor.source, shared_value(tensor, array))

    def _bind_in_place(self, tensor: PoolTensor, array: NDArray[Any]) -> None:
        self._step.bind_in_place(tensor.source, tensor.target, shared_value(tensor, array))

    def run(
        self,
        embeds: NDArray[np.float32],
        tables: StepTables,
        logit_indices: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """One step; see ``DecoderExecutor.run``. Raises ExecutorError when the graph fails."""
        return self._step.run(embeds, tables, logit_indices)

    @property
    def shows_queries(self) -> bool:
        """Whether the graph has such an output."""
        return self._step.shows_queries

    def queries(self, embeds: NDArray[np.float32], tables: StepTables) -> NDArray[np.float32]:
        """One step for its queries (T, Hq * D); see ``DecoderExecutor.queries``."""
        return self._step.queries(embeds, tables)

    def take_mass(self, pages: NDArray[np.int32]) -> NDArray[np.float32]:
        """Attention on pages since the last call for them; they start from 0 again."""
        mass: NDArray[np.float32] = self._mass[pages]
        self._mass[pages] = 0
        return mass

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole pages in every pool."""
        self._pools.copy_pages(source, target)

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """Contents of pages, (num_layers, 2, n, Hk, S, W)."""
        return self._pools.read_pages(pages)

    def read_values(self, pages: NDArray[np.int32], layer: int) -> NDArray[np.generic]:
        """Contents of pages, the values of one layer: (n, Hk, S, W)."""
        return self._pools.read_values(pages, layer)

    def find_values(self, layer: int) -> PageValues:
        """Where the values of one layer are."""
        return self._pools.find_values(layer)

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, W) into pages."""
        self._pools.write_pages(pages, contents)

    def close(self) -> None:
        """Give pools and graph back."""
        self._step.close()
        self._pools.free()
