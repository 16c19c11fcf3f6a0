"""What executors on a GPU need of CUDA, as a protocol, and the values it speaks in.

Owns: nothing. Exists so that planning, binding and page copies are tested where there is no GPU,
over a CUDA that is host memory. Knows no graph library and imports no CUDA library:
``cuda_driver`` implements it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

# device: only the GPU sees it. host: page-locked, and the GPU reads and writes it too (mapped).
MemoryKind = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The GPU in use."""

    name: str
    compute_capability: tuple[int, int]
    integrated: bool  # shares its memory with the CPU, as on Jetson
    total_bytes: int

    @property
    def arch(self) -> str:
        """As compilers write it: ``sm_87``."""
        return "sm_{}{}".format(*self.compute_capability)


@dataclass(frozen=True, slots=True)
class Block:
    """One allocation. ``address`` is valid on the GPU; ``host`` is the same bytes on the CPU."""

    address: int
    host: NDArray[np.uint8] | None  # (num_bytes,), None for device memory
    num_bytes: int
    free: Callable[[], None]


class Graph(Protocol):
    """Recorded work that is launched as one."""

    def launch(self) -> None:
        """Queue all of it again, with the addresses and shapes it was recorded with."""
        ...

    def free(self) -> None:
        """Forget it. Nothing of it may be running."""
        ...


class Cuda(Protocol):
    """One GPU and one stream; everything queued runs in order."""

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def stream(self) -> int:
        """The handle that libraries take."""
        ...

    def allocate(self, num_bytes: int, kind: MemoryKind) -> Block:
        """Memory that is not initialised. Raises ExecutorError when there is none left."""
        ...

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Queue a copy between any two addresses, of the GPU or of the CPU."""
        ...

    def capture(self, work: Callable[[], None]) -> Graph:
        """Record what ``work`` queues instead of running it."""
        ...

    def synchronise(self) -> None:
        """Wait for all that is queued. Raises ExecutorError for what went wrong on the way."""
        ...

    def free_bytes(self) -> int:
        """Bytes that can be taken: of the GPU, or MemAvailable where memory is shared."""
        ...
