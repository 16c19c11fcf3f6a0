"""Where the package's compiled libraries are.

Owns: the paths of the operator libraries, for ONNX Runtime and for TensorRT. Guarantees: the path
exists, or one line says how to build it. Loads nothing; knows nothing of the libraries' hosts.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from edgekv.errors import ExecutorError

_BUILD_GPU = "run scripts/build_plugin.py --bundle BUNDLE --install, with the bundle to be run"
_SUFFIXES = {"darwin": ".dylib", "win32": ".dll"}


def ort_library_path() -> Path:
    """The library for ``SessionOptions.register_custom_ops_library``. Raises ExecutorError."""
    return _library("edgekv_ort", "run 'pip install .' with a C++17 compiler")


def ort_cuda_library_path() -> Path:
    """As ``ort_library_path``, for the CUDA provider. Raises ExecutorError."""
    return _library("edgekv_ort_cuda", _BUILD_GPU)


def tensorrt_plugin_path() -> Path:
    """The library for ``IPluginRegistry.load_library``. Raises ExecutorError."""
    return _library("edgekv_tensorrt", _BUILD_GPU)


def _library(stem: str, advice: str) -> Path:
    name = f"lib{stem}{_SUFFIXES.get(sys.platform, '.so')}"
    for folder in __path__:
        path = Path(folder) / name
        if path.is_file():
            return path
    installed = _installed_file(name)
    if installed is None:
        raise ExecutorError(f"{name} is not built: {advice}")
    return installed


def _installed_file(name: str) -> Path | None:
    """A file of the installed distribution, for code that runs from the source tree."""
    try:
        files = metadata.files("edgekv") or []
    except metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.name == name)
    return next((path for path in paths if path.is_file()), None)
