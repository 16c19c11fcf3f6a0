"""CUDA through NVIDIA's own Python bindings: the only module that imports them.

Owns: the primary context of one GPU and one stream. The driver interface and not the runtime's:
``libcuda`` comes with every driver, so no CUDA release has to match another
(docs/adr/0008-cuda-from-python.md). Guarantees: works from any thread; every error is one line that
names the call. Does not know graphs, engines or pools.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver

from edgekv.errors import ExecutorError
from edgekv.executors.cuda import Block, DeviceInfo, MemoryKind
from edgekv.memory import available_bytes

_Attribute = driver.CUdevice_attribute


def _checked(call: str, result: tuple[Any, ...]) -> Any:
    """What ``call`` gave besides its error code. Raises ExecutorError unless that says success."""
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise ExecutorError(f"CUDA: {call} failed with {code.name}")
    return values[0] if len(values) == 1 else tuple(values)


class DriverGraph:
    """An instantiated CUDA graph on the stream it was captured from."""

    def __init__(self, owner: CudaDriver, executable: Any) -> None:
        self._owner = owner
        self._executable = executable

    def launch(self) -> None:
        """See ``Graph.launch``."""
        self._owner.enter()
        _checked("cuGraphLaunch", driver.cuGraphLaunch(self._executable, self._owner.handle))

    def free(self) -> None:
        """See ``Graph.free``."""
        self._owner.enter()
        _checked("cuGraphExecDestroy", driver.cuGraphExecDestroy(self._executable))


class CudaDriver:
    """See ``Cuda``."""

    def __init__(self, ordinal: int = 0) -> None:
        try:
            _checked("cuInit", driver.cuInit(0))
        except RuntimeError as error:  # the bindings', for a library they do not find
            raise ExecutorError(f"CUDA: no driver: {str(error).splitlines()[0]}") from error
        self._device = _checked("cuDeviceGet", driver.cuDeviceGet(ordinal))
        self._context = _checked(
            "cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(self._device)
        )
        self.enter()
        name = _checked("cuDeviceGetName", driver.cuDeviceGetName(128, self._device))
        self.info = DeviceInfo(
            name=name.split(b"\0")[0].decode(errors="replace"),
            compute_capability=(
                self._attribute(_Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                self._attribute(_Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            integrated=bool(self._attribute(_Attribute.CU_DEVICE_ATTRIBUTE_INTEGRATED)),
            total_bytes=int(_checked("cuDeviceTotalMem", driver.cuDeviceTotalMem(self._device))),
        )
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.handle = _checked("cuStreamCreate", driver.cuStreamCreate(flags))
        self.stream = int(self.handle)

    def _attribute(self, which: Any) -> int:
        return int(
            _checked("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(which, self._device))
        )

    def enter(self) -> None:
        """Make the context this thread's: questions may come from threads CUDA has not seen."""
        _checked("cuCtxSetCurrent", driver.cuCtxSetCurrent(self._context))

    def allocate(self, num_bytes: int, kind: MemoryKind) -> Block:
        """See ``Cuda.allocate``."""
        self.enter()
        if kind == "device":
            address = _checked(
                f"allocating {num_bytes} bytes on the GPU", driver.cuMemAlloc(num_bytes)
            )
            return Block(int(address), None, num_bytes, lambda: self._free_device(address))
        flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
        pointer = int(
            _checked(
                f"allocating {num_bytes} page-locked bytes", driver.cuMemHostAlloc(num_bytes, flags)
            )
        )
        address = _checked(
            "cuMemHostGetDevicePointer", driver.cuMemHostGetDevicePointer(pointer, 0)
        )
        host = np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(pointer))
        return Block(int(address), host, num_bytes, lambda: self._free_host(pointer))

    def _free_device(self, address: Any) -> None:
        self.enter()
        _checked("cuMemFree", driver.cuMemFree(address))

    def _free_host(self, pointer: int) -> None:
        self.enter()
        _checked("cuMemFreeHost", driver.cuMemFreeHost(pointer))

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """See ``Cuda.copy``."""
        self.enter()
        _checked(
            "cuMemcpyAsync",
            driver.cuMemcpyAsync(
                driver.CUdeviceptr(target), driver.CUdeviceptr(source), num_bytes, self.handle
            ),
        )

    def capture(self, work: Callable[[], None]) -> DriverGraph:
        """See ``Cuda.capture``."""
        self.enter()
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _checked("cuStreamBeginCapture", driver.cuStreamBeginCapture(self.handle, mode))
        try:
            work()
        except BaseException:
            driver.cuStreamEndCapture(self.handle)  # the capture is void, the first error counts
            raise
        graph = _checked("cuStreamEndCapture", driver.cuStreamEndCapture(self.handle))
        try:
            executable = _checked("cuGraphInstantiate", driver.cuGraphInstantiate(graph, 0))
        finally:
            driver.cuGraphDestroy(graph)
        return DriverGraph(self, executable)

    def synchronise(self) -> None:
        """See ``Cuda.synchronise``."""
        self.enter()
        _checked("a step on the GPU", driver.cuStreamSynchronize(self.handle))

    def free_bytes(self) -> int:
        """See ``Cuda.free_bytes``: cuMemGetInfo does not count cache that can be reclaimed."""
        available = available_bytes() if self.info.integrated else None
        if available is not None:
            return available
        self.enter()
        free, _ = _checked("cuMemGetInfo", driver.cuMemGetInfo())
        return int(free)
