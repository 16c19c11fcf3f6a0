"""What executors need of an engine that runs, as protocols.

Owns: nothing. Exists so that steps, and all that is put together around them, are tested where
there is no TensorRT. Imports no library; ``running`` implements it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgekv.errors import ExecutorError
from edgekv.executors.tensorrt.profiles import Dims


class Context(Protocol):
    """The part of TensorRT's execution context that a step needs. Each call says whether it went
    well."""

    def set_input_shape(self, name: str, shape: Dims, /) -> bool: ...

    def set_tensor_address(self, name: str, address: int, /) -> bool: ...

    def execute_async_v3(self, stream: int, /) -> bool: ...


class Running(Protocol):
    """An engine on the GPU with a context for each of its profiles, in their order."""

    @property
    def contexts(self) -> Sequence[Context]: ...

    @property
    def query_size(self) -> int:
        """Hq * D of the layer whose queries the engine shows, 0 = it shows none."""
        ...

    def take_error(self) -> str:
        """What TensorRT said went wrong since the last call."""
        ...

    def release(self) -> None:
        """Give contexts, engine and activations back."""
        ...


def check(running: Running, went_well: bool, what: str) -> None:
    """Raise ExecutorError with TensorRT's reason unless a call ``went_well``."""
    if not went_well:
        raise ExecutorError(f"TensorRT: {what} failed: {running.take_error()}")
