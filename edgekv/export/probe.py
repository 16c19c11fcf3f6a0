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
_FAR = 1_000_003  # where axes differ for frequencies so slow that they look alike nearby
_TOLERANCE = 2e-4  # of the largest number in the query; float32 angles at position 101 give 1e-5


@dataclass(frozen=True, slots=True)
class Probe:
    """What a model's attention layers look like, layer by layer."""

    layers: tuple[int, ...]  # layer_idx of each
    calls: tuple[LayerCall, ...]  # at position 0
    cross_calls: tuple[LayerCall, ...]  # of the cross-attention layers
    rotations: tuple[Rotation, ...]
    shiftable: bool
    num_axes: int  # positions that the model takes for a token

    @property
    def num_rope_axes(self) -> int:
        """As many as positions are taken when any layer rotates, else 0."""
        return self.num_axes if any(rotation.inv_freq for rotation in self.rotations) else 0


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


def num_position_axes(model: Any) -> int:
    """How many positions a model takes for a token: 3 with M-RoPE (time, row, column), else 1."""
    for module in model.modules():
        if sections := getattr(module, "mrope_section", None):
            return len(sections)
    return 1


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
    num_axes = num_position_axes(model)
    far = (_FAR,) if num_axes > 1 else ()
    states = {
        p: _run(forward or model, embeds, _spread(p, num_axes), cross)
        for p in (0, *_POSITIONS, *far)
    }
    first = states[0]
    layers = _check_layers(first, cross)
    candidates = list(_candidates(model))
    found = [
        _find_rotation(
            {p: state.calls[layer].query for p, state in states.items()}, candidates, num_axes
        )
        for layer in layers
    ]
    shiftable = all(rotation is not None for rotation in found)
    return Probe(
        layers=layers,
        calls=tuple(first.calls[layer] for layer in layers),
        cross_calls=tuple(first.cross_calls[place] for place in range(len(cross))),
        rotations=tuple((rotation if shiftable else None) or Rotation(()) for rotation in found),
        shiftable=shiftable,
        num_axes=num_axes,
    )


def _spread(position: int, num_axes: int) -> tuple[int, ...]:
    """A different position on each axis; 0 is 0 on all."""
    return tuple(position * (axis + 1) for axis in range(num_axes))


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


def _run(
    forward: Any, embeds: torch.Tensor, position: tuple[int, ...], cross: CrossModules
) -> CaptureState:
    state = CaptureState(cross)
    with torch.no_grad():
        forward(
            inputs_embeds=embeds,
            position_ids=batch_of_one(torch.tensor(position)[:, None].squeeze(0)),
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


def batch_of_one(positions: torch.Tensor) -> torch.Tensor:
    """Positions (T,) or (A, T) as models take them: (1, T) or (A, 1, T)."""
    return positions.unsqueeze(positions.ndim - 1)


def _find_rotation(
    queries: dict[int, torch.Tensor], candidates: list[Rotation], num_axes: int
) -> Rotation | None:
    for candidate in candidates:
        if 2 * len(candidate.inv_freq) > queries[0].shape[-1]:
            continue
        if (rotation := _explained(candidate, queries, num_axes)) is not None:
            return rotation
    return None


def _explained(
    candidate: Rotation, queries: dict[int, torch.Tensor], num_axes: int
) -> Rotation | None:
    """The candidate with the axis of each frequency, if it turns the queries as the model does."""
    limit = _TOLERANCE * queries[0].abs().max()
    near = torch.stack([_errors(candidate, queries, p, num_axes) for p in _POSITIONS]).amax(0)
    fine = near <= limit  # (A, pairs + 1), the last for what does not turn
    if not fine.any(0).all():
        return None
    if num_axes == 1:
        return candidate
    # Slow frequencies hardly turn nearby, on whichever axis; far away they do.
    far = _errors(candidate, queries, _FAR, num_axes)
    axes = torch.where(fine, far, torch.inf).argmin(0)[:-1]
    return Rotation(candidate.inv_freq, tuple(axes.tolist()), candidate.interleaved)


def _errors(
    candidate: Rotation, queries: dict[int, torch.Tensor], position: int, num_axes: int
) -> torch.Tensor:
    """(A, pairs + 1) how far each pair is from the model's when turned by each axis's position."""
    pairs = len(candidate.inv_freq)
    shape, last = ((pairs, 2), 1) if candidate.interleaved else ((2, pairs), 0)
    rows = []
    for by in _spread(position, num_axes):
        error = (rotate(queries[0], candidate, by) - queries[position]).abs().flatten(0, -2).amax(0)
        rest = torch.cat([error.new_zeros(1), error[2 * pairs :]]).amax(0, keepdim=True)
        rows.append(torch.cat([error[: 2 * pairs].reshape(shape).amax(last), rest]))
    return torch.stack(rows)


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
