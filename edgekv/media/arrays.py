"""Pictures of other libraries (PyTorch, CuPy, JAX, …) as NumPy arrays, through DLPack.

Owns: which memory is shared and which is copied. Guarantees: arrays in memory the CPU can read are
not copied; a copy from a GPU is said, never silent. It is made because preprocessing runs on the
CPU: it must resize exactly as in training (docs/adr/0004), which no GPU library does.
Does not know what a picture must look like, nor any of those libraries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

_READABLE = {1: "CPU", 3: "page-locked", 13: "managed"}  # DLPack's device types
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI"}


@runtime_checkable
class DLPackArray(Protocol):
    """An array of any library; the Python array API standard names the methods."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class HostArray:
    """An array that NumPy can read, and where it had to be copied from ('' = it is shared)."""

    array: NDArray[np.generic]  # of any shape and dtype: pictures are checked where they are taken
    copied_from: str


def host_array(array: NDArray[np.generic] | DLPackArray) -> HostArray:
    """``array`` in memory that the CPU reads. Raises ValueError when it cannot be brought there."""
    if isinstance(array, np.ndarray) or not isinstance(array, DLPackArray):
        return HostArray(array, "")  # what is no array at all is refused with pictures' own words
    kind, index = array.__dlpack_device__()
    try:
        if int(kind) in _READABLE:
            return HostArray(np.from_dlpack(array), "")
        where = f"{_DEVICES.get(int(kind), f'device type {int(kind)}')} {index}"
        return HostArray(_copied(array), where)
    except (TypeError, ValueError, BufferError, RuntimeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"cannot read the picture, a {_name(array)}: {reason}") from error


def _copied(array: DLPackArray) -> NDArray[np.generic]:
    """By the library's own means, which wait for what is still being computed."""
    for method in ("cpu", "get"):  # PyTorch's and CuPy's
        if hasattr(array, method):
            return np.from_dlpack(getattr(array, method)())
    return np.from_dlpack(array, device="cpu", copy=True)  # the standard's, NumPy 2.1 and later


def _name(array: object) -> str:
    return f"{type(array).__module__}.{type(array).__name__}"
