"""Rewrites of a traced decoder that change its nodes and not its numbers.

Owns: heads kept flat around the operator. Models split heads and swap axes for their own attention;
the operator takes (T, H * D), so both swaps and most reshapes go. And what TensorRT's parser must
find on the operator's nodes (plugins/tensorrt/README.md).
Guarantees: names, inputs and outputs stay as they were.
Does not know: weight formats, files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import (
    ClearMetadataAndDocStringPass,
    CommonSubexpressionEliminationPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
)

from edgekv.names import OP_DOMAIN, OP_NAME, OP_VERSION

_SWAP = (0, 2, 1, 3)  # (1, T, H, D) <-> (1, H, T, D)


def tidy(model: ir.Model) -> None:
    """Apply every rewrite, in place."""
    graph = model.graph
    CommonSubexpressionEliminationPass()(model)
    for node in list(graph):
        _move_swap_below_norm(graph, node)
    for node in list(graph):
        _rotate_flat(graph, node)
    for node in list(graph):
        _join_reshapes(node)
    for node in list(graph):
        _gather_rows(graph, node)
    for node in graph:
        _name_plugin(node)
    RemoveUnusedNodesPass()(model)
    RemoveUnusedOpsetsPass()(model)
    ClearMetadataAndDocStringPass()(model)


def _move_swap_below_norm(graph: ir.Graph, node: ir.Node) -> None:
    """Swap, then a norm over the last axis = the norm, then the swap."""
    if node.op_type != "RMSNormalization" or node.attributes["axis"].as_int() not in (-1, 3):
        return
    swap = _swap_of(node.inputs[0])
    if swap is None:
        return
    source = _value(swap.inputs[0])
    norm = ir.node("RMSNormalization", [source, node.inputs[1]], dict(_attributes(node)))
    again = ir.node("Transpose", norm.outputs, {"perm": _SWAP})
    norm.outputs[0].type, norm.outputs[0].shape = source.type, source.shape
    _replace(graph, node, [norm, again])


def _rotate_flat(graph: ir.Graph, node: ir.Node) -> None:
    """Swap, rotate, swap back, flatten = flatten, rotate (the operator takes flat heads)."""
    if node.op_type != "RotaryEmbedding":
        return
    swap = _swap_of(node.inputs[0])
    users = list(node.outputs[0].uses())
    if swap is None or len(users) != 1 or not _is_swap(users[0].node):
        return
    source = _value(swap.inputs[0])  # (1, T, H, D)
    shape = source.shape
    if shape is None or not isinstance(shape[2], int) or not isinstance(shape[3], int):
        return
    heads, head_dim = shape[2], shape[3]
    flat = _reshape(graph, source, (1, -1, heads * head_dim))
    turned = ir.node(
        "RotaryEmbedding",
        [flat.outputs[0], *node.inputs[1:]],
        {**dict(_attributes(node)), "num_heads": heads},
    )
    split = _reshape(graph, turned.outputs[0], (1, -1, heads, head_dim))
    _replace(graph, users[0].node, [flat, turned, split])


def _join_reshapes(node: ir.Node) -> None:
    """Of two reshapes in a row only the second counts; one that changes nothing goes."""
    if node.op_type != "Reshape":
        return
    first = _value(node.inputs[0]).producer()
    while first is not None and first.op_type == "Reshape":
        node.replace_input_with(0, first.inputs[0])
        first = _value(node.inputs[0]).producer()
    target = _constant(node.inputs[1])
    source = _value(node.inputs[0])
    if target is None or source.shape is None or len(source.shape) != len(target):
        return
    if node.outputs[0].is_graph_output():
        return
    kept = [want == have for want, have in zip(target, source.shape, strict=True)]
    if kept.count(False) == 0 or (kept.count(False) == 1 and target[kept.index(False)] == -1):
        ir.convenience.replace_all_uses_with(node.outputs[0], source)


def _gather_rows(graph: ir.Graph, node: ir.Node) -> None:
    """Swap the first axes, pick rows of the first, swap back = pick rows of the second."""
    if node.op_type != "GatherND" or node.inputs[1] is None:
        return
    before, index = _value(node.inputs[0]).producer(), node.inputs[1].producer()
    users = [use.node for use in node.outputs[0].uses()]
    if before is None or index is None or len(users) != 1:
        return
    if not (_permutes(before, (1, 0, 2)) and _permutes(users[0], (1, 0, 2))):
        return
    if index.op_type != "Unsqueeze" or _constant(index.inputs[1]) != [-1]:
        return
    _replace(graph, users[0], [ir.node("Gather", [before.inputs[0], index.inputs[0]], {"axis": 1})])


def _name_plugin(node: ir.Node) -> None:
    """Say which TensorRT plugin a node of the operator is, and how many outputs it has."""
    if (node.domain, node.op_type) != (OP_DOMAIN, OP_NAME):
        return
    attributes = (
        ir.AttrString("plugin_version", str(OP_VERSION)),
        ir.AttrString("plugin_namespace", OP_DOMAIN),
        ir.AttrInt64("num_outputs", sum(1 for output in node.outputs if output.name != "")),
    )
    for attribute in attributes:
        node.attributes[attribute.name] = attribute


def _swap_of(value: ir.Value | None) -> ir.Node | None:
    producer = None if value is None else value.producer()
    return producer if producer is not None and _is_swap(producer) else None


def _is_swap(node: ir.Node) -> bool:
    return _permutes(node, _SWAP)


def _permutes(node: ir.Node, axes: tuple[int, ...]) -> bool:
    return node.op_type == "Transpose" and tuple(node.attributes["perm"].as_ints()) == axes


def _reshape(graph: ir.Graph, source: ir.Value, shape: Sequence[int]) -> ir.Node:
    target = constant(graph, np.array(shape, np.int64), "shape_" + "_".join(map(str, shape)))
    node = ir.node("Reshape", [source, target])
    node.outputs[0].type = source.type
    node.outputs[0].shape = ir.Shape([None if size == -1 else size for size in shape])
    return node


def constant(graph: ir.Graph, array: NDArray[Any], name: str) -> ir.Value:
    """An initializer of ``graph`` holding ``array``, made once per name."""
    if name in graph.initializers:
        return graph.initializers[name]
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def _replace(graph: ir.Graph, old: ir.Node, new: list[ir.Node]) -> None:
    """Put ``new`` where ``old`` stands; the last of them yields what ``old`` did."""
    output = new[-1].outputs[0]
    output.type, output.shape = old.outputs[0].type, old.outputs[0].shape
    graph.insert_before(old, new)
    ir.convenience.replace_all_uses_with(old.outputs[0], output)


def _attributes(node: ir.Node) -> Iterator[tuple[str, ir.Attr]]:
    for name, attribute in node.attributes.items():
        assert isinstance(attribute, ir.Attr)
        yield name, attribute


def _constant(value: ir.Value | None) -> list[int] | None:
    if value is None or value.const_value is None:
        return None
    return [int(item) for item in value.const_value.numpy().reshape(-1)]


def _value(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value
