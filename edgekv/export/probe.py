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
from edgekv.export.attention import STATE, CaptureState, LayerCall

_BY_LENGTH = ("dynamic", "longrope")
_POSITIONS = (1, 7, 101)
_TOLERANCE = 2e-4  # of the largest number in the query; float32 angles at position 101 give 1e-5


@dataclass(frozen=True, slots=True)
class Probe:
    """What a model's attention layers look like, layer by layer."""

    calls: tuple[LayerCall, ...]  # at position 0
    rotations: tuple[Rotation, ...]
    shiftable: bool

    @property
    def num_kv_heads(self) -> int:
        """KV heads of every layer."""
        return int(self.calls[0].key.shape[1])

    @property
    def head_dim(self) -> int:
        """Head dimension of every layer."""
        return int(self.calls[0].key.shape[3])

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
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _BY_LENGTH:
        longest = rope.get("original_max_position_embeddings", longest)
    return None if longest is None else int(longest)


def probe_attention(model: Any, hidden_size: int) -> Probe:
    """Run ``model`` (already switched to the operator) on one token. Raises BundleError."""
    generator = torch.Generator().manual_seed(0)
    embeds = torch.randn(1, 1, hidden_size, generator=generator)
    calls = {position: _run(model, embeds, position) for position in (0, *_POSITIONS)}
    num_layers = len(calls[0])
    if num_layers == 0:
        raise BundleError("no layer of the model uses the attention interface of transformers")
    if sorted(calls[0]) != list(range(num_layers)):
        raise BundleError(f"attention layers are not numbered 0 to {num_layers - 1}")
    shapes = {tuple(call.key.shape) for call in calls[0].values()}
    if len(shapes) != 1:
        raise BundleError("layers have different KV heads or head dimensions, which needs one pool")
    candidates = list(_candidates(model))
    found = [
        _find_rotation({p: by_layer[layer].query for p, by_layer in calls.items()}, candidates)
        for layer in range(num_layers)
    ]
    shiftable = all(rotation is not None for rotation in found)
    return Probe(
        calls=tuple(calls[0][layer] for layer in range(num_layers)),
        rotations=tuple((rotation if shiftable else None) or Rotation(()) for rotation in found),
        shiftable=shiftable,
    )


def _run(model: Any, embeds: torch.Tensor, position: int) -> dict[int, LayerCall]:
    state = CaptureState()
    with torch.no_grad():
        model(
            inputs_embeds=embeds,
            position_ids=torch.tensor([[position]]),
            use_cache=False,
            **{STATE: state},
        )
    return state.calls


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
