"""The attention function that replaces a model's own while it is traced.

Owns: the entry ``edgekv`` in the attention and mask interfaces of ``transformers``, and what one
traced layer becomes: one ``edgekv::PagedAttention`` node, which for cross-attention only reads.
Guarantees: scale, soft cap, sliding window, grouped heads and sinks are taken from what the model
passes to its attention, so a model is exported without being rewritten.
Does not know: which model calls it, or how the graph is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from edgekv.config import Rotation
from edgekv.errors import BundleError
from edgekv.names import OP_DOMAIN, OP_NAME, OP_VERSION

IMPLEMENTATION = "edgekv"  # the name given to ``set_attn_implementation``
STATE = "edgekv_state"  # the keyword argument that carries a call's state through the model


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one attention layer asked for, as its model passed it."""

    query: torch.Tensor  # (1, Hq, T, D)
    key: torch.Tensor  # (1, Hk, T, D)
    value: torch.Tensor  # (1, Hk, T, D)
    scale: float
    softcap: float
    window: int
    sinks: torch.Tensor | None  # (Hq,)


CrossModules = Mapping[torch.nn.Module, int]  # cross-attention modules -> their place among them


@dataclass(frozen=True, slots=True)
class Tables:
    """The graph inputs that the operator needs beside q, k, v and pools."""

    page_table: torch.Tensor
    query_starts: torch.Tensor
    slot_mapping: torch.Tensor
    kv_limits: torch.Tensor
    query_indices: torch.Tensor


