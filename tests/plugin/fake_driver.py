"""What the fake CUDA driver remembers, for tests that run the operator inside this process.

The structures are those of plugins/tensorrt/check/fake_cuda.h.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

MAX_PARAMETERS = 48


class _Launch(ctypes.Structure):
    _fields_ = [
        ("symbol", ctypes.c_char * 32),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("num_parameters", ctypes.c_int),
        ("names", (ctypes.c_char * 24) * MAX_PARAMETERS),
        ("parameters", ctypes.c_uint64 * MAX_PARAMETERS),
    ]


class _Copy(ctypes.Structure):
    _fields_ = [
        ("target", ctypes.c_uint64),
        ("source", ctypes.c_uint64),
        ("num_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
    ]


class _State(ctypes.Structure):
    _fields_ = [
        ("num_launches", ctypes.c_int),
        ("num_copies", ctypes.c_int),
        ("num_waiting", ctypes.c_int),
        ("live_modules", ctypes.c_int),
        ("live_allocations", ctypes.c_int),
        ("launches", _Launch * 16),
        ("copies", _Copy * 16),
    ]


@dataclass(frozen=True)
class Launch:
    """One kernel launch."""

    kernel: str
    parameters: dict[str, int]


class FakeDriver:
    """The driver that the operator in this process uses."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.fake_cuda_state.restype = ctypes.POINTER(_State)
        self._state = self._library.fake_cuda_state().contents

    def emulate(self, on: bool) -> None:
        """Whether launches compute what the kernels would."""
        self._library.fake_cuda_emulate(int(on))

    def reset(self) -> None:
        """Forget what was launched."""
        self._library.fake_cuda_reset()

    @property
    def launches(self) -> list[Launch]:
        """Since the last reset, in order."""
        records = self._state.launches[: self._state.num_launches]
        return [
            Launch(
                record.symbol.decode(),
                {
                    record.names[i].value.decode(): record.parameters[i]
                    for i in range(record.num_parameters)
                },
            )
            for record in records
        ]

    @property
    def num_copies(self) -> int:
        """Copies queued since the last reset."""
        return int(self._state.num_copies)

    @property
    def num_waiting(self) -> int:
        """Calls since the last reset that allocate or wait."""
        return int(self._state.num_waiting)

    @property
    def live(self) -> tuple[int, int]:
        """Modules and allocations that have not been given back."""
        return int(self._state.live_modules), int(self._state.live_allocations)
