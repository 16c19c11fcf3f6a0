"""Memory that both sides of a step touch: page-locked bytes and, where it pays, a copy on the GPU.

Owns: twins, and the choice of what is copied. Guarantees: taken once, at fixed addresses. Does not
know what is in them, nor when a copy has run: who writes ``host`` again has waited for it.

Why not simply share everything on Jetson: the GPU does not cache page-locked host memory there
(CUDA for Tegra, memory types). What it reads once may stay there, which saves the copy; what every
layer reads again belongs in device memory, and so do the pools. Managed memory is no way out: on
GPUs without concurrent access the host may not touch any of it while a step runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgekv.executors.cuda import Block, Cuda, DeviceInfo


@dataclass(frozen=True, slots=True)
class Sharing:
    """Whether inputs that are read once are copied to the GPU, and why."""

    kind: Literal["copied", "mapped"]
    reason: str


def choose_sharing(info: DeviceInfo) -> Sharing:
    """How inputs that are read once reach this GPU."""
    if info.integrated:
        return Sharing("mapped", f"{info.name} shares the CPU's memory: read in place")
    return Sharing("copied", f"{info.name} has memory of its own: one copy a step")


class Twin:
    """Host bytes and where the GPU finds them."""

    def __init__(self, cuda: Cuda, num_bytes: int, *, mapped: bool) -> None:
        self._cuda = cuda
        host = cuda.allocate(num_bytes, "host")
        try:
            self._device: Block | None = None if mapped else cuda.allocate(num_bytes, "device")
        except BaseException:
            host.free()
            raise
        assert host.host is not None
        self._block = host
        self.host = host.host  # (num_bytes,) uint8
        self.address = host.address if self._device is None else self._device.address

    def upload(self, start: int, end: int) -> None:
        """Queue the copy of bytes ``start`` to ``end`` to the GPU, if it has its own."""
        if self._device is not None and end > start:
            source = self.host[start:].ctypes.data
            self._cuda.copy(self._device.address + start, source, end - start)

    def download(self, num_bytes: int) -> None:
        """Queue the copy of the first bytes back to the host, if the GPU has its own."""
        if self._device is not None:
            self._cuda.copy(self.host.ctypes.data, self._device.address, num_bytes)

    def free(self) -> None:
        """Give both back."""
        self._block.free()
        if self._device is not None:
            self._device.free()
