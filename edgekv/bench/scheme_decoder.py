"""A scheme's decoder as an ONNX graph with random weights.

Owns: the graph. Guarantees: it takes and gives what ``edgekv.names`` says; two calls write the same
weights. Does not know: caches, what is compared. Needs the ``onnx`` library, which running a model
does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.bench.schemes import Scheme
from edgekv.config import KVDtype, KVGeometry, Rotation
from edgekv.errors import ExecutorError

HIDDEN, VOCAB = 64, 96
_GROUP = 2  # query heads per KV head
_PER_TOKEN = (names.SLOT_MAPPING, names.KV_LIMITS, names.QUERY_INDICES)


def write_decoder(path: Path, scheme: Scheme, dtype: KVDtype) -> None:
    """Write the decoder with pools of ``dtype``. Raises ExecutorError without ``onnx``."""
    try:
        from onnx import helper, save
    except ImportError:
        raise ExecutorError(
            "decoders of other position schemes are made with the onnx library: pip install onnx"
        ) from None
    geometry, graph = scheme.geometry(dtype), _Graph()
    positions = graph.positions(geometry)
    x = names.INPUTS_EMBEDS
    for layer, rotation in enumerate(scheme.rotations):
        x = _layer(graph, x, layer, geometry, rotation, positions)
    logits = graph.node("MatMul", graph.norm(x), graph.matrix(HIDDEN, VOCAB))
    graph.node("Gather", logits, names.LOGIT_INDICES, out=names.LOGITS)
    inputs, outputs = _signature(geometry)
    made = helper.make_graph(graph.nodes, scheme.name, inputs, outputs, initializer=graph.weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(names.OP_DOMAIN, 1)]
    save(helper.make_model(made, opset_imports=opsets, ir_version=10), path)


def _signature(geometry: KVGeometry) -> tuple[list[Any], list[Any]]:
    """Inputs and outputs of the graph."""
    from onnx import TensorProto, helper

    axes, value = geometry.num_rope_axes, helper.make_tensor_value_info
    pool_type = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[geometry.dtype]
    pool: list[Any] = ["P", geometry.num_kv_heads, "S", geometry.head_dim]
    layers = range(geometry.num_layers)
    inputs = [
        value(names.INPUTS_EMBEDS, TensorProto.FLOAT, ["T", HIDDEN]),
        value(names.POSITION_IDS, TensorProto.INT64, ["T"] if axes == 1 else [axes, "T"]),
        value(names.LOGIT_INDICES, TensorProto.INT64, ["N"]),
        value(names.PAGE_TABLE, TensorProto.INT32, ["B", "M", 2 + axes]),
        value(names.QUERY_STARTS, TensorProto.INT32, ["B + 1"]),
    ]
    inputs += [value(name, TensorProto.INT32, ["T"]) for name in _PER_TOKEN]
    inputs += [
        value(name(layer), pool_type, pool)
        for layer in layers
        for name in (names.key_pool, names.value_pool)
    ]
    outputs = [value(names.LOGITS, TensorProto.FLOAT, ["N", VOCAB])]
    outputs += [
        value(name(layer), pool_type, pool)
        for layer in layers
        for name in (names.key_pool_out, names.value_pool_out)
    ]
    return inputs, outputs


def _layer(
    graph: _Graph, x: str, layer: int, geometry: KVGeometry, rotation: Rotation, positions: str
) -> str:
    """Attention and a small perceptron, each added to the stream ``x`` (T, hidden)."""
    wide, narrow = _GROUP * geometry.num_kv_heads, geometry.num_kv_heads
    dim, normed = geometry.head_dim, graph.norm(x)
    query, key, value = (
        graph.node("MatMul", normed, graph.matrix(HIDDEN, heads * dim, loud))
        for heads, loud in ((wide, 2.0), (narrow, 2.0), (narrow, 1.0))
    )
    if rotation.inv_freq:
        turns = graph.turns(rotation, positions)
        query = graph.rotate(query, wide, dim, rotation, turns)
        key = graph.rotate(key, narrow, dim, rotation, turns)
    attended = graph.attention(query, key, value, layer, geometry, rotation)
    x = graph.node("Add", x, graph.node("MatMul", attended, graph.matrix(wide * dim, HIDDEN)))
    inner = graph.node("Tanh", graph.node("MatMul", graph.norm(x), graph.matrix(HIDDEN, 128)))
    return graph.node("Add", x, graph.node("MatMul", inner, graph.matrix(128, HIDDEN)))


class _Graph:
    """Nodes and weights as they are added; every method returns the name of what it made."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(5)

    def node(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """A node with one output."""
        from onnx import helper

        out = out or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def constant(self, array: NDArray[Any]) -> str:
        """A stored array."""
        from onnx import numpy_helper

        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def matrix(self, rows: int, columns: int, loud: float = 1.0) -> str:
        """A random matrix; ``loud`` ones make attention look at some tokens more than at others."""
        matrix = self._random.standard_normal((rows, columns)) * loud * rows**-0.5
        return self.constant(matrix.astype(np.float32))

    def norm(self, x: str) -> str:
        """(T, hidden) with mean 0 and deviation 1."""
        return self.node("LayerNormalization", x, self.constant(np.ones(HIDDEN, np.float32)))

    def positions(self, geometry: KVGeometry) -> str:
        """(A, T) float32."""
        name = names.POSITION_IDS
        if geometry.num_rope_axes == 1:
            name = self.node("Unsqueeze", name, self.constant(np.array([0])))
        return self.node("Cast", name, to=1)

    def turns(self, rotation: Rotation, positions: str) -> tuple[str, str]:
        """Cosines and sines (T, 1, rotary_dim / 2)."""
        axes = np.array(rotation.freq_axes or (0,) * len(rotation.inv_freq))
        chosen = self.node("Gather", positions, self.constant(axes), axis=0)
        frequencies = self.constant(np.array(rotation.inv_freq, np.float32))
        angles = self.node("Mul", self.node("Transpose", chosen, perm=[1, 0]), frequencies)
        angles = self.node("Unsqueeze", angles, self.constant(np.array([1])))
        return self.node("Cos", angles), self.node("Sin", angles)

    def rotate(
        self, x: str, num_heads: int, dim: int, rotation: Rotation, turns: tuple[str, str]
    ) -> str:
        """(T, heads * D) turned."""
        pairs = len(rotation.inv_freq)
        heads = self.node("Reshape", x, self.constant(np.array([0, num_heads, dim])))
        step = 2 if rotation.interleaved else 1
        first = self._cut(heads, 0, 2 * pairs if rotation.interleaved else pairs, step)
        second = self._cut(heads, 1 if rotation.interleaved else pairs, 2 * pairs, step)
        cos, sin = turns
        turned = [
            self.node("Sub", self.node("Mul", first, cos), self.node("Mul", second, sin)),
            self.node("Add", self.node("Mul", second, cos), self.node("Mul", first, sin)),
        ]
        if rotation.interleaved:
            last = self.constant(np.array([-1]))
            pair = self.node(
                "Concat", *(self.node("Unsqueeze", half, last) for half in turned), axis=-1
            )
            turned = [self.node("Reshape", pair, self.constant(np.array([0, 0, 2 * pairs])))]
        if 2 * pairs < dim:
            turned.append(self._cut(heads, 2 * pairs, dim, 1))
        whole = self.node("Concat", *turned, axis=-1)
        return self.node("Reshape", whole, self.constant(np.array([0, num_heads * dim])))

    def _cut(self, x: str, start: int, stop: int, step: int) -> str:
        """Numbers ``start:stop:step`` of the last axis."""
        bounds = (self.constant(np.array([bound])) for bound in (start, stop, -1, step))
        return self.node("Slice", x, *bounds)

    def attention(
        self,
        query: str,
        key: str,
        value: str,
        layer: int,
        geometry: KVGeometry,
        rotation: Rotation,
    ) -> str:
        """The operator over the layer's pools: (T, Hq * D)."""
        from onnx import helper

        out = f"attended.{layer}"
        tables = (names.PAGE_TABLE, names.QUERY_STARTS, *_PER_TOKEN)
        options: dict[str, Any] = {}
        if rotation.inv_freq:
            options["inv_freq"] = rotation.inv_freq
            options["rotary_interleaved"] = int(rotation.interleaved)
        if rotation.freq_axes:
            options["freq_axes"] = rotation.freq_axes
        self.nodes.append(
            helper.make_node(
                names.OP_NAME,
                [query, key, value, names.key_pool(layer), names.value_pool(layer), *tables],
                [out, names.key_pool_out(layer), names.value_pool_out(layer)],
                domain=names.OP_DOMAIN,
                schema_version=names.OP_VERSION,
                num_heads=_GROUP * geometry.num_kv_heads,
                num_kv_heads=geometry.num_kv_heads,
                head_dim=geometry.head_dim,
                scale=geometry.head_dim**-0.5,
                **options,
            )
        )
        return out
