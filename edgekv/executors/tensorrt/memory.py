"""Whether an engine can be built in the memory that is left.

Owns: the arithmetic. Knows neither CUDA nor TensorRT.
"""

from __future__ import annotations

from pathlib import Path

from edgekv.config import format_bytes
from edgekv.errors import BudgetError

# Weights are held by the parser, by the network, by the tactic being timed and by the result.
_BUILD_FACTOR = 4


def graph_bytes(graph: Path) -> int:
    """Bytes of a graph with its weights beside it, which the graphs of all KV dtypes share:
    those of ``decoder.int8-kv.onnx`` lie in ``decoder.onnx.data``."""
    first = f"{graph.name.split('.')[0]}{graph.suffix}"
    files = (graph, graph.with_name(f"{first}.data"))
    return sum(path.stat().st_size for path in files if path.exists())


def build_bytes(weight_bytes: int) -> int:
    """What building an engine of these weights takes at its peak."""
    return _BUILD_FACTOR * weight_bytes


def check_build(name: str, weight_bytes: int, available: int) -> None:
    """Raise BudgetError unless an engine of ``weight_bytes`` can be built in ``available``."""
    need = build_bytes(weight_bytes)
    if need > available:
        raise BudgetError(
            f"building the engine of {name} takes about {format_bytes(need, rounded='up')} "
            f"({_BUILD_FACTOR} times its weights), {format_bytes(available, rounded='down')} are "
            "available: close other programs, add swap, or build it on a larger device of the same "
            "kind with scripts/convert.py"
        )
