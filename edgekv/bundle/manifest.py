"""What ``bundle.json`` says. The dataclasses here are the format: keys are field names.

Owns: the format version, the names of the files in a bundle, the meaning and the limits of every
key (documented in ``docs/bundle_format.md``).
Guarantees: a ``Manifest`` that exists is consistent in itself; text round-trips.
Does not know: whether the files it lists are there.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Literal, get_args

from edgekv.checks import refuse, shown
from edgekv.config import (
    AudioSettings,
    ImageSettings,
    KVDtype,
    KVGeometry,
    Rotation,
    TileSettings,
)
from edgekv.decode import decode, parse_json
from edgekv.errors import BundleError
from edgekv.names import OP_VERSION

FORMAT_VERSION = 2

MANIFEST = "bundle.json"
VISION = "vision.onnx"
ENCODER = "encoder.onnx"
EMBED = "embed.npy"
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"

REQUIRED_FILES = (EMBED, TOKENIZER, CHAT_TEMPLATE)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

WeightsKind = Literal["fp32", "fp16", "int4"]
ImageAttention = Literal["causal", "bidirectional"]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the bundle: what its bytes must be."""

    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        if _SHA256.fullmatch(self.sha256) is None:
            raise ValueError("sha256 must be 64 lower-case hexadecimal digits")
        if self.size_bytes < 0:
            raise ValueError(f"size_bytes must not be negative, got {self.size_bytes}")


@dataclass(frozen=True, slots=True)
class FrameText:
    """How a frame stands in the prompt."""

    placeholder: str  # what the chat template writes for one
    prefix: str  # text right before its image tokens
    suffix: str  # text right after them
    num_tokens: int  # image tokens in between


@dataclass(frozen=True, slots=True)
class VisionSettings:
    """How frames enter the model and the prompt."""

    tokens_per_image: int
    image_token_id: int  # stands for every image token in recorded token ids
    image_attention: ImageAttention  # whether a frame's own tokens all see each other
    placeholder: str  # what the chat template writes for one image
    frame_prefix: str  # text right before a frame's image tokens
    frame_suffix: str  # text right after them
    image: ImageSettings

    def __post_init__(self) -> None:
        if self.tokens_per_image < 1:
            raise ValueError(f"tokens_per_image must be at least 1, got {self.tokens_per_image}")
        if self.image_token_id < 0:
            raise ValueError(f"image_token_id must not be negative, got {self.image_token_id}")
        if not self.placeholder:
            raise ValueError("placeholder must not be empty")

    @property
    def frame_text(self) -> FrameText:
        """How a frame stands in the prompt."""
        return FrameText(
            self.placeholder, self.frame_prefix, self.frame_suffix, self.tokens_per_image
        )


