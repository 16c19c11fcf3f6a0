"""What a model sees by cross-attention: the encoder's graph, and the graph that fills the pools.

Owns: ``encoder.onnx`` (an input -> encoder states) and ``cross.onnx`` (encoder states -> keys and
values of every cross-attention layer, written into their pages by the operator).
Guarantees: keys and values are the model's own, taken from what its modules pass to attention, with
whatever norm or bias they have; each is computed once an input, whoever reads it afterwards.
Does not know: model families, files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir
import torch

from edgekv import names
from edgekv.config import KVGeometry, Rotation
from edgekv.errors import BundleError
from edgekv.export.attention import STATE, LayerCall, Tables, emit_operator
from edgekv.export.decoder import example_pools, trace
from edgekv.export.families.parts import CrossPart
from edgekv.export.graph import tidy

_P = 11  # pages of the example pools


@dataclass
class _WriteState:
    """Turns what a cross-attention module computes into a node that writes and reads nothing."""

    tables: Tables
    key_pools: list[torch.Tensor]
    value_pools: list[torch.Tensor]
    place: int = 0
    key_outputs: list[torch.Tensor] = field(default_factory=list)
    value_outputs: list[torch.Tensor] = field(default_factory=list)

    def cross_place(self, module: torch.nn.Module) -> int:  # noqa: ARG002
        """Which layer is being run."""
        return self.place

    def attend_cross(self, place: int, call: LayerCall) -> torch.Tensor:
        """Write the layer's keys and values; the output, (1, 1, Hq, D) zeros, goes nowhere.

        The operator wants a query for each token it writes. The keys serve, as they see nothing.
        """
        writing = replace(call, query=call.key)
        pools = self.key_pools[place], self.value_pools[place]
        _, key_out, value_out = emit_operator(writing, *pools, self.tables, Rotation(()))
        self.key_outputs.append(key_out)
        self.value_outputs.append(value_out)
        return torch.zeros_like(call.query.transpose(1, 2))


class _Writer(torch.nn.Module):
    """Encoder states and slots -> the pools, written."""

    def __init__(self, part: CrossPart, decoder_hidden: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(part.layers)
        self.states_name = part.states_name
        self.decoder_hidden = decoder_hidden

    def forward(
        self,
        encoder_states: torch.Tensor,
        cross_slot_mapping: torch.Tensor,
        key_pools: list[torch.Tensor],
        value_pools: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        num_states = encoder_states.shape[0]
        nothing = torch.zeros(num_states, dtype=torch.int32)
        tables = Tables(
            page_table=torch.tensor([[[-1, 0]]], dtype=torch.int32),
            query_starts=torch.tensor([0, num_states], dtype=torch.int32),
            slot_mapping=cross_slot_mapping,
            kv_limits=nothing,
            query_indices=nothing,
        )
        state = _WriteState(tables, list(key_pools), list(value_pools))
        hidden = torch.zeros(1, 1, self.decoder_hidden)
        for place, layer in enumerate(self.layers):
            state.place = place
            given: dict[str, Any] = {self.states_name: encoder_states.unsqueeze(0), STATE: state}
            layer(hidden, **given)
        return *state.key_outputs, *state.value_outputs


def export_cross(
    part: CrossPart, geometry: KVGeometry, *, num_states: int, states_hidden: int,
    decoder_hidden: int, opset: int,
) -> ir.Model:  # fmt: skip
    """Trace the graph that writes; its modules are switched to the operator already."""
    inputs: dict[str, Any] = {
        names.ENCODER_STATES: torch.zeros(num_states, states_hidden),
        names.CROSS_SLOT_MAPPING: torch.zeros(num_states, dtype=torch.int32),
        "key_pools": example_pools(geometry, _P),
        "value_pools": example_pools(geometry, _P),
    }
    model = trace(_Writer(part, decoder_hidden).eval(), inputs, _all_fixed(inputs), opset)
    places = range(geometry.num_layers)
    takes = [names.cross_key_pool(i) for i in places] + [names.cross_value_pool(i) for i in places]
    gives = [names.cross_key_pool_out(i) for i in places]
    gives += [names.cross_value_pool_out(i) for i in places]
    pools = [*zip(model.graph.inputs[2:], takes, strict=True)]
    pools += zip(model.graph.outputs, gives, strict=True)
    for value, name in pools:
        value.name = name
        assert value.shape is not None
        value.shape = ir.Shape(["PX", value.shape[1], "S", value.shape[3]])
    tidy(model)
    return model


def export_encoder(part: CrossPart, opset: int) -> tuple[ir.Model, tuple[int, int]]:
    """Trace the encoder; returns its graph and the shape (L, hidden) of its states."""
    with torch.no_grad():
        num_states, hidden = part.encoder(**part.encoder_inputs).shape
    wanted = part.states_per_part * (1 if part.tiles is None else part.tiles.max_tiles)
    if num_states != wanted:
        raise BundleError(f"the encoder gives {num_states} states for an input, expected {wanted}")
    model = trace(part.encoder, part.encoder_inputs, _all_fixed(part.encoder_inputs), opset)
    (output,) = model.graph.outputs
    output.name = names.ENCODER_STATES
    tidy(model)
    return model, (int(num_states), int(hidden))


def _all_fixed(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [None] * len(value) if isinstance(value, list) else None
        for name, value in inputs.items()
    }
