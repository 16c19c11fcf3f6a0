"""How each layer of a model turns its queries with position, found by trying.

Owns: the experiment. One token is run alone at a few positions; a token alone sees only itself, so
its hidden states do not depend on position, and the queries of a layer differ by its rotation only.
Guarantees: a rotation that is returned reproduces the model's own queries; its frequencies are the
model's own numbers, read from its rotary modules. A model whose queries cannot be reproduced
(learned positions, ALiBi, unknown schemes) is reported as not shiftable, never guessed.
Does not know: model classes, or what the rotations are used for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from edgekv.config import Rotation
from edgekv.errors import BundleError
from edgekv.export.attention import STATE, CaptureState, CrossModules, LayerCall

_BY_LENGTH = ("dynamic", "longrope")
_POSITIONS = (1, 7, 101)
_TOLERANCE = 2e-4  # of the largest number in the query; float32 angles at position 101 give 1e-5


@dataclass(frozen=True, slots=True)
class Probe:
    """What a model's attention layers look like, layer by layer."""

    layers: tuple[int, ...]  # layer_idx of each
    calls: tuple[LayerCall, ...]  # at position 0
    cross_calls: tuple[LayerCall, ...]  # of the cross-attention layers
    rotations: tuple[Rotation, ...]
    shiftable: bool

    @property
    def num_rope_axes(self) -> int:
        """1 when any layer rotates, else 0."""
        return int(any(rotation.inv_freq for rotation in self.rotations))


def freeze_frequencies(model: Any) -> None:
    """Keep frequencies that depend on the length of the sequence at those of a short one.

    A cached key outlives the length it was written at, so such schemes ("dynamic", "longrope") can
    only be run within the length they were trained on, see ``fixed_context``.
    """
    for module in model.modules():
        if getattr(module, "rope_type", None) in _BY_LENGTH:
            module.rope_type = "default"


def fixed_context(config: Any) -> int | None:
    """The longest context in which the frequencies of ``freeze_frequencies`` are the model's."""
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None:
        longest = getattr(config, "max_target_positions", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _BY_LENGTH:
        longest = rope.get("original_max_position_embeddings", longest)
    return None if longest is None else int(longest)


def probe_attention(
    model: Any, hidden_size: int, *, forward: Any = None, cross: CrossModules | None = None
) -> Probe:
    """Run ``model`` (already switched to the operator) on one token. Raises BundleError.

    ``forward`` is called in its place, where the two differ; ``cross`` are the modules of its
    cross-attention.
    """
    generator = torch.Generator().manual_seed(0)
    embeds = torch.randn(1, 1, hidden_size, generator=generator)
    cross = cross or {}
    states = {p: _run(forward or model, embeds, p, cross) for p in (0, *_POSITIONS)}
    first = states[0]
    layers = _check_layers(first, cross)
    candidates = list(_candidates(model))
    found = [
        _find_rotation({p: state.calls[layer].query for p, state in states.items()}, candidates)
        for layer in layers
    ]
    shiftable = all(rotation is not None for rotation in found)
    return Probe(
        layers=layers,
        calls=tuple(first.calls[layer] for layer in layers),
        cross_calls=tuple(first.cross_calls[place] for place in range(len(cross))),
        rotations=tuple((rotation if shiftable else None) or Rotation(()) for rotation in found),
        shiftable=shiftable,
    )


def _check_layers(state: CaptureState, cross: CrossModules) -> tuple[int, ...]:
    """The self-attention layers that one pool geometry can serve. Raises BundleError."""
    layers = tuple(sorted(state.calls))
    if not layers:
        raise BundleError("no layer of the model uses the attention interface of transformers")
    if len(state.cross_calls) != len(cross):
        raise BundleError(f"only {len(state.cross_calls)} of {len(cross)} cross-attentions ran")
    elsewhere = {getattr(module, "layer_idx", None) for module in cross}
    num_layers = max(layers) + 1
    if not set(range(num_layers)) <= {*layers, *elsewhere}:
        raise BundleError(f"attention layers are not numbered 0 to {num_layers - 1}")
    for calls in (state.calls, state.cross_calls):
        if len({(call.key.shape[1], call.key.shape[3]) for call in calls.values()}) > 1:
            raise BundleError(
                "layers have different KV heads or head dimensions, which needs one pool"
            )
    return layers


def _run(forward: Any, embeds: torch.Tensor, position: int, cross: CrossModules) -> CaptureState:
    state = CaptureState(cross)
    with torch.no_grad():
        forward(
            inputs_embeds=embeds,
            position_ids=torch.tensor([[position]]),
            use_cache=False,
            **{STATE: state},
        )
    return state


def _candidates(model: Any) -> Iterator[Rotation]:
    """No rotation, then every frequency table the model owns, half-split and interleaved."""
    yield Rotation(())
    seen: list[tuple[float, ...]] = []
    for name, buffer in model.named_buffers():
        if "inv_freq" in name and "original" not in name and buffer.ndim == 1:
            inv_freq = tuple(float(value) for value in buffer)
            if inv_freq not in seen:
                seen.append(inv_freq)
                yield Rotation(inv_freq)
                yield Rotation(inv_freq, interleaved=True)


def _find_rotation(queries: dict[int, torch.Tensor], candidates: list[Rotation]) -> Rotation | None:
    for rotation in candidates:
        if all(_explains(rotation, queries[0], queries[p], p) for p in _POSITIONS):
            return rotation
    return None


def _explains(rotation: Rotation, start: torch.Tensor, turned: torch.Tensor, by: int) -> bool:
    if 2 * len(rotation.inv_freq) > start.shape[-1]:
        return False
    error = (rotate(start, rotation, by) - turned).abs().max()
    return bool(error <= _TOLERANCE * start.abs().max())


def rotate(states: torch.Tensor, rotation: Rotation, by: int) -> torch.Tensor:
    """Turn (…, D) by ``by`` positions as the operator's R does."""
    pairs = len(rotation.inv_freq)
    angle = by * torch.tensor(rotation.inv_freq, dtype=torch.float64)
    cos, sin = angle.cos().to(states.dtype), angle.sin().to(states.dtype)
    turned = states.clone()
    if rotation.interleaved:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    turned[..., first] = states[..., first] * cos - states[..., second] * sin
    turned[..., second] = states[..., second] * cos + states[..., first] * sin
    return turned
