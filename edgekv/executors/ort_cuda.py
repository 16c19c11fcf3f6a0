"""ONNX Runtime on CUDA: the same graph, the operator's GPU kernels, pools in GPU memory.

Owns: the pools, which are bound by address as graph inputs and outputs at once, so steps write in
place. Guarantees: what cannot run on the GPU is refused and not moved to the CPU silently; pools
are taken at construction. A step's small inputs are copied by ONNX Runtime. Does not know
sequences, bundles or pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.executors.cuda import Cuda
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.ort_session import OrtStep, OrtVision, Providers, open_graph
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
        signature: Signature | None = None,  # None = what the geometry alone asks for
        place: Place | None = None,  # None = the GPU
    ) -> None:
        place = place or gpu()
        session, found = open_graph(path, 0, providers=place.providers, library=place.library())
        page_mass = names.PAGE_MASS in found.taken
        signature = signature or decoder_signature(geometry, page_mass=page_mass)
        check_signature(path.name, signature, found)
        self._step = OrtStep(session, num_rope_axes=geometry.num_rope_axes)
        self._pools = DevicePools(place.cuda(), geometry, num_pages, page_mass=page_mass)
        for pool in self._pools.bindings():
            where = (place.memory, 0, pool.dtype.type, pool.shape, pool.address)
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
        return self._pools.take_mass(pages)

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole pages in every pool."""
        self._pools.copy_pages(source, target)

    def read_pages(
        self, pages: NDArray[np.int32], layers: slice = slice(None)
    ) -> NDArray[np.generic]:
        """Contents of pages, (num_layers, 2, n, Hk, S, D)."""
        return self._pools.read_pages(pages, layers)

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, D) into pages."""
        self._pools.write_pages(pages, contents)

    def close(self) -> None:
        """Give graph and pools back."""
        self._step.close()
        self._pools.free()


def cuda_vision(path: Path, *, signature: Signature | None) -> OrtVision:
    """vision.onnx on the GPU."""
    return OrtVision(path, signature=signature, providers=CUDA)
