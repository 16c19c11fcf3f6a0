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
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch

from edgekv import names
from edgekv.config import KVGeometry, Rotation
from edgekv.errors import BundleError
from edgekv.export.attention import STATE, CrossModules, CrossState, PagedState, Tables
from edgekv.export.probe import batch_of_one

_DTYPES = {"float32": torch.float32, "float16": torch.float16}
_POOL_PREFIXES = ("key_pool", "value_pool", "cross_key_pool", "cross_value_pool")
_AUTO = torch.export.Dim.DYNAMIC
# Example sizes, all different so that no two open dimensions can be taken for one.
_T, _B, _M, _N, _P, _S = 7, 3, 5, 2, 11, 13
_MX, _PX = 17, 19  # columns and pages of cross-attention


@dataclass(frozen=True)
class DecoderPlan:
    """What is traced: a model switched to the operator, and what its layers look like."""

    forward: torch.nn.Module  # (inputs_embeds, position_ids, use_cache, logits_to_keep, state)
    geometry: KVGeometry
    hidden_size: int
    layers: Sequence[int]  # layer_idx of each pool
    rotations: Sequence[Rotation]
    mass_layer: int
    cross_geometry: KVGeometry | None = None  # of a model with cross-attention
    cross_modules: CrossModules = field(default_factory=dict)


class _PagedDecoder(torch.nn.Module):
    """Graph inputs -> the model's own forward over a batch of one row of packed tokens."""

    def __init__(self, plan: DecoderPlan) -> None:
        super().__init__()
        self.model = plan.forward
        self.plan = plan

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
        cross_page_table: torch.Tensor | None = None,
        cross_kv_limits: torch.Tensor | None = None,
        cross_key_pools: list[torch.Tensor] | None = None,
        cross_value_pools: list[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        cross = None
        if cross_page_table is not None:
            assert cross_kv_limits is not None
            assert cross_key_pools is not None
            assert cross_value_pools is not None
            cross = CrossState(
                self.plan.cross_modules,
                cross_page_table,
                cross_kv_limits,
                list(cross_key_pools),
                list(cross_value_pools),
            )
        state = PagedState(
            tables=Tables(page_table, query_starts, slot_mapping, kv_limits, query_indices),
            layers=self.plan.layers,
            key_pools=list(key_pools),
            value_pools=list(value_pools),
            rotations=list(self.plan.rotations),
            page_mass=page_mass,
            mass_weights=mass_weights,
            mass_layer=self.plan.mass_layer,
            cross=cross,
        )
        output = self.model(
            inputs_embeds=inputs_embeds.unsqueeze(0),
            position_ids=batch_of_one(position_ids),
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


def export_decoder(plan: DecoderPlan, opset: int) -> ir.Model:
    """Trace a model; tensors are named as in ``edgekv.names``."""
    wrapped = _PagedDecoder(plan).eval()
    inputs = _example_inputs(plan.geometry, plan.hidden_size)
    if plan.cross_geometry is not None:
        inputs |= _cross_inputs(plan.cross_geometry)
    graph_model = trace(wrapped, inputs, _open_dims(inputs), opset)
    _name_tensors(graph_model.graph, plan)
    _name_dims(graph_model)
    return graph_model


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
    return {
        names.INPUTS_EMBEDS: torch.zeros(_T, hidden_size),
        names.POSITION_IDS: _example_positions(geometry.num_rope_axes),
        names.LOGIT_INDICES: torch.arange(_N),
        names.PAGE_TABLE: _int32(_B, _M, 2 + geometry.num_rope_axes),
        names.QUERY_STARTS: _int32(_B + 1),
        names.SLOT_MAPPING: _int32(_T),
        names.KV_LIMITS: _int32(_T),
        names.QUERY_INDICES: _int32(_T),
        names.PAGE_MASS: torch.zeros(_P),
        names.MASS_WEIGHTS: torch.zeros(_B),
        "key_pools": example_pools(geometry, _P),
        "value_pools": example_pools(geometry, _P),
    }


def _example_positions(num_axes: int) -> torch.Tensor:
    """(T,), or (A, T) on several axes, all different."""
    positions = torch.arange(_T)
    return positions if num_axes <= 1 else torch.arange(1, num_axes + 1)[:, None] * positions


def _cross_inputs(geometry: KVGeometry) -> dict[str, Any]:
    return {
        names.CROSS_PAGE_TABLE: _int32(_B, _MX, 2),
        names.CROSS_KV_LIMITS: _int32(_T),
        "cross_key_pools": example_pools(geometry, _PX),
        "cross_value_pools": example_pools(geometry, _PX),
    }


def example_pools(geometry: KVGeometry, num_pages: int) -> list[torch.Tensor]:
    """A pool for each layer, to trace with."""
    shape = (num_pages, geometry.num_kv_heads, _S, geometry.head_dim)
    return [torch.zeros(shape, dtype=_DTYPES[geometry.dtype]) for _ in range(geometry.num_layers)]


def _int32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _open_dims(inputs: dict[str, Any]) -> dict[str, Any]:
    """Only what the model computes with; the operator's own inputs are opened after the trace.

    The tracer keeps a symbol for every open dimension and compares them all: with the pools of
    thirty layers among them it would take minutes.
    """
    dims: dict[str, Any] = dict.fromkeys(inputs)
    computed = (names.INPUTS_EMBEDS, names.POSITION_IDS, names.LOGIT_INDICES, names.CROSS_KV_LIMITS)
    for name, value in inputs.items():
        if name in computed:
            dims[name] = {value.ndim - 1 if name == names.POSITION_IDS else 0: _AUTO}
        elif isinstance(value, list):
            dims[name] = [None] * len(value)
    return dims


def _name_tensors(graph: ir.Graph, plan: DecoderPlan) -> None:
    """The single tensors have their names from the trace, the pools and the outputs do not."""
    layers = range(plan.geometry.num_layers)
    pools = [names.key_pool(i) for i in layers] + [names.value_pool(i) for i in layers]
    if plan.cross_geometry is not None:
        places = range(plan.cross_geometry.num_layers)
        pools += [names.CROSS_PAGE_TABLE, names.CROSS_KV_LIMITS]
        pools += [names.cross_key_pool(i) for i in places]
        pools += [names.cross_value_pool(i) for i in places]
    for value, name in zip(graph.inputs[-len(pools) :], pools, strict=True):
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
        names.LOGIT_INDICES: {0: "N"},
        names.PAGE_TABLE: {0: "B", 1: "M"},
        names.QUERY_STARTS: {0: "B + 1"},
        names.SLOT_MAPPING: {0: "T"},
        names.KV_LIMITS: {0: "T"},
        names.QUERY_INDICES: {0: "T"},
        names.PAGE_MASS: {0: "P"},
        names.PAGE_MASS_OUT: {0: "P"},
        names.MASS_WEIGHTS: {0: "B"},
        names.CROSS_PAGE_TABLE: {0: "B", 1: "MX"},
        names.CROSS_KV_LIMITS: {0: "T"},
        names.LOGITS: {0: "N"},
    }
    symbols: dict[str, str] = {}
    for value in (*model.graph.inputs, *model.graph.outputs):
        own = (value.name or "").startswith(_POOL_PREFIXES[:2])
        by_axis = letters.get(value.name or "", {0: "P" if own else "PX", 2: "S"})
        dims = list(_shape(value))
        if value.name == names.POSITION_IDS:
            by_axis = {len(dims) - 1: "T"}
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
