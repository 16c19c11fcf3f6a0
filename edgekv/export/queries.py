"""One layer's queries as an output of the decoder: what a question looks for.

Owns: the output. Guarantees: nothing else of the graph changes. Does not know: which layer is worth
asking, what queries are compared with.
"""

from __future__ import annotations

import onnx_ir as ir

from edgekv import names


def expose_queries(model: ir.Model, layer: int) -> None:
    """Add the output ``queries`` (T, Hq * D) float32: what ``layer`` gives to the operator, rotated
    at its positions."""
    nodes = [node for node in model.graph if node.op_type == names.OP_NAME and node.inputs[1]]
    query = nodes[layer].inputs[0]
    assert query is not None
    cast = ir.node("Cast", [query], {"to": ir.DataType.FLOAT})
    output = cast.outputs[0]
    output.name, output.type = names.QUERIES, ir.TensorType(ir.DataType.FLOAT)
    width = None if query.shape is None else query.shape[1]
    output.shape = ir.Shape(["T", width])
    model.graph.insert_after(nodes[layer], [cast])
    model.graph.outputs.append(output)
