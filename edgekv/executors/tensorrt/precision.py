"""What a strongly typed network computes in: the graph says float32, the device shall use half.

Owns: the rewrite of a parsed network. A strongly typed network computes what its tensors say, and a
bundle's say float32 between all nodes, whatever its weights are stored as: one graph for every
executor. Guarantees: the network's inputs and outputs stay what they were; products, and what the
operator is given, are cast around; sums over rows (norms, softmax) stay float32.
Does not know: how a network is parsed or built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorrt as trt

from edgekv.executors.pool_tensors import QUERY_DTYPES

_HALF = trt.DataType.HALF
# TensorRT 10.14 and later have attention as layers of its own.
_ATTENTION_INPUT = getattr(trt.LayerType, "ATTENTION_INPUT", None)
_ATTENTION_OUTPUT = getattr(trt.LayerType, "ATTENTION_OUTPUT", None)
_ATTENTION_LAYER = getattr(trt, "IAttentionInputLayer", None)
_NUM_ROWS = 3  # the operator's first inputs: query, key, value; read-only nodes have the query only
_TYPES = {
    "float16": _HALF,
    "bfloat16": trt.DataType.BF16,
    "float32": trt.DataType.FLOAT,
}
_POOLS = {
    _HALF: "float16",
    trt.DataType.BF16: "bfloat16",
    trt.DataType.INT8: "int8",
    trt.DataType.FLOAT: "float32",
}


def use_half(network: trt.INetworkDefinition) -> int:
    """Cast around every float32 product, attention and operator node; how many there were."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    readers = _readers(layers)
    makers = {layer.get_output(0).name: layer for layer in layers}
    changed, attending = 0, False
    for layer in layers:
        if layer.type == _ATTENTION_OUTPUT and attending:
            _widen(network, layer.get_output(0), readers)
            attending = False
        places, dtype = _wanted(layer)
        given = [layer.get_input(place) for place in places]
        if dtype == trt.DataType.FLOAT or any(one.dtype != trt.DataType.FLOAT for one in given):
            continue
        for place, tensor in zip(places, given, strict=True):
            if not _dequantize_to(network, tensor, dtype, makers, readers):
                layer.set_input(place, network.add_cast(tensor, dtype).get_output(0))
        if layer.type == _ATTENTION_INPUT:
            attending = True  # its result is the next layer's of the kind above
        else:
            _widen(network, layer.get_output(0), readers)
        changed += 1
    return changed


def let_decompose(network: trt.INetworkDefinition) -> int:
    """Let attention layers for which this device has no kernel of their own (float32, a mask that
    is added) be computed as the products they are; how many layers there were."""
    layers = (network.get_layer(index) for index in range(network.num_layers))
    attentions = [layer for layer in layers if layer.type == _ATTENTION_INPUT]
    for layer in attentions:
        boundary: Any = layer
        boundary.__class__ = _ATTENTION_LAYER  # networks hand out plain layers
        boundary.attention.decomposable = True
    return len(attentions)


def _wanted(layer: trt.ILayer) -> tuple[list[int], trt.DataType]:
    """Which inputs of a layer shall have which type, FLOAT: it stays as it is."""
    if layer.type == trt.LayerType.MATRIX_MULTIPLY:
        return [0, 1], _HALF
    if layer.type == trt.LayerType.PLUGIN_V3:
        return list(_row_places(layer)), _query_type(layer)
    if layer.type == _ATTENTION_INPUT:
        return [place for place in range(layer.num_inputs) if layer.get_input(place)], _HALF
    return [], trt.DataType.FLOAT


def _dequantize_to(
    network: trt.INetworkDefinition,
    weights: trt.ITensor,
    dtype: trt.DataType,
    makers: dict[str, trt.ILayer],
    readers: Readers,
) -> bool:
    """Have quantised weights become ``dtype`` at once: a builder multiplies them as they are stored
    where nothing but their shape changes on the way. Whether they are such weights."""
    if len(readers[weights.name]) > 1 or weights.name not in makers:
        return False
    maker, reshape = makers[weights.name], None
    if maker.type == trt.LayerType.SHUFFLE:
        reshape, inner = maker, maker.get_input(0)
        if len(readers[inner.name]) > 1 or inner.name not in makers:
            return False
        maker = makers[inner.name]
    if maker.type != trt.LayerType.DEQUANTIZE or reshape is None:
        return False
    maker.__class__ = trt.IDequantizeLayer  # networks hand out plain layers
    assert isinstance(maker, trt.IDequantizeLayer)
    scale = network.add_cast(maker.get_input(1), dtype).get_output(0)
    again = network.add_dequantize(maker.get_input(0), scale, dtype)
    again.axis = maker.axis
    reshape.set_input(0, again.get_output(0))
    return True


Readers = dict[str, list[tuple[trt.ILayer, int]]]  # tensor -> layers that read it, and where


def _readers(layers: list[trt.ILayer]) -> Readers:
    found: Readers = {}
    for layer in layers:
        for place in range(layer.num_inputs):
            tensor = layer.get_input(place)
            if tensor is not None:  # an input that the node leaves out
                found.setdefault(tensor.name, []).append((layer, place))
    return found


def _row_places(layer: trt.ILayer) -> Iterator[int]:
    """Where a node of the operator has what it has a row for each token of, beside the tables."""
    for place in range(_NUM_ROWS):
        tensor = layer.get_input(place)
        if tensor is not None and len(tensor.shape) == 2:
            yield place


def _query_type(layer: trt.ILayer) -> trt.DataType:
    """What the node's kernels take beside its pools: its first inputs of four dimensions."""
    for place in range(layer.num_inputs):
        tensor = layer.get_input(place)
        if tensor is not None and len(tensor.shape) == 4:
            return _TYPES[QUERY_DTYPES[_POOLS[tensor.dtype]]]
    return trt.DataType.FLOAT


def _widen(network: trt.INetworkDefinition, narrow: trt.ITensor, readers: Readers) -> None:
    """Let whatever reads ``narrow`` read it as float32; where nothing does (nodes that only write),
    it stays as it is."""
    if narrow.name not in readers and not narrow.is_network_output:
        return
    wide = network.add_cast(narrow, trt.DataType.FLOAT).get_output(0)
    for layer, place in readers.get(narrow.name, []):
        layer.set_input(place, wide)
    if narrow.is_network_output:
        name = narrow.name
        network.unmark_output(narrow)
        narrow.name = f"{name}.half"
        wide.name = name
        network.mark_output(wide)
