"""A GPU made of host memory, and TensorRT's context played by ONNX Runtime.

Owns: a stream that does nothing until somebody waits, as a real one may; that a buffer of the host
was overwritten before the copy from it ran, is an error. A recorded graph keeps the addresses and
shapes it was recorded with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgekv import names, native
from edgekv.errors import ExecutorError
from edgekv.executors.cuda import Block, DeviceInfo, MemoryKind
from edgekv.executors.ort_session import element_type
from edgekv.executors.signature import Signature
from edgekv.executors.tensorrt.jobs import EngineJob
from edgekv.executors.tensorrt.profiles import Dims, Profile

Work = Callable[[], object]
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(int8)": "int8",
}
ALIGNMENT = 256  # of CUDA's allocations


class HostGraph:
    def __init__(self, cuda: HostCuda, work: list[Work]) -> None:
        self._cuda, self._work = cuda, work

    def launch(self) -> None:
        self._cuda.queue.extend(self._work)
        self._cuda.num_launches += 1

    def free(self) -> None:
        self._work = []
        self._cuda.num_graphs -= 1


class HostCuda:
    """See ``edgekv.executors.cuda.Cuda``. ``limit`` bytes can be allocated."""

    stream = 7

    def __init__(self, *, integrated: bool = False, limit: int = 2**30) -> None:
        self.info = DeviceInfo("Host GPU", (8, 7), integrated, limit)
        self.queue: list[Work] = []
        self.blocks: dict[int, np.ndarray[Any, Any]] = {}
        self._device_blocks: dict[int, int] = {}  # address, bytes
        self.copied: list[int] = []  # bytes of each copy that was queued
        self.num_launches = 0
        self.num_graphs = 0
        self.most_bytes = 0  # that were ever taken at once
        self._limit = limit

    def allocate(self, num_bytes: int, kind: MemoryKind) -> Block:
        if num_bytes > self.free_bytes():
            raise ExecutorError(f"allocating {num_bytes} bytes failed")
        raw = np.full(num_bytes + ALIGNMENT, 0xFF, np.uint8)  # as floats: NaN
        start = -raw.ctypes.data % ALIGNMENT
        memory = raw[start : start + num_bytes]
        address = memory.ctypes.data
        self.blocks[address] = memory
        self.most_bytes = max(self.most_bytes, self._limit - self.free_bytes())
        if kind == "device":
            self._device_blocks[address] = num_bytes
        return Block(
            address, memory if kind == "host" else None, num_bytes, lambda: self._free(address)
        )

    def _free(self, address: int) -> None:
        assert not self.queue, "freed while work was queued"
        del self.blocks[address]
        self._device_blocks.pop(address, None)

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        self.copied.append(num_bytes)
        inside = (
            start <= source < start + size for start, size in self._device_blocks.items()
        )  # what work in front of the copy may write
        before = None if any(inside) else ctypes.string_at(source, num_bytes)

        def run() -> None:
            now = ctypes.string_at(source, num_bytes)
            assert before is None or now == before, "overwritten before it was copied"
            ctypes.memmove(target, source, num_bytes)

        self.queue.append(run)

    def capture(self, work: Work) -> HostGraph:
        before, self.queue = self.queue, []
        try:
            work()
            graph = HostGraph(self, self.queue)
        finally:
            self.queue = before
        self.num_graphs += 1
        return graph

    def synchronise(self) -> None:
        work, self.queue = self.queue, []
        for step in work:
            step()

    def free_bytes(self) -> int:
        return self._limit - sum(block.nbytes for block in self.blocks.values())


class HostContext:
    """Runs a graph at the addresses it is given; refuses what its profile does not admit."""

    def __init__(self, graph: Path, signature: Signature, profile: Profile, cuda: HostCuda) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
        options.register_custom_ops_library(str(native.ort_library_path()))
        self._session = ort.InferenceSession(
            str(graph), options, providers=["CPUExecutionProvider"]
        )
        self._signature, self._profile, self._cuda = signature, profile, cuda
        self._shapes: dict[str, Dims] = {}
        self._addresses: dict[str, int] = {}
        self.fail = False
        self.num_plain_runs = 0

    def output_size(self, name: str) -> int:
        """Of a row of the output, 0 = the graph has none of this name."""
        return next((one.shape[1] for one in self._session.get_outputs() if one.name == name), 0)

    def set_input_shape(self, name: str, shape: Dims, /) -> bool:
        self._shapes[name] = shape
        return self._profile.ranges[name].admits(shape)

    def set_tensor_address(self, name: str, address: int, /) -> bool:
        self._addresses[name] = address
        return address % ALIGNMENT == 0

    def execute_async_v3(self, stream: int, /) -> bool:
        if self.fail or stream != self._cuda.stream:
            return False
        if any(one.name not in self._addresses for one in self._session.get_outputs()):
            return False  # TensorRT wants every output somewhere
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        self._cuda.queue.append(lambda: self._run(shapes, addresses))
        self.num_plain_runs += 1
        return True

    def _run(self, shapes: dict[str, Dims], addresses: dict[str, int]) -> None:
        binding = self._session.io_binding()
        views = []
        for name, (dtype, _) in self._signature.taken.items():
            view = view_at(addresses[name], shapes[name], dtype)
            views.append(view)
            binding.bind_ortvalue_input(name, _shared(view, dtype))
        for one in self._session.get_outputs():
            name, dtype = one.name, _DTYPES[one.type]
            shape = shapes.get(name.replace("_out", "")) or self._result_shape(one, shapes)
            view = view_at(addresses[name], shape, dtype)
            views.append(view)
            binding.bind_ortvalue_output(name, _shared(view, dtype))
        self._session.run_with_iobinding(binding)

    def _result_shape(self, result: ort.NodeArg, shapes: dict[str, Dims]) -> Dims:
        rows_like = {
            names.LOGITS: names.LOGIT_INDICES,
            names.QUERIES: names.INPUTS_EMBEDS,
            names.IMAGE_EMBEDS: names.PIXEL_VALUES,
        }
        if result.name not in rows_like:  # one whose shape is fixed
            return tuple(result.shape)
        return (shapes[rows_like[result.name]][0], *result.shape[1:])


class HostRunning:
    """See ``edgekv.executors.tensorrt.engine.Running``: the graph of a job in place of its
    engine."""

    def __init__(self, job: EngineJob, cuda: HostCuda) -> None:
        self.contexts = [
            HostContext(job.graph, job.signature, profile, cuda) for profile in job.profiles
        ]
        self.query_size = self.contexts[0].output_size(names.QUERIES)
        self.num_released = 0

    def take_error(self) -> str:
        return "no reason"

    def release(self) -> None:
        self.num_released += 1


def _shared(view: np.ndarray[Any, Any], dtype: str) -> ort.OrtValue:
    if dtype == "bfloat16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(view, element_type(dtype))
    return ort.OrtValue.ortvalue_from_numpy(view)


def view_at(address: int, shape: Dims, dtype: str) -> np.ndarray[Any, Any]:
    """The array that lies at ``address``; bfloat16 as its bits."""
    kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    raw = (ctypes.c_uint8 * (int(np.prod(shape)) * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, kind).reshape(shape)
