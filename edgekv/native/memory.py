"""Where an array is, for native calls.

Guarantees: nothing is copied; the caller keeps the array alive. Does not know: what it holds.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numpy.typing import NDArray


def address(array: NDArray[Any]) -> int:
    """Where the first element of a C-contiguous array is."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]  # has the buffer protocol
    except (TypeError, ValueError):  # read-only, or empty
        return int(array.ctypes.data)  # slower
