"""An engine that is given the same shapes every time: pictures, what cross-attention sees.

Owns: a twin for each input and output that is no pool, the pools that it writes, its CUDA graph.
Guarantees: all memory is taken at construction, and given back if that fails; a call has ended when
it returns, well or badly. Does not know what goes through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.errors import ExecutorError
from edgekv.executors.cuda import Cuda, Graph
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.signature import Signature, Tensors
from edgekv.executors.tensorrt.bindings import put, tensor_bytes
from edgekv.executors.tensorrt.engine import Running, check
from edgekv.executors.tensorrt.profiles import Dims
from edgekv.executors.twin import Twin, choose_sharing


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A tensor and where it lies."""

    twin: Twin
    shape: Dims
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @property
    def array(self) -> NDArray[Any]:
        """Its numbers on the host."""
        return self.twin.host[: self.num_bytes].view(self.dtype).reshape(self.shape)


class FixedEngine:
    """Runs an engine of one profile."""

    def __init__(
        self,
        running: Running,
        cuda: Cuda,
        signature: Signature,  # sizes that are open are 1, but for those of pools
        *,
        name: str,
        pools: DevicePools | None = None,  # written in place
        reread: bool = False,  # several layers read the inputs, so the GPU gets them in any case
    ) -> None:
        self._running, self._cuda, self._pools, self._name = running, cuda, pools, name
        (self._context,) = running.contexts
        self._graph: Graph | None = None
        self._ran = self._closed = False
        self._twins: list[Twin] = []
        shared = choose_sharing(cuda.info).kind == "mapped"
        try:
            self._bind_pools()
            self._taken = self._bind(signature.taken, mapped=shared and not reread)
            self._given = self._bind(signature.given, mapped=shared)
            for source, buffer in self._taken.items():
                self._shape(source, buffer.shape)
        except BaseException:
            self.close()
            raise

    def _bind_pools(self) -> None:
        for pool, address in self._pools.bindings() if self._pools is not None else []:
            self._shape(pool.source, pool.shape)
            for name in (pool.source, pool.target):
                self._address(name, address)

    def _bind(self, tensors: Tensors, *, mapped: bool) -> dict[str, _Buffer]:
        pools = [] if self._pools is None else self._pools.bindings()
        bound = {name for pool, _ in pools for name in (pool.source, pool.target)}
        buffers = {}
        for name, (kind, dims) in tensors.items():
            if name in bound:
                continue
            shape, dtype = tuple(size or 1 for size in dims), np.dtype(kind)
            twin = Twin(self._cuda, tensor_bytes(shape, dtype), mapped=mapped)
            self._twins.append(twin)
            buffers[name] = _Buffer(twin, shape, dtype)
            self._address(name, twin.address)
        return buffers

    def _shape(self, name: str, shape: Dims) -> None:
        check(self._running, self._context.set_input_shape(name, shape), f"shaping {name}")

    def _address(self, name: str, address: int) -> None:
        check(self._running, self._context.set_tensor_address(name, address), f"binding {name}")

    def output_shape(self, name: str) -> Dims:
        """The shape of an output that is no pool."""
        return self._given[name].shape

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[Any]]:
        """The outputs that are no pools; they hold until the next call.

        Raises ExecutorError for inputs that the engine does not take, and when it fails.
        """
        if self._closed:
            raise ExecutorError(f"the {self._name} executor is closed")
        self._check_inputs(inputs)
        try:
            for name, buffer in self._taken.items():
                put(buffer.twin.host, 0, inputs[name])
                buffer.twin.upload(0, buffer.num_bytes)
            self._launch()
            for buffer in self._given.values():
                buffer.twin.download(buffer.num_bytes)
        finally:
            self._cuda.synchronise()
        return {name: buffer.array for name, buffer in self._given.items()}

    def _check_inputs(self, inputs: Mapping[str, NDArray[np.generic]]) -> None:
        if inputs.keys() != self._taken.keys():
            wanted, got = ", ".join(sorted(self._taken)), ", ".join(sorted(inputs))
            raise ExecutorError(f"the {self._name} engine takes {wanted}, got {got or 'nothing'}")
        for name, buffer in self._taken.items():
            array = inputs[name]
            if array.shape != buffer.shape or array.dtype != buffer.dtype:
                raise ExecutorError(
                    f"the {self._name} engine takes {name} {buffer.shape} {buffer.dtype}, "
                    f"got {array.shape} {array.dtype}"
                )

    def _launch(self) -> None:
        if self._graph is None and self._ran:  # TensorRT wants a plain run before it records
            self._graph = self._cuda.capture(self._execute)
        if self._graph is not None:
            self._graph.launch()
            return
        self._execute()
        self._ran = True

    def _execute(self) -> None:
        went_well = self._context.execute_async_v3(self._cuda.stream)
        check(self._running, went_well, f"the {self._name} graph")

    def close(self) -> None:
        """Give buffers, pools and the engine back."""
        if self._closed:
            return
        self._closed = True
        if self._graph is not None:
            self._graph.free()
        while self._twins:
            self._twins.pop().free()
        if self._pools is not None:
            self._pools.free()
        self._running.release()
