"""NVIDIA's TensorRT-RTX in TensorRT's place: the same builder and ONNX parser, and no GPU needed.

It aborts the process when a graph adds a V3 plugin, so graphs are cut at the operator first; its
builder must be told which GPU it builds for.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import tensorrt_rtx_bindings as rtx
from onnx import helper

from edgekv import names
from edgekv.executors.signature import Signature
from edgekv.executors.tensorrt.profiles import Profile, Range
from edgekv.names import OP_NAME

# The bindings' own finalizers only warn that they are deprecated.
for _kind in list(vars(rtx).values()):
    if isinstance(_kind, type) and "__del__" in vars(_kind):
        del _kind.__del__


class Builder(rtx.Builder):
    """Builds for the kind of GPU nearest to Orin's that it knows."""

    def create_builder_config(self) -> Any:
        config = super().create_builder_config()
        config.num_compute_capabilities = 1
        config.set_compute_capability(rtx.ComputeCapability.SM86, 0)
        return config


def stand_in() -> types.ModuleType:
    """A module ``tensorrt``; call it before anything imports the executor's builder."""
    if "tensorrt" not in sys.modules:
        module = types.ModuleType("tensorrt")
        module.__dict__.update({k: v for k, v in vars(rtx).items() if not k.startswith("__")})
        module.__spec__ = importlib.machinery.ModuleSpec("tensorrt", None)
        module.__dict__.update(Builder=Builder, __version__=rtx.__version__)
        sys.modules["tensorrt"] = module
    return sys.modules["tensorrt"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node that the parser does not take."""

    node: str
    operator: str
    reason: str


def refused_nodes(graph: Path) -> list[Refusal]:
    """The nodes of ``graph`` that this TensorRT does not take, plugins loaded so far included."""
    from edgekv.executors.tensorrt.build import Log, create_network  # after the stand-in

    logger = Log()
    network = create_network(Builder(logger))
    parser = rtx.OnnxParser(network, logger)
    parser.supports_model_v2(graph.read_bytes(), str(graph))
    return [
        Refusal(error.node_name(), error.node_operator(), error.desc())
        for error in map(parser.get_error, range(parser.num_errors))
    ]


def cut_at_operator(graph: Path, target: Path) -> int:
    """Copy a decoder, each operator node replaced by graph outputs (what it takes) and inputs (what
    it gives): the number of nodes cut. Weights stay where they are, beside ``graph``."""
    model = onnx.load(graph, load_external_data=False)
    known = {value.name: value for value in model.graph.value_info}
    kept, outer_in, outer_out, num_cut = [], {}, {}, 0
    for node in model.graph.node:
        if node.op_type != OP_NAME:
            kept.append(node)
            continue
        num_cut += 1
        query = known[node.input[0]]
        outer_in[node.output[0]] = helper.make_tensor_value_info(
            node.output[0],
            query.type.tensor_type.elem_type,
            ["T", query.type.tensor_type.shape.dim[-1].dim_value],
        )
        outer_out.update({name: known[name] for name in node.input[:3] if name})
    used = {name for node in kept for name in node.input}
    inputs = [value for value in model.graph.input if value.name in used]
    made_here = {name for node in kept for name in node.output}
    outputs = [value for value in model.graph.output if value.name in made_here]
    cut = helper.make_graph(
        kept, "cut", [*inputs, *outer_in.values()], [*outputs, *outer_out.values()],
        initializer=model.graph.initializer, value_info=model.graph.value_info,
    )  # fmt: skip
    cut_model = helper.make_model(
        cut, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    onnx.save(cut_model, target)
    for data in graph.parent.glob("*.data"):
        link = target.parent / data.name
        if not link.exists():
            link.symlink_to(data.resolve())
    return num_cut


def profiles_of_cut(signature: Signature, profiles: tuple[Profile, ...]) -> list[Profile]:
    """A decoder's profiles for what is left of it: what the operator gave has a row a token."""
    made = []
    for profile in profiles:
        tokens = [dims[0] for dims in profile.ranges[names.INPUTS_EMBEDS].all]
        ranges = {
            name: profile.ranges.get(name) or Range(*((size, *dims[1:]) for size in tokens))  # type: ignore[arg-type, misc]
            for name, (_, dims) in signature.taken.items()
        }
        made.append(Profile(profile.purpose, ranges))
    return made
