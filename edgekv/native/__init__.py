"""Where the package's compiled libraries are.

Owns: the path of the ONNX Runtime operator library. Guarantees: the path exists, or one line says how
to build it. Loads nothing; knows nothing of ONNX Runtime.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edgekv.errors import ExecutorError

_SUFFIXES = {"darwin": ".dylib", "win32": ".dll"}


def ort_library_path() -> Path:
    """The library for ``SessionOptions.register_custom_ops_library``. Raises ExecutorError.

    An editable install keeps compiled files outside the source tree, so every folder of this package
    is searched.
    """
    name = f"libedgekv_ort{_SUFFIXES.get(sys.platform, '.so')}"
    for folder in __path__:
        path = Path(folder) / name
        if path.is_file():
            return path
    raise ExecutorError(f"{name} is not built: run 'pip install .' (or '-e .') with a C++17 compiler")
