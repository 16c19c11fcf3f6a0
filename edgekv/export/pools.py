"""The same graph over pools of another KV dtype.

Owns: the change of types, and the scales that stand beside int8 pools. Guarantees: nothing but the
operator touches pools, so nothing else of the graph changes; open dimensions have the names of the
pool's. Does not know: layers, what writes which pool.
"""

from __future__ import annotations

import onnx_ir as ir

from edgekv import names
from edgekv.config import KVDtype

_KINDS = ("key_pool", "value_pool", "cross_key_pool", "cross_value_pool")
_DTYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int8": ir.DataType.INT8,
}
# The operator's own places, docs/paged_attention.md.
_KEY_POOL, _KEY_SCALES, _PAGE_MASS = 3, 11, 13
_SCALES_OUT = 3


def set_pool_dtype(model: ir.Model, dtype: KVDtype) -> None:
    """Change what the pools of a graph hold, from a float dtype to any. In place."""
    graph = model.graph
    for value in (*graph.inputs, *graph.outputs):
        if (value.name or "").startswith(_KINDS):
            value.type = ir.TensorType(_DTYPES[dtype])
    if dtype == "int8":
        for node in list(graph):
            if (node.domain, node.op_type) == (names.OP_DOMAIN, names.OP_NAME):
                _add_scales(graph, node)


def _add_scales(graph: ir.Graph, node: ir.Node) -> None:
    """A node over the same pools with their scales, in its place."""
    pools = node.inputs[_KEY_POOL : _KEY_POOL + 2]
    scales = [_scales_of(graph, pool) for pool in pools]
    inputs = [*node.inputs, *[None] * (_PAGE_MASS - len(node.inputs))]
    inputs[_KEY_SCALES:_PAGE_MASS] = scales
    outputs, written = list(node.outputs), []
    writes = len(outputs) > 2 and bool(outputs[1].name)
    if writes:
        written = [_beside(out, scale) for out, scale in zip(outputs[1:3], scales, strict=True)]
        outputs[_SCALES_OUT:_SCALES_OUT] = written
    attributes = dict(node.attributes)
    attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(outputs))
    changed = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        attributes.values(),
        num_outputs=len(outputs),
        name=node.name,
        version=node.version,
    )
    graph.insert_before(node, changed)
    for old, new in zip(outputs, changed.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
        if old in node.outputs:
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        else:
            graph.outputs.append(new)
    graph.remove(node, safe=True)


def _scales_of(graph: ir.Graph, pool: ir.Value | None) -> ir.Value:
    """The graph input that holds the scales of ``pool``; other nodes may read it too."""
    assert pool is not None
    wanted = _beside(pool, pool)
    known = {value.name: value for value in graph.inputs}
    if wanted.name not in known:
        graph.inputs.append(wanted)
    return known.get(wanted.name, wanted)


def _beside(pool: ir.Value, like: ir.Value) -> ir.Value:
    """A value for the scales (P, Hk, S) of a pool, or of what it becomes."""
    assert pool.name is not None
    assert like.shape is not None
    name = pool.name.replace("_pool", "_scales", 1)
    return ir.Value(
        name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(like.shape[:3])
    )
