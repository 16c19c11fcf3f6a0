"""Cross-attention's two graphs in ONNX Runtime: the encoder, and the writer of the cross pools.

Owns: the cross pools, of the CPU or of a GPU, and two inference sessions. Guarantees: memory is
taken at construction; the pools are written in place. Does not know what an input is, nor which
pages hold what.
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
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.host_pools import HostPools
from edgekv.executors.ort_cpu import shared_value
from edgekv.executors.ort_cuda import Place
from edgekv.executors.ort_session import CPU, Providers, element_type, open_graph
from edgekv.executors.signature import Signature, check_signature
from edgekv.native import ort_library_path


class OrtEncoder:
    """encoder.onnx; see ``EncoderExecutor``."""

    def __init__(
        self,
        path: Path,
        *,
        num_threads: int = 0,
        signature: Signature | None = None,
        providers: Providers = CPU,
    ) -> None:
        self._session: Any
        self._session, found = open_graph(path, num_threads, providers=providers)
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
        place: Place | None = None,  # of a GPU, None = the CPU
    ) -> None:
        providers = CPU if place is None else place.providers
        library = ort_library_path() if place is None else place.library()
        self._session: Any
        self._session, found = open_graph(path, num_threads, providers=providers, library=library)
        if signature is not None:
            check_signature(path.name, signature, found)
        self._binding = self._session.io_binding()
        self.pools: HostPools | DevicePools
        if place is None:
            self.pools = self._bind_host(HostPools(geometry, num_pages, cross=True))
        else:
            pools = DevicePools(place.cuda(), geometry, num_pages, cross=True)
            self.pools = self._bind_device(pools, place.memory)

    def _bind_host(self, pools: HostPools) -> HostPools:
        for tensor, array in zip(pools.tensors, pools.arrays, strict=True):
            value = shared_value(tensor, array)
            self._binding.bind_ortvalue_input(tensor.source, value)
            self._binding.bind_ortvalue_output(tensor.target, value)
        return pools

    def _bind_device(self, pools: DevicePools, memory: str) -> DevicePools:
        for tensor, address in pools.bindings():
            where = (memory, 0, element_type(tensor.dtype), tensor.shape, address)
            self._binding.bind_input(tensor.source, *where)
            self._binding.bind_output(tensor.target, *where)
        return pools

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
        """Contents of pages, (num_layers, 2, n, Hk, S, W)."""
        return self.pools.read_pages(pages)

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, W) into pages."""
        self.pools.write_pages(pages, contents)

    def close(self) -> None:
        """Give pools and graph back."""
        self._session = None
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        self.pools.free()
