"""Runs one operator call through ONNX Runtime, or through the oracle.

Owns: the one-node model of a call, and the two ways of binding its pools (in place, or copied).
Knows nothing of what the numbers mean.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import fields
from functools import cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state

from edgekv import names, native, oracle
from edgekv.oracle import Attributes, Inputs, Outputs
from tests.operator.build import build
from tests.operator.cases import Case

INPUT_NAMES = tuple(field.name for field in fields(Inputs))
POOL_NAMES = ("key_pool", "value_pool", "key_scales", "value_scales")
IN_PLACE_NAMES = (*POOL_NAMES, "page_mass")
OPSET, IR_VERSION = 17, 8
ORT_ERRORS = (
    _pybind_state.InvalidArgument,
    _pybind_state.Fail,
    _pybind_state.InvalidGraph,
    _pybind_state.RuntimeException,
)

ELEMENT_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.uint16): TensorProto.BFLOAT16,  # NumPy has none: bfloat16 travels as its bits
}


def node_attributes(attributes: Attributes) -> dict[str, object]:
    """What an exporter writes on the node: empty lists are left out."""
    given = {field.name: getattr(attributes, field.name) for field in fields(attributes)}
    given["rotary_interleaved"] = int(attributes.rotary_interleaved)
    given["schema_version"] = names.OP_VERSION
    return {name: value for name, value in given.items() if value != ()}


def build_model(
    arrays: dict[str, np.ndarray],
    attributes: dict[str, object],
    num_outputs: int | None = None,
) -> bytes:
    """A model whose graph is one operator node with these inputs; dimensions are left open."""
    present = [name if name in arrays else "" for name in INPUT_NAMES]
    while present and not present[-1]:
        present.pop()
    pools = [name for name in POOL_NAMES if name in arrays]
    outputs = ["output", *(f"{name}_out" if "key" in arrays else "" for name in pools)]
    if "page_mass" in arrays:
        outputs.append("page_mass_out")
    while not outputs[-1]:
        outputs.pop()
    outputs = outputs[:num_outputs]
    node = helper.make_node(names.OP_NAME, present, outputs, domain=names.OP_DOMAIN, **attributes)

    def value(name: str, like: str) -> object:
        array = arrays[like]
        shape = [None] * array.ndim
        return helper.make_tensor_value_info(name, ELEMENT_TYPES[array.dtype], shape)

    graph = helper.make_graph(
        [node],
        "operator",
        [value(name, name) for name in present if name],
        [
            value(name, name.removesuffix("_out") if name != "output" else "query")
            for name in outputs
            if name
        ],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(names.OP_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return model.SerializeToString()


def input_arrays(inputs: Inputs) -> dict[str, np.ndarray]:
    """The arrays that are given, by input name, each a copy."""
    given = {name: getattr(inputs, name) for name in INPUT_NAMES}
    return {name: array.copy() for name, array in given.items() if array is not None}


def open_session(model: bytes, num_threads: int = 2) -> ort.InferenceSession:
    """A CPU session with the operator registered."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 4  # tests read the exception, not the log
    options.register_custom_ops_library(str(native.ort_library_path()))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def to_ort(array: np.ndarray) -> ort.OrtValue:
    """The array's memory as an OrtValue."""
    if array.dtype == np.uint16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def to_numpy(value: ort.OrtValue) -> np.ndarray:
    """A copy of the tensor; bfloat16 as its bits."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy().copy()
    shape = tuple(value.shape())
    bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return np.ctypeslib.as_array(bits).reshape(shape).copy()


def run_session(
    session: ort.InferenceSession, arrays: dict[str, np.ndarray], *, in_place: bool
) -> dict[str, np.ndarray]:
    """Outputs by name. In place: each pool is one OrtValue bound as input and as output."""
    values = {name: to_ort(array) for name, array in arrays.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    output_names = [output.name for output in session.get_outputs()]
    for name in output_names:
        if in_place and name.removesuffix("_out") in IN_PLACE_NAMES:
            binding.bind_ortvalue_output(name, values[name.removesuffix("_out")])
        else:
            binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    results = binding.get_outputs()
    return {name: to_numpy(value) for name, value in zip(output_names, results, strict=True)}


def run_ort(attributes: Attributes, inputs: Inputs, *, in_place: bool = True) -> Outputs:
    """The call through a fresh session."""
    arrays = input_arrays(inputs)
    session = open_session(build_model(arrays, node_attributes(attributes)))
    results = run_session(session, arrays, in_place=in_place)
    changed = [results.get(f"{name}_out", getattr(inputs, name)) for name in IN_PLACE_NAMES]
    return Outputs(results["output"], *changed)


@cache
def oracle_outputs(case: Case) -> Outputs:
    """The oracle's answer for a case, worked out once per test run."""
    call = build(case)
    return oracle.paged_attention(call.attributes, call.inputs)
