"""What a graph must take and give to be the one its manifest describes.

Owns: the inputs and outputs of every graph, from the geometry. Knows no graph library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgekv import names
from edgekv.config import AudioSettings, KVGeometry, TileSettings
from edgekv.errors import ExecutorError
from edgekv.executors.pool_tensors import pool_tensors

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
    cross: KVGeometry | None = None,
) -> Signature:
    """The decoder's; a size of None may be any. ``page_mass``: whether one layer adds it up.
    ``cross``: of pools it only reads."""
    axes = geometry.num_rope_axes
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
    pools_taken, pools_given = _pools(geometry)
    taken |= pools_taken
    given |= pools_given
    if page_mass:
        taken[names.PAGE_MASS] = given[names.PAGE_MASS_OUT] = ("float32", (None,))
        taken[names.MASS_WEIGHTS] = ("float32", (None,))
    if cross is not None:
        taken[names.CROSS_PAGE_TABLE] = ("int32", (None, None, 2))
        taken[names.CROSS_KV_LIMITS] = ("int32", (None,))
        taken |= _pools(cross, cross=True)[0]
    return Signature(taken, given)


def cross_signature(geometry: KVGeometry, *, num_states: int, hidden_size: int) -> Signature:
    """That of the graph that writes the cross pools."""
    taken: dict[str, tuple[str, Dims]] = {
        names.ENCODER_STATES: ("float32", (num_states, hidden_size)),
        names.CROSS_SLOT_MAPPING: ("int32", (num_states,)),
    }
    pools_taken, pools_given = _pools(geometry, cross=True)
    return Signature(taken | pools_taken, pools_given)


def _pools(
    geometry: KVGeometry, *, cross: bool = False
) -> tuple[dict[str, tuple[str, Dims]], dict[str, tuple[str, Dims]]]:
    """Inputs and outputs of any number of pages, of any number of slots."""
    taken, given = {}, {}
    for tensor in pool_tensors(geometry, 1, cross=cross):
        open_dims: Dims = (None, tensor.shape[1], None, *tensor.shape[3:])
        taken[tensor.source] = given[tensor.target] = (tensor.dtype, open_dims)
    return taken, given


def encoder_signature(
    *,
    num_states: int,
    hidden_size: int,
    tiles: TileSettings | None = None,
    audio: AudioSettings | None = None,
) -> Signature:
    """That of an encoder of tiled pictures, or of sound, whose states cross-attention reads."""
    taken: dict[str, tuple[str, Dims]] = {}
    if tiles is not None:
        size = tiles.tile_size
        taken[names.PIXEL_VALUES] = ("float32", (tiles.max_tiles, 3, size, size))
        taken[names.ASPECT_RATIO_IDS] = ("int64", (1,))
    if audio is not None:
        num_frames = audio.num_samples // audio.hop_samples
        taken[names.INPUT_FEATURES] = ("float32", (1, audio.num_mels, num_frames))
    return Signature(taken, {names.ENCODER_STATES: ("float32", (num_states, hidden_size))})


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
