"""ONNX Runtime on CUDA: the same graph, the operator's GPU kernels, pools in GPU memory.

Owns: the pools, which are bound by address as graph inputs and outputs at once, so steps write in
place, and the page table, of which only what has changed travels. Guarantees: what cannot run on
the GPU is refused and not moved to the CPU silently; pools and table are taken at construction. A
step's other inputs are copied by ONNX Runtime. Does not know sequences, bundles or pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.cuda import Cuda
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.device_table import DeviceTable, padded_columns
from edgekv.executors.ort_session import (
    OrtStep,
    OrtVision,
    Providers,
    element_type,
    open_graph,
)
from edgekv.executors.signature import Signature, check_signature, decoder_signature
from edgekv.native import ort_cuda_library_path
from edgekv.types import StepTables

# Memory is taken as it is asked for: doubling it each time would break a budget.
CUDA: Providers = {
    "CUDAExecutionProvider": {
        "device_id": "0",
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",  # an exhaustive search takes a GiB of scratch
    },
    "CPUExecutionProvider": {},  # shapes are computed there
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the executor runs; exists so that all of it is tested where there is no GPU."""

    providers: Providers
    memory: str  # ONNX Runtime's name of the memory that pools lie in
    library: Callable[[], Path]
    cuda: Callable[[], Cuda]


def gpu() -> Place:
    """The first GPU."""
    from edgekv.executors.cuda_driver import CudaDriver

    return Place(CUDA, "cuda", ort_cuda_library_path, CudaDriver)


class OrtCudaDecoder:
    """decoder.onnx with pools of ``num_pages`` pages; see ``DecoderExecutor``."""

    def __init__(
        self,
        path: Path,
        geometry: KVGeometry,
        *,
        num_pages: int,
        max_columns: int | None = None,  # pages a sequence may hold, None = all
        max_rows: int = 8,  # sequences in one step
        signature: Signature | None = None,  # None = what the geometry alone asks for
        cross_pools: DevicePools | None = None,
        place: Place | None = None,  # None = the GPU
    ) -> None:
        place = place or gpu()
        session, found = open_graph(path, 0, providers=place.providers, library=place.library())
        page_mass = names.PAGE_MASS in found.taken
        signature = signature or decoder_signature(geometry, page_mass=page_mass)
        check_signature(path.name, signature, found)
        axes = geometry.num_rope_axes
        self._step = OrtStep(session, num_rope_axes=axes, placed=[names.PAGE_TABLE])
        self._memory, self._cuda = place.memory, place.cuda()
        self._max_rows, self._max_columns = max_rows, max_columns or num_pages
        self._pools = DevicePools(self._cuda, geometry, num_pages, page_mass=page_mass)
        try:
            self._table = DeviceTable(
                self._cuda, max_rows=max_rows, max_columns=self._max_columns, width=2 + axes
            )
        except BaseException:
            self._pools.free()
            raise
        self._closed = False
        for pool, address in [] if cross_pools is None else cross_pools.bindings():
            where = (place.memory, 0, element_type(pool.dtype), pool.shape, address)
            for binding in self._step.bindings:
                binding.bind_input(pool.source, *where)
        for pool, address in self._pools.bindings():
            where = (place.memory, 0, element_type(pool.dtype), pool.shape, address)
            for binding in self._step.bindings:
                binding.bind_input(pool.source, *where)
                binding.bind_output(pool.target, *where)

    def run(
        self,
        embeds: NDArray[np.float32],
        tables: StepTables,
        logit_indices: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """One step; see ``DecoderExecutor.run``. Raises ExecutorError when the graph fails."""
        self._send(tables.page_table)
        return self._step.run(embeds, tables, logit_indices)

    def _send(self, table: NDArray[np.int32]) -> None:
        """Have the next step read ``table`` (B, M, 2 + A), on the GPU."""
        if self._closed:
            raise ExecutorError("the decoder executor is closed")
        num_rows, num_columns, width = table.shape
        if num_rows > self._max_rows or num_columns > self._max_columns:
            raise ExecutorError(
                f"a step takes up to {self._max_rows} rows of {self._max_columns} pages, "
                f"got {num_rows} of {num_columns}"
            )
        columns = padded_columns(num_columns, self._max_columns)
        self._table.send(table, columns)
        self._cuda.synchronise()  # ONNX Runtime has a stream of its own
        where = (self._memory, 0, np.int32, (num_rows, columns, width), self._table.address)
        for binding in self._step.bindings:
            binding.bind_input(names.PAGE_TABLE, *where)

    @property
    def shows_queries(self) -> bool:
        """Whether the graph has such an output."""
        return self._step.shows_queries

    def queries(self, embeds: NDArray[np.float32], tables: StepTables) -> NDArray[np.float32]:
        """One step for its queries (T, Hq * D); see ``DecoderExecutor.queries``."""
        self._send(tables.page_table)
        return self._step.queries(embeds, tables)

    def take_mass(self, pages: NDArray[np.int32]) -> NDArray[np.float32]:
        """Attention on pages since the last call for them; they start from 0 again."""
        return self._pools.take_mass(pages)

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole pages in every pool."""
        self._pools.copy_pages(source, target)

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """Contents of pages, (num_layers, 2, n, Hk, S, W), as ``edgekv.contents``."""
        return self._pools.read_pages(pages)

    def read_values(self, pages: NDArray[np.int32], layer: int) -> NDArray[np.generic]:
        """Contents of pages, the values of one layer: (n, Hk, S, W)."""
        return self._pools.read_values(pages, layer)

    def find_values(self, layer: int) -> None:
        """None: they are on the device."""

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, W), as ``edgekv.contents`` into pages."""
        self._pools.write_pages(pages, contents)

    def close(self) -> None:
        """Give graph, table and pools back."""
        if self._closed:
            return
        self._closed = True
        self._step.close()
        self._table.free()
        self._pools.free()


def cuda_vision(path: Path, *, signature: Signature | None) -> OrtVision:
    """vision.onnx on the GPU."""
    return OrtVision(path, signature=signature, providers=CUDA)
