#!/usr/bin/env python3
"""Write the types of TensorRT's Python interface to build/stubs, where mypy looks for them.

``tensorrt-stubs`` is generated from the real package, and two things in it are not Python: a
parameter named ``in``, and one without a default behind one that has a default. It also asks for
TensorRT itself, a gigabyte from NVIDIA's own index, so it is installed with ``--no-deps``.
"""

from __future__ import annotations

import ast
import re
import sys
from importlib import metadata
from pathlib import Path

PACKAGE = "tensorrt-stubs"
REPAIRS = (
    (re.compile(r"(?<=, )in(?=: list\[)"), "in_"),
    (re.compile(r"(= None, channel_axis: int)\)"), r"\1 = ...)"),
)


def main() -> int:
    """Repair every file of the package; the first that still is no Python ends it."""
    target = Path(__file__).resolve().parents[1] / "build" / "stubs"
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        command = f"pip install --no-deps {PACKAGE}"
        print(f"repair_tensorrt_stubs.py: {PACKAGE} is not installed: {command}", file=sys.stderr)
        return 1
    for file in files:
        if file.suffix != ".pyi":
            continue
        text = file.read_text(encoding="utf-8")
        for pattern, better in REPAIRS:
            text = pattern.sub(better, text)
        ast.parse(text, str(file))
        path = target / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{PACKAGE} {metadata.version(PACKAGE)}: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