@dataclass(frozen=True, slots=True)
class CrossSettings:
    """How inputs enter a model that sees them by cross-attention; exactly one kind of input."""

    geometry: KVGeometry  # of the cross pools, in the KV dtype of the others; no rope axes
    graphs: dict[str, str]  # KV dtype -> file of the graph that writes keys and values
    hidden_size: int  # of an encoder state
    states_per_part: int  # encoder states of one tile, or of a whole sound
    placeholder: str  # what the prompt says where an input stands, empty = nothing
    default_question: str  # what an empty question asks, empty = it is refused
    tiles: TileSettings | None
    audio: AudioSettings | None

    def __post_init__(self) -> None:
        for name in ("hidden_size", "states_per_part"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if (self.tiles is None) == (self.audio is None):
            raise ValueError("one of tiles and audio must be null and the other not")
        if self.geometry.num_rope_axes:
            raise ValueError(
                f"geometry: num_rope_axes must be 0, got {self.geometry.num_rope_axes}"
            )

    @property
    def max_states(self) -> int:
        """Encoder states of the largest input."""
        return self.states_per_part * (1 if self.tiles is None else self.tiles.max_tiles)

    @property
    def frame_text(self) -> FrameText | None:
        """How an input stands in the prompt; None when it leaves no token there."""
        return FrameText(self.placeholder, self.placeholder, "", 0) if self.placeholder else None


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """What rendering the chat template needs beside the template."""

    prepend: str  # text before the rendered template, where the tokenizer adds its own start token
    template_tokens: dict[str, str]  # variables such as bos_token
    eos_ids: tuple[int, ...]  # any of them ends an answer

    def __post_init__(self) -> None:
        if any(token < 0 for token in self.eos_ids):
            raise ValueError(f"eos_ids must not be negative, got {list(self.eos_ids)}")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """How the model's authors meant it to be sampled."""

    do_sample: bool
    temperature: float
    top_k: int  # 0 = all
    top_p: float
    repetition_penalty: float  # 1 = none

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.repetition_penalty <= 0:
            raise ValueError("temperature and repetition_penalty must be positive")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError("top_k must not be negative, top_p must lie in (0, 1]")


@dataclass(frozen=True, slots=True)
class QueryOutput:
    """Which queries the decoder can give out, and what attention multiplies their scores by."""

    layer: int
    scale: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of ``bundle.json``."""

    format_version: int
    name: str
    family: str
    operator_version: int  # schema version of edgekv::PagedAttention in decoder.onnx
    opset: int
    weights: WeightsKind
    geometry: KVGeometry  # with the KV dtype that is used when the caller names none
    decoders: dict[str, str]  # KV dtype -> graph file; they share their weights
    shiftable: bool  # whether cached pages may move to other positions
    rotations: tuple[Rotation, ...]  # the different ones
    layer_rotations: tuple[int, ...]  # (num_layers,) which of them each layer uses
    mass_layer: int | None  # the layer whose node adds up ``page_mass``, null = none does
    queries: QueryOutput | None  # the layer whose queries the decoder shows, null = none
    hidden_size: int
    vocab_size: int
    max_context_tokens: int
    vision: VisionSettings | None  # null = no frames in the context itself
    cross: CrossSettings | None  # null = no cross-attention
    prompt: PromptSettings
    generation: GenerationDefaults
    files: dict[str, FileEntry]

    def __post_init__(self) -> None:
        if self.operator_version != OP_VERSION:
            raise ValueError(
                f"operator_version {self.operator_version} is not the {OP_VERSION} this edgekv "
                "runs; export the model again"
            )
        for name in ("hidden_size", "vocab_size", "max_context_tokens", "opset"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if len(self.layer_rotations) != self.geometry.num_layers or not all(
            0 <= place < len(self.rotations) for place in self.layer_rotations
        ):
            raise ValueError(
                f"layer_rotations must hold {self.geometry.num_layers} indices into rotations"
            )
        if self.mass_layer is not None and not 0 <= self.mass_layer < self.geometry.num_layers:
            raise ValueError(
                f"mass_layer must be null or 0 to {self.geometry.num_layers - 1}, "
                f"got {self.mass_layer}"
            )
        if self.queries and not 0 <= self.queries.layer < self.geometry.num_layers:
            raise ValueError(
                f"queries.layer must be 0 to {self.geometry.num_layers - 1}, "
                f"got {self.queries.layer}"
            )
        if any(token >= self.vocab_size for token in self.prompt.eos_ids):
            raise ValueError(f"eos_ids must lie below vocab_size {self.vocab_size}")
        if self.cross is not None:
            self._check_cross(self.cross)
        self._check_files()

    def _check_cross(self, cross: CrossSettings) -> None:
        if self.vision is not None:
            raise ValueError("one of vision and cross must be null")
        for name in ("dtype", "page_size"):
            own, other = getattr(cross.geometry, name), getattr(self.geometry, name)
            if own != other:
                raise ValueError(f"cross: {name} must be the {other} of geometry, got {own}")
        if set(cross.graphs) != set(self.decoders):
            raise ValueError("cross: graphs must name the KV dtypes of decoders")

    @property
    def frame_text(self) -> FrameText | None:
        """How a frame stands in the prompt; None when frames leave no token there."""
        entrance = self.vision or self.cross
        return None if entrance is None else entrance.frame_text

    def _check_files(self) -> None:
        if self.geometry.dtype not in self.decoders:
            raise ValueError(f"decoders: none for the KV dtype {self.geometry.dtype}")
        for dtype in self.decoders:
            if dtype not in get_args(KVDtype):
                raise ValueError(
                    f"decoders: {dtype!r} is not one of {', '.join(get_args(KVDtype))}"
                )
        vision = (VISION,) if self.vision is not None else ()
        cross = (ENCODER, *self.cross.graphs.values()) if self.cross is not None else ()
        for name in (*REQUIRED_FILES, *self.decoders.values(), *vision, *cross):
            if name not in self.files:
                raise ValueError(f"files: {name} is missing from the list")
        for name in self.files:
            if _PLAIN_NAME.fullmatch(name) is None or name == MANIFEST:
                raise ValueError(f"files: {name!r} is not a plain file name inside the bundle")

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Text of ``bundle.json`` -> manifest. Raises BundleError naming the key that is wrong."""
        try:
            value = parse_json(text, MANIFEST)
            if isinstance(value, dict):  # the version first: a newer format may have other keys
                _check_version(value.get("format_version"))
            return decode(cls, value, MANIFEST)
        except ValueError as error:
            raise BundleError(str(error)) from None

    def to_json(self) -> str:
        """The text of ``bundle.json``."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"


def _check_version(version: object) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        refuse(f"{MANIFEST}: format_version", "be a whole number from 1", version)
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{MANIFEST}: format version {shown(version)} is newer than the {FORMAT_VERSION} "
            "this edgekv reads; update edgekv"
        )
    if version < FORMAT_VERSION:
        raise ValueError(
            f"{MANIFEST}: format version {version} is older than the {FORMAT_VERSION} "
            "this edgekv reads; export the model again"
        )
