"""Where the package's compiled libraries are.

Owns: the path of the ONNX Runtime operator library. Guarantees: the path exists, or one line says
how to build it. Loads nothing; knows nothing of ONNX Runtime.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from edgekv.errors import ExecutorError

_SUFFIXES = {"darwin": ".dylib", "win32": ".dll"}


def ort_library_path() -> Path:
    """The library for ``SessionOptions.register_custom_ops_library``. Raises ExecutorError."""
    name = f"libedgekv_ort{_SUFFIXES.get(sys.platform, '.so')}"
    for folder in __path__:
        path = Path(folder) / name
        if path.is_file():
            return path
    installed = _installed_file(name)
    if installed is None:
        raise ExecutorError(f"{name} is not built: run 'pip install .' with a C++17 compiler")
    return installed


def _installed_file(name: str) -> Path | None:
    """A file of the installed distribution, for code that runs from the source tree."""
    try:
        files = metadata.files("edgekv") or []
    except metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.name == name)
    return next((path for path in paths if path.is_file()), None)
