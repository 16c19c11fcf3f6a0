"""What a strongly typed network computes in, on NVIDIA's own networks; the plugin's node, which its
builder without a GPU does not take, on a network of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

pytest.importorskip("tensorrt_rtx_bindings", reason="pip install 'edgekv[gpu-test]'")

from edgekv.bundle import Bundle
from edgekv.demo_bundle import demo_bundle_path
from tests.export import rtx

trt: Any = rtx.stand_in()

from edgekv.executors.tensorrt.build import Log, create_network, network_signature  # noqa: E402
from edgekv.executors.tensorrt.precision import use_half  # noqa: E402

FLOAT, HALF, BF16, INT8 = (
    trt.DataType.FLOAT, trt.DataType.HALF, trt.DataType.BF16, trt.DataType.INT8,
)  # fmt: skip


def layers_of(network: Any, kind: Any) -> list[Any]:
    every = (network.get_layer(index) for index in range(network.num_layers))
    return [layer for layer in every if layer.type == kind]


@pytest.mark.parametrize("graph", ["decoder", "vision"])
def test_products_are_half_and_nothing_else_changes(graph: str, tmp_path: Path) -> None:
    bundle = Bundle.open(demo_bundle_path())
    path = bundle.path / "vision.onnx"
    if graph == "decoder":
        path = tmp_path / "cut.onnx"
        rtx.cut_at_operator(bundle.decoder_path, path)
    network = create_network(trt.Builder(log := Log()))
    parser = trt.OnnxParser(network, log)
    assert parser.parse_from_file(str(path))
    products = layers_of(network, trt.LayerType.MATRIX_MULTIPLY)
    assert {layer.get_output(0).dtype for layer in products} == {FLOAT}
    before = network_signature(network)
    attentions = layers_of(network, trt.LayerType.ATTENTION_OUTPUT)
    assert use_half(network) == len(products) + len(attentions)
    assert {layer.get_output(0).dtype for layer in (*products, *attentions)} == {HALF}
    assert network_signature(network) == before
    norms = trt.LayerType.REDUCE if graph == "decoder" else trt.LayerType.NORMALIZATION
    assert {layer.get_output(0).dtype for layer in layers_of(network, norms)} == {FLOAT}
    assert use_half(network) == 0  # it is half already


def test_int4_weights_become_half_at_once(tmp_path: Path) -> None:
    """With a cast between them and their product a builder stores them wide."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "T", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "T", 32])
    levels = helper.make_tensor("levels", TensorProto.INT4, [64, 32], bytes(64 * 32 // 2), raw=True)
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [2, 32], [0.5] * 64)
    nodes = [
        helper.make_node("DequantizeLinear", ["levels", "scales"], ["w"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [levels, scales])
    path = tmp_path / "int4.onnx"
    opset = helper.make_opsetid("", 21)
    path.write_bytes(helper.make_model(graph, opset_imports=[opset]).SerializeToString())
    network = create_network(trt.Builder(log := Log()))
    parser = trt.OnnxParser(network, log)
    assert parser.parse_from_file(str(path)), parser.get_error(0).desc()
    before = network_signature(network)
    assert use_half(network) == 1
    assert network_signature(network) == before
    (product,) = layers_of(network, trt.LayerType.MATRIX_MULTIPLY)
    weights = layers_of(network, trt.LayerType.DEQUANTIZE)[-1].get_output(0)
    (reshape,) = (
        layer
        for layer in layers_of(network, trt.LayerType.SHUFFLE)
        if layer.get_input(0).name == weights.name
    )
    assert weights.dtype == HALF
    assert product.get_input(1).name == reshape.get_output(0).name


class Tensor:
    is_network_output = False

    def __init__(self, name: str, dtype: Any, rank: int) -> None:
        self.name, self.dtype, self.shape = name, dtype, (-1,) * rank


class Layer:
    def __init__(self, kind: Any, inputs: list[Tensor | None], output: Tensor) -> None:
        self.type, self.inputs, self.output = kind, inputs, output
        self.num_inputs = len(inputs)

    def get_input(self, place: int) -> Tensor | None:
        return self.inputs[place]

    def set_input(self, place: int, tensor: Tensor) -> None:
        self.inputs[place] = tensor

    def get_output(self, place: int) -> Tensor:
        assert place == 0
        return self.output


class Network:
    """As far as the rewrite goes; a plugin gives what its first input is."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def get_layer(self, index: int) -> Layer:
        return self.layers[index]

    def add_cast(self, tensor: Tensor, dtype: Any) -> Layer:
        cast = Tensor(f"{tensor.name} as {dtype}", dtype, len(tensor.shape))
        self.layers.append(Layer(trt.LayerType.CAST, [tensor], cast))
        return self.layers[-1]


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize(
    ("pool", "rows"), [(HALF, HALF), (INT8, HALF), (BF16, BF16), (FLOAT, FLOAT)]
)
def test_the_operator_gets_what_its_kernels_take(pool: Any, rows: Any, writes: bool) -> None:
    """Query, key and value in the type that loses nothing of the pools; the rest as it was."""
    names = ["query", "key", "value"] if writes else ["query"]
    given: list[Tensor | None] = [Tensor(name, FLOAT, 2) for name in names]
    given += [Tensor("key_pool", pool, 4), Tensor("value_pool", pool, 4)]
    given += [Tensor("page_table", trt.DataType.INT32, 3), None, Tensor("scales", FLOAT, 3)]
    rest = given[len(names) :]
    attended = Tensor("attended", FLOAT, 2)
    node = Layer(trt.LayerType.PLUGIN_V3, given, attended)
    reader = Layer(trt.LayerType.SHUFFLE, [attended], Tensor("reshaped", FLOAT, 3))
    network = Network([node, reader])
    assert use_half(network) == (rows != FLOAT)
    assert [tensor.dtype for tensor in node.inputs[: len(names)] if tensor] == [rows] * len(names)
    assert node.inputs[len(names) :] == rest
    (read,) = reader.inputs
    assert read is not None
    assert read.dtype == FLOAT
    assert (read is attended) == (rows == FLOAT)


def test_what_nobody_reads_stays_as_it_is() -> None:
    """A node that is there to write, as in the graph that fills cross pools."""
    rows = Tensor("rows", FLOAT, 2)
    given: list[Tensor | None] = [rows, rows, Tensor("values", FLOAT, 2), Tensor("pool", HALF, 4)]
    node = Layer(trt.LayerType.PLUGIN_V3, given, Tensor("nothing", FLOAT, 2))
    network = Network([node])
    assert use_half(network) == 1
    assert [tensor.dtype for tensor in node.inputs if tensor] == [HALF] * 4
    assert [layer.type for layer in network.layers] == [
        trt.LayerType.PLUGIN_V3, *[trt.LayerType.CAST] * 3,
    ]  # fmt: skip
