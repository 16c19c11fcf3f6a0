"""edgekv: vision-language models over endless video, inside a fixed memory budget.

    model = edgekv.load("models/demo", kv_budget="64MiB")
    with model.session() as session:
        for frame in edgekv.open_video("clip.mp4", fps=2):
            session.push(frame)
        print(session.ask("What is happening?").text)

Names are imported when they are first used, so that ``import edgekv`` stays fast and works without
a GPU, TensorRT or torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekv.demo_bundle import demo_bundle_path
    from edgekv.errors import (
        BudgetError,
        BundleError,
        ContextError,
        EdgeKVError,
        ExecutorError,
        MetricsError,
        OutOfPagesError,
        SessionError,
        SessionFileError,
        SourceError,
        TierError,
        TraceError,
    )
    from edgekv.loading import load
    from edgekv.media import open_video
    from edgekv.metrics import serve_metrics
    from edgekv.model import Model
    from edgekv.sampling import SamplingOptions
    from edgekv.session import Session
    from edgekv.session_stats import SessionStats
    from edgekv.types import Answer, Frame, Sound

_HOME = {
    "Answer": "types",
    "BudgetError": "errors",
    "BundleError": "errors",
    "ContextError": "errors",
    "EdgeKVError": "errors",
    "ExecutorError": "errors",
    "Frame": "types",
    "MetricsError": "errors",
    "Model": "model",
    "ModelError": "errors",
    "OutOfPagesError": "errors",
    "SamplingOptions": "sampling",
    "Session": "session",
    "SessionError": "errors",
    "SessionFileError": "errors",
    "SessionStats": "session_stats",
    "Sound": "types",
    "SourceError": "errors",
    "TierError": "errors",
    "TraceError": "errors",
    "demo_bundle_path": "demo_bundle",
    "load": "loading",
    "open_video": "media",
    "serve_metrics": "metrics",
}
__all__ = [
    "Answer",
    "BudgetError",
    "BundleError",
    "ContextError",
    "EdgeKVError",
    "ExecutorError",
    "Frame",
    "MetricsError",
    "Model",
    "ModelError",
    "OutOfPagesError",
    "SamplingOptions",
    "Session",
    "SessionError",
    "SessionFileError",
    "SessionStats",
    "Sound",
    "SourceError",
    "TierError",
    "TraceError",
    "demo_bundle_path",
    "load",
    "open_video",
    "serve_metrics",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'edgekv' has no attribute {name!r}")
    return getattr(importlib.import_module(f"edgekv.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
