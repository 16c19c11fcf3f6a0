"""The native calls that the cache makes, by name.

Guarantees: they are of the version that this Python code was written for, or one line says how to
    build them. Does not know: what they do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from edgekv.errors import ExecutorError
from edgekv.native import ort_library_path

VERSION = 5  # plugins/cpu/version.cpp has the same


def native_call(
    name: str, arguments: Sequence[Any], result: Any = ctypes.c_int32
) -> Callable[..., int]:
    """The function ``edgekv_NAME``. Raises ExecutorError."""
    function: Any = getattr(_library(), f"edgekv_{name}")
    function.argtypes, function.restype = list(arguments), result
    return function  # type: ignore[no-any-return]  # ctypes has no types


@cache
def _library() -> ctypes.CDLL:
    path = ort_library_path()
    try:
        library = ctypes.CDLL(str(path))
        found = library.edgekv_native_version
    except OSError as error:
        raise ExecutorError(f"{path.name} cannot be loaded: {error}") from None
    except AttributeError:  # from before there were versions
        found = None
    if found is None or found() != VERSION:
        raise ExecutorError(
            f"{path.name} is of another version than this edgekv: run 'pip install .' again"
        )
    return library