def emit_operator(
    call: LayerCall,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    tables: Tables,
    rotation: Rotation,
    *,
    read_only: bool = False,
    mass: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Emit the operator for one layer: output (1, T, Hq, D), then what it writes, the pools unless
    ``read_only`` and then the page mass if it is given, with its weights."""
    _, num_heads, num_tokens, head_dim = call.query.shape
    attributes: dict[str, Any] = {
        "schema_version": OP_VERSION,
        "plugin_version": str(OP_VERSION),
        "plugin_namespace": OP_DOMAIN,
        "num_heads": num_heads,
        "num_kv_heads": key_pool.shape[1],
        "head_dim": head_dim,
        "scale": call.scale,
        "softcap": call.softcap,
        "window": call.window,
        "rotary_interleaved": int(rotation.interleaved),
    }
    if rotation.inv_freq:
        attributes["inv_freq"] = list(rotation.inv_freq)
    if rotation.freq_axes:
        attributes["freq_axes"] = list(rotation.freq_axes)
    new = (None, None) if read_only else (_rows(call.key), _rows(call.value))
    inputs: list[torch.Tensor | None] = [
        _rows(call.query), *new, key_pool, value_pool,
        tables.page_table, tables.query_starts, tables.slot_mapping, tables.kv_limits,
        tables.query_indices,
    ]  # fmt: skip
    sinks = None if call.sinks is None else call.sinks.float()
    written = [] if read_only else [key_pool, value_pool]
    if mass is not None:
        inputs += [sinks, None, None, *mass]
        written.append(mass[0])
    elif sinks is not None:
        inputs.append(sinks)
    attributes["num_outputs"] = 1 + len(written)  # TensorRT asks before it shows the inputs
    output, *changed = torch.onnx.ops.symbolic_multi_out(
        f"{OP_DOMAIN}::{OP_NAME}",
        inputs,
        attributes,
        dtypes=(call.query.dtype, *(pool.dtype for pool in written)),
        shapes=((num_tokens, num_heads * head_dim), *(pool.shape for pool in written)),
        version=1,
    )
    return output.reshape(1, num_tokens, num_heads, head_dim), *changed


@dataclass
class CrossState:
    """Where the cross-attention layers of a decoder read: pools that other graphs write."""

    modules: CrossModules
    page_table: torch.Tensor
    kv_limits: torch.Tensor
    key_pools: list[torch.Tensor]
    value_pools: list[torch.Tensor]


@dataclass
class PagedState:
    """A decoder's inputs, and the pools its layers return."""

    tables: Tables
    layers: Sequence[int]  # layer_idx of each pool
    key_pools: list[torch.Tensor]
    value_pools: list[torch.Tensor]
    rotations: list[Rotation]
    page_mass: torch.Tensor | None = None
    mass_weights: torch.Tensor | None = None
    mass_layer: int | None = None  # the one layer whose node adds up ``page_mass``
    mass_output: torch.Tensor | None = None
    cross: CrossState | None = None
    key_outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    value_outputs: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def sees_source(self) -> torch.Tensor:
        """(T,) float32: 1 where a token sees an encoder state, else 0."""
        assert self.cross is not None
        return (self.cross.kv_limits > 0).float()

    def cross_place(self, module: torch.nn.Module) -> int | None:
        """Which cross-attention layer ``module`` is, None for self-attention."""
        return None if self.cross is None else self.cross.modules.get(module)

    def attend(self, layer: int, call: LayerCall) -> torch.Tensor:
        """Emit the operator for one layer; returns (1, T, Hq, D)."""
        place = self.layers.index(layer)
        mass = None
        if place == self.mass_layer and self.page_mass is not None:
            assert self.mass_weights is not None
            mass = self.page_mass, self.mass_weights
        output, key_out, value_out, *mass_out = emit_operator(
            call,
            self.key_pools[place],
            self.value_pools[place],
            self.tables,
            self.rotations[place],
            mass=mass,
        )
        self.key_outputs[place], self.value_outputs[place] = key_out, value_out
        if mass_out:
            self.mass_output = mass_out[0]
        return output

    def attend_cross(self, place: int, call: LayerCall) -> torch.Tensor:
        """Emit a node that only reads; what the model computed as keys and values is not used."""
        assert self.cross is not None
        tables = replace(
            self.tables, page_table=self.cross.page_table, kv_limits=self.cross.kv_limits
        )
        pools = self.cross.key_pools[place], self.cross.value_pools[place]
        (output,) = emit_operator(call, *pools, tables, Rotation(()), read_only=True)
        return output


@dataclass
class CaptureState:
    """Records each layer's call and answers with its values: for a sequence of one token only."""

    cross_modules: CrossModules = field(default_factory=dict)
    calls: dict[int, LayerCall] = field(default_factory=dict)
    cross_calls: dict[int, LayerCall] = field(default_factory=dict)

    @property
    def sees_source(self) -> torch.Tensor:
        """(1,) zero: the token sees no encoder state."""
        return torch.zeros(1)

    def cross_place(self, module: torch.nn.Module) -> int | None:
        """Which cross-attention layer ``module`` is, None for self-attention."""
        return self.cross_modules.get(module)

    def attend(self, layer: int, call: LayerCall) -> torch.Tensor:
        """Keep the call; returns (1, T, Hq, D), the attention of a token that sees itself."""
        self.calls[layer] = call
        groups = call.query.shape[1] // call.key.shape[1]
        return call.value.repeat_interleave(groups, dim=1).transpose(1, 2)

    def attend_cross(self, place: int, call: LayerCall) -> torch.Tensor:
        """Keep the call; returns (1, T, Hq, D), the attention of a token that sees nothing."""
        self.cross_calls[place] = call
        return torch.zeros_like(call.query.transpose(1, 2))


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - part of the interface
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    state = kwargs.get(STATE)
    if state is None:
        raise BundleError(f"{type(module).__name__} does not pass its keyword arguments on")
    place = state.cross_place(module)
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise BundleError(f"{type(module).__name__} has no layer_idx, it cannot be given a cache")
    if value.shape[-1] != query.shape[-1]:
        raise BundleError(
            f"layer {layer}: head_dim of keys ({query.shape[-1]}) and of values "
            f"({value.shape[-1]}) differ, which the operator does not support"
        )
    call = LayerCall(
        query=query,
        key=key,
        value=value,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        softcap=float(softcap or 0.0),
        window=int(sliding_window or 0),
        sinks=s_aux,
    )
    if place is not None:
        return state.attend_cross(place, call), None
    return state.attend(layer, call), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The operator masks by ``kv_limits``; the model must not build a mask of its own."""


def use_paged_attention(model: Any) -> None:
    """Switch every decoder layer of ``model`` to the operator."""
    attention: Callable[..., Any] = _attention
    AttentionInterface.register(IMPLEMENTATION, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, _no_mask)
    model.set_attn_implementation(IMPLEMENTATION)
    if getattr(model, "_can_set_experts_implementation", lambda: False)():
        model.set_experts_implementation("batched_mm")  # the others have no ONNX form


def _rows(states: torch.Tensor) -> torch.Tensor:
    """(1, H, T, D) -> (T, H * D)."""
    _, heads, tokens, head_dim = states.shape
    return states.transpose(1, 2).reshape(tokens, heads * head_dim)
