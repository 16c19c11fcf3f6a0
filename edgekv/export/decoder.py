"""The text decoder of a model as one ONNX graph over pages.

Owns: the traced module, its example inputs, which dimensions stay open, the tensor names.
Guarantees: inputs and outputs are exactly those of ``edgekv.names``; T, B, M, N, P and S are free,
N = 0 and T = 1 included.
Does not know: model families, weight formats, files.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch

from edgekv import names
from edgekv.config import KVDtype, KVGeometry, Rotation
from edgekv.errors import BundleError
from edgekv.export.attention import STATE, PagedState

_DTYPES = {"float32": torch.float32, "float16": torch.float16}
_ONNX_DTYPES = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16}
_POOL_PREFIXES = ("key_pool", "value_pool")
_AUTO = torch.export.Dim.DYNAMIC
# Example sizes, all different so that no two open dimensions can be taken for one.
_T, _B, _M, _N, _P, _S = 7, 3, 5, 2, 11, 13


class _PagedDecoder(torch.nn.Module):
    """Graph inputs -> the model's own forward over a batch of one row of packed tokens."""

    def __init__(
        self, model: torch.nn.Module, rotations: Sequence[Rotation], mass_layer: int
    ) -> None:
        super().__init__()
        self.model = model
        self.rotations = list(rotations)
        self.mass_layer = mass_layer

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        position_ids: torch.Tensor,
        logit_indices: torch.Tensor,
        page_table: torch.Tensor,
        query_starts: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_limits: torch.Tensor,
        query_indices: torch.Tensor,
        page_mass: torch.Tensor,
        mass_weights: torch.Tensor,
        key_pools: list[torch.Tensor],
        value_pools: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        state = PagedState(
            page_table=page_table,
            query_starts=query_starts,
            slot_mapping=slot_mapping,
            kv_limits=kv_limits,
            query_indices=query_indices,
            key_pools=list(key_pools),
            value_pools=list(value_pools),
            rotations=self.rotations,
            page_mass=page_mass,
            mass_weights=mass_weights,
            mass_layer=self.mass_layer,
        )
        output = self.model(
            inputs_embeds=inputs_embeds.unsqueeze(0),
            position_ids=position_ids.unsqueeze(0),
            use_cache=False,
            logits_to_keep=logit_indices,
            **{STATE: state},
        )
        layers = range(len(key_pools))
        assert state.mass_output is not None, "the mass layer is one of the model's"
        return (
            output.logits.squeeze(0).float(),
            *(state.key_outputs[layer] for layer in layers),
            *(state.value_outputs[layer] for layer in layers),
            state.mass_output,
        )


def export_decoder(
    model: torch.nn.Module,
    *,
    geometry: KVGeometry,
    hidden_size: int,
    rotations: Sequence[Rotation],
    mass_layer: int,
    opset: int,
) -> ir.Model:
    """Trace ``model``, switched to the operator; tensors are named as in ``edgekv.names``."""
    wrapped = _PagedDecoder(model, rotations, mass_layer).eval()
    inputs = _example_inputs(geometry, hidden_size)
    graph_model = trace(wrapped, inputs, _open_dims(inputs), opset)
    _name_tensors(graph_model.graph, geometry.num_layers)
    _name_dims(graph_model)
    return graph_model


