"""ONNX Runtime, the library.

Owns: its import. Guarantees: it keeps to itself (docs/adr/0020-onnx-runtime-keeps-to-itself.md).
"""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, by the import

import onnxruntime as ort

__all__ = ["ort"]
