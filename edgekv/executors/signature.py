"""What a graph must take and give to be the one its manifest describes.

Owns: the inputs and outputs of both graphs, from the geometry. Knows no graph library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError

Dims = tuple[int | None, ...]  # None = any size
Tensors = Mapping[str, tuple[str, Dims]]  # name -> NumPy dtype name, shape


@dataclass(frozen=True, slots=True)
class Signature:
    """Tensors that a graph takes and gives. ``given`` may name fewer than the graph gives."""

    taken: Tensors
    given: Tensors


def decoder_signature(
    geometry: KVGeometry,
    *,
    hidden_size: int | None = None,
    vocab_size: int | None = None,
    page_mass: bool = False,
) -> Signature:
    """The decoder's; a size of None may be any. ``page_mass``: whether one layer adds it up."""
    axes = geometry.num_rope_axes
    pool = (geometry.dtype, (None, geometry.num_kv_heads, None, geometry.head_dim))
    layers = range(geometry.num_layers)
    taken: dict[str, tuple[str, Dims]] = {
        names.INPUTS_EMBEDS: ("float32", (None, hidden_size)),
        names.POSITION_IDS: ("int64", (None,) if axes <= 1 else (axes, None)),
        names.LOGIT_INDICES: ("int64", (None,)),
        names.PAGE_TABLE: ("int32", (None, None, 2 + axes)),
        names.QUERY_STARTS: ("int32", (None,)),
        names.SLOT_MAPPING: ("int32", (None,)),
        names.KV_LIMITS: ("int32", (None,)),
        names.QUERY_INDICES: ("int32", (None,)),
    }
    given: dict[str, tuple[str, Dims]] = {names.LOGITS: ("float32", (None, vocab_size))}
    for name_in, name_out in (
        (names.key_pool, names.key_pool_out),
        (names.value_pool, names.value_pool_out),
    ):
        taken.update({name_in(layer): pool for layer in layers})
        given.update({name_out(layer): pool for layer in layers})
    if page_mass:
        taken[names.PAGE_MASS] = given[names.PAGE_MASS_OUT] = ("float32", (None,))
        taken[names.MASS_WEIGHTS] = ("float32", (None,))
    return Signature(taken, given)


def vision_signature(
    *, height: int, width: int, tokens_per_image: int, hidden_size: int
) -> Signature:
    """The vision graph's, for pictures of one size in pixels."""
    return Signature(
        {names.PIXEL_VALUES: ("float32", (None, 3, height, width))},
        {names.IMAGE_EMBEDS: ("float32", (None, tokens_per_image, hidden_size))},
    )


def check_signature(file_name: str, wanted: Signature, found: Signature) -> None:
    """Raise ExecutorError naming the first tensor that a graph lacks, has otherwise or adds."""
    for kind, want, have in (
        ("input", wanted.taken, found.taken),
        ("output", wanted.given, found.given),
    ):
        for name, (dtype, shape) in want.items():
            expected = f"{file_name}: expected an {kind} {name} {_text(shape)} {dtype}"
            if name not in have:
                raise ExecutorError(f"{expected}, the graph has none")
            got_dtype, got_shape = have[name]
            if dtype != got_dtype or not _agree(shape, got_shape):
                raise ExecutorError(f"{expected}, the graph has {_text(got_shape)} {got_dtype}")
    if unknown := sorted(set(found.taken) - set(wanted.taken)):
        raise ExecutorError(f"{file_name}: the graph has an input {unknown[0]} that nothing fills")


def _agree(wanted: Dims, found: Dims) -> bool:
    return len(wanted) == len(found) and all(
        want is None or have is None or want == have
        for want, have in zip(wanted, found, strict=True)
    )


def _text(shape: Dims) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