def set_pool_dtype(model: ir.Model, dtype: KVDtype) -> None:
    """Change what the pools of a decoder graph hold; nothing but the operator touches them."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if (value.name or "").startswith(_POOL_PREFIXES):
            value.type = ir.TensorType(_ONNX_DTYPES[dtype])


def trace(
    module: torch.nn.Module, inputs: dict[str, Any], dynamic_shapes: dict[str, Any], opset: int
) -> ir.Model:
    """``torch.onnx.export`` without its chatter. Raises BundleError."""
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module,
                kwargs=inputs,
                dynamic_shapes=dynamic_shapes,
                dynamo=True,
                opset_version=opset,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise BundleError(f"the model cannot be traced ({_first_line(cause)})") from error
    assert program is not None
    return program.model


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def _example_inputs(geometry: KVGeometry, hidden_size: int) -> dict[str, Any]:
    def int32(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    def pools() -> list[torch.Tensor]:
        shape = (_P, geometry.num_kv_heads, _S, geometry.head_dim)
        dtype = _DTYPES[geometry.dtype]
        return [torch.zeros(shape, dtype=dtype) for _ in range(geometry.num_layers)]

    return {
        names.INPUTS_EMBEDS: torch.zeros(_T, hidden_size),
        names.POSITION_IDS: torch.arange(_T),
        names.LOGIT_INDICES: torch.arange(_N),
        names.PAGE_TABLE: int32(_B, _M, 2 + geometry.num_rope_axes),
        names.QUERY_STARTS: int32(_B + 1),
        names.SLOT_MAPPING: int32(_T),
        names.KV_LIMITS: int32(_T),
        names.QUERY_INDICES: int32(_T),
        names.PAGE_MASS: torch.zeros(_P),
        names.MASS_WEIGHTS: torch.zeros(_B),
        "key_pools": pools(),
        "value_pools": pools(),
    }


def _open_dims(inputs: dict[str, Any]) -> dict[str, Any]:
    """Only what the model computes with; the operator's own inputs are opened after the trace.

    The tracer keeps a symbol for every open dimension and compares them all: with the pools of
    thirty layers among them it would take minutes.
    """
    dims: dict[str, Any] = dict.fromkeys(inputs)
    for name in (names.INPUTS_EMBEDS, names.POSITION_IDS, names.LOGIT_INDICES):
        dims[name] = {0: _AUTO}
    for name in ("key_pools", "value_pools"):
        dims[name] = [None] * len(inputs[name])
    return dims


def _name_tensors(graph: ir.Graph, num_layers: int) -> None:
    layers = range(num_layers)
    wanted = [names.key_pool(i) for i in layers] + [names.value_pool(i) for i in layers]
    for value, name in zip(graph.inputs[-2 * num_layers :], wanted, strict=True):
        value.name = name
    wanted = [names.LOGITS]
    wanted += [names.key_pool_out(i) for i in layers] + [names.value_pool_out(i) for i in layers]
    wanted.append(names.PAGE_MASS_OUT)
    for value, name in zip(graph.outputs, wanted, strict=True):
        value.name = name


def _name_dims(model: ir.Model) -> None:
    """Give open dimensions the letters of the operator's document, the tracer's symbols go."""
    letters: dict[str, dict[int, str]] = {
        names.INPUTS_EMBEDS: {0: "T"},
        names.POSITION_IDS: {0: "T"},
        names.LOGIT_INDICES: {0: "N"},
        names.PAGE_TABLE: {0: "B", 1: "M"},
        names.QUERY_STARTS: {0: "B + 1"},
        names.SLOT_MAPPING: {0: "T"},
        names.KV_LIMITS: {0: "T"},
        names.QUERY_INDICES: {0: "T"},
        names.PAGE_MASS: {0: "P"},
        names.PAGE_MASS_OUT: {0: "P"},
        names.MASS_WEIGHTS: {0: "B"},
        names.LOGITS: {0: "N"},
    }
    symbols: dict[str, str] = {}
    for value in (*model.graph.inputs, *model.graph.outputs):
        by_axis = letters.get(value.name or "", {0: "P", 2: "S"})
        dims = list(_shape(value))
        symbols.update({str(dims[axis]): letter for axis, letter in by_axis.items()})
        value.shape = ir.Shape([by_axis.get(axis, dim) for axis, dim in enumerate(dims)])
    for value in (value for node in model.graph for value in node.outputs):
        if value.shape is not None and not value.is_graph_output():
            value.shape = ir.Shape([_renamed(dim, symbols) for dim in value.shape])


def _renamed(dim: int | ir.SymbolicDim, symbols: dict[str, str]) -> int | str | None:
    return dim if isinstance(dim, int) else symbols.get(str(dim))


def _shape(value: ir.Value) -> ir.Shape:
    assert value.shape is not None
    return value.shape


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
