"""How weights are stored in a graph: as traced (fp32), as fp16, or as int4 blocks.

Owns: the rewrite of initializers. fp16 is stored and cast to fp32 where it is used; int4 is the
standard block-wise ``DequantizeLinear``, symmetric, one fp32 scale for 32 weights of a column,
which ONNX Runtime fuses with the product behind it.
Guarantees: activations stay fp32; small tensors (norms, biases, frequencies) are never touched.
Does not know: where the graph comes from.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgekv.bundle.manifest import WeightsKind
from edgekv.export.graph import constant

_MIN_ELEMENTS = 1024  # smaller tensors are not worth a node
_FP16_MAX = 65504.0
_BLOCKS = (32, 16)  # weights that share a scale; must divide the rows of the matrix
# Scales tried per block, relative to the one that just covers its largest weight.
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)


def store_weights(model: ir.Model, kind: WeightsKind) -> None:
    """Change how ``model`` holds its weights, in place."""
    if kind == "int4":
        for node in list(model.graph):
            _quantize_product(model.graph, node)
    if kind in ("fp16", "int4"):
        for value in _large_float_weights(model.graph):
            _store_half(model.graph, value)


def quantize_int4(
    weight: NDArray[np.float32], block: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """(K, N) -> integers in -8..7 (K, N) and scales (K / block, N), least squares per block."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows // block, block, columns)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(1, keepdims=True), 1)
    best_error = np.full(extreme.shape, np.inf, np.float32)
    best_scale = np.ones_like(extreme)
    for shrink in _SHRINKS:
        scale = extreme * np.float32(shrink / -8.0)  # the largest weight lands on -8, as in Q4_0
        scale = np.where(scale == 0, np.float32(1), scale)
        levels = np.clip(np.rint(blocks / scale), -8, 7)
        error = np.square(levels * scale - blocks).sum(1, keepdims=True)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale)
    levels = np.clip(np.rint(blocks / best_scale), -8, 7).astype(np.int8)
    return levels.reshape(rows, columns), best_scale[:, 0, :].astype(np.float32)


def _quantize_product(graph: ir.Graph, node: ir.Node) -> None:
    if node.op_type != "MatMul":
        return
    weight = node.inputs[1]
    if weight is None or not weight.is_initializer() or weight.const_value is None:
        return
    array = weight.const_value.numpy()
    if array.ndim != 2 or array.dtype != np.float32 or array.size < _MIN_ELEMENTS:
        return
    block = next((size for size in _BLOCKS if array.shape[0] % size == 0), None)
    if block is None:
        return
    levels, scales = quantize_int4(array, block)
    name = weight.name or "weight"
    packed = constant(graph, levels.astype(ml_dtypes.int4), f"{name}.int4")
    scale = constant(graph, scales, f"{name}.scale")
    dequantize = ir.node("DequantizeLinear", [packed, scale], {"axis": 0, "block_size": block})
    dequantize.outputs[0].name = f"{name}.dequantized"
    dequantize.outputs[0].type, dequantize.outputs[0].shape = weight.type, weight.shape
    graph.insert_before(node, dequantize)
    node.replace_input_with(1, dequantize.outputs[0])
    if not weight.uses():
        del graph.initializers[name]


def _large_float_weights(graph: ir.Graph) -> Iterator[ir.Value]:
    for value in list(graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) < 2:
            continue
        is_scale = any(use.node.op_type == "DequantizeLinear" for use in value.uses())
        if tensor.size >= _MIN_ELEMENTS and not is_scale:
            yield value


def _store_half(graph: ir.Graph, value: ir.Value) -> None:
    assert value.const_value is not None
    array = value.const_value.numpy()
    if np.abs(array).max() > _FP16_MAX:
        return
    name = value.name or "weight"
    half = constant(graph, array.astype(np.float16), f"{name}.fp16")
    cast = ir.node("Cast", [half], {"to": ir.DataType.FLOAT})
    cast.outputs[0].name = f"{name}.fp32"
    cast.outputs[0].type, cast.outputs[0].shape = value.type, value.shape
    graph.insert_before(graph[0], cast)
    ir.convenience.replace_all_uses_with(value, cast.outputs[0])
    del graph.initializers[name]
