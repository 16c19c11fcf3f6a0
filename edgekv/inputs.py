"""Frames and text become embedding rows for the decoder.

Owns: the vision graph and the cache of its outputs, the tokenizer, and the fixed tokens a family
puts around a frame. Guarantees: a bad frame or text fails here, before the cache is touched.
Does not know sequences.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgekv.bundle import Bundle
from edgekv.cache import CrossInput
from edgekv.config import KVGeometry
from edgekv.encoder_cache import EncoderCache, EncoderCacheStats, picture_digest
from edgekv.errors import BundleError, ContextError, ExecutorError, ModelError
from edgekv.executors import VisionExecutor
from edgekv.media.preprocess import Preprocessor
from edgekv.names import OP_VERSION
from edgekv.sources import SourceEncoder
from edgekv.types import Frame, ModelIdentity, Sound


class Picture:
    """A frame as the vision graph takes it."""

    def __init__(self, pixel_values: NDArray[np.float32]) -> None:
        self.pixel_values = pixel_values  # (1, 3, height, width)

    @cached_property
    def digest(self) -> bytes:
        """What tells it from every other picture: see ``picture_digest``. Made when asked for."""
        return picture_digest(self.pixel_values)


class InputEncoder:
    """Turns what a user gives into (n, hidden) float32 rows."""

    def __init__(
        self,
        bundle: Bundle,
        vision: VisionExecutor | None,
        sources: SourceEncoder | None = None,
        *,
        encoder_cache_bytes: int = 0,
    ) -> None:
        self._bundle = bundle
        self._vision = vision
        self.sources = sources
        self._encoded = EncoderCache(encoder_cache_bytes)
        self._lock = threading.Lock()
        self._closed = False
        self.tokenizer = _load_tokenizer(bundle)
        self._prompts = bundle.prompts()
        self._preprocess = None if bundle.image is None else Preprocessor(bundle.image)
        self._before = self.embed(self._ids(self._prompts.frame_prefix))
        self._after = self.embed(self._ids(self._prompts.frame_suffix))
        self.tokens_per_frame = len(self._before) + bundle.tokens_per_image + len(self._after)
        self.end_ids = frozenset(bundle.manifest.prompt.eos_ids)
        # Every token depends on the input, so none can be computed before the input is there.
        self.asks_whole = sources is not None and not self.tokens_per_frame

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def start_ids(self, instructions: str | None) -> list[int]:
        """Tokens of the pinned start; none for a model that asks everything with the question."""
        return [] if self.asks_whole else self._ids(self._prompts.start(instructions))

    def question_ids(
        self, prompt: str, *, frames: bool, instructions: str | None = None
    ) -> list[int]:
        """Tokens of a question up to where the answer begins. ``frames``: some stand before it.

        ``instructions`` are those of the start, for a model that has no pinned start.
        """
        if self.asks_whole:
            cross = self._bundle.manifest.cross
            prompt = prompt or ("" if cross is None else cross.default_question)
            start = self._ids(self._prompts.start(instructions))
            return start + self._ids(self._prompts.question(prompt))
        return self._ids(self._prompts.question(prompt, frames=frames))

    def text_ids(self, text: str) -> list[int]:
        """Tokens of plain text inside the user's turn. Raises ValueError as ``question_ids``."""
        self._prompts.check_text(text, "text to say")
        return self._ids(text)

    def embed(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Token ids (n,) -> rows (n, hidden)."""
        return self._bundle.embed(np.asarray(token_ids, np.int64))

    @property
    def default_retain(self) -> str:
        """The retention rule of a session that names none."""
        return "keep" if self.asks_whole else "window"

    def wrap(self, content: NDArray[Any], time_s: float, index: int) -> Frame | Sound:
        """An array as what this model takes."""
        kind = Sound if self.sources is not None and self.sources.hears else Frame
        return kind(content, time_s, index)

    @contextmanager
    def source(self, frame: Frame | Sound) -> Generator[CrossInput | None, None, None]:
        """What cross-attention sees of a frame, held as long as the block runs; None for a model
        without. Raises as ``SourceEncoder.hold``."""
        if self.sources is None:
            yield None
            return
        with self.sources.hold(frame) as source:
            yield source

    @property
    def marks(self) -> NDArray[np.float32]:
        """(n, hidden) what stands in the context for a frame that cross-attention sees."""
        return np.concatenate([self._before, self._after])

    def picture(self, frame: Frame | Sound) -> Picture:
        """What the model sees of a frame. Raises ValueError for a frame of wrong kind, shape or
        dtype, ContextError for a text-only model."""
        if isinstance(frame, Sound):
            raise ValueError("this model takes pictures, got sound")
        if self._preprocess is None:
            raise self._takes_no_frames()
        with self._lock:  # the preprocessor has one output buffer
            return Picture(self._preprocess(frame.pixels).copy())

    def frame(self, picture: Picture) -> NDArray[np.float32]:
        """A picture -> rows (tokens_per_frame, hidden), encoded unless it was lately."""
        if self._vision is None:
            raise self._takes_no_frames()
        with self._lock:
            if self._closed:
                raise ModelError("this model is closed")
            known = self._encoded.get(picture.digest) if self._encoded.enabled else None
            image = self._encode(self._vision, picture) if known is None else known
        return np.concatenate([self._before, image, self._after])

    @property
    def encoder_cache(self) -> EncoderCacheStats:
        """What came of looking for pictures that were encoded before. Does not wait for a picture
        that is being encoded."""
        return self._encoded.stats

    def _encode(self, vision: VisionExecutor, picture: Picture) -> NDArray[np.float32]:
        image: NDArray[np.float32] = vision.encode(picture.pixel_values)[0]
        if image.shape != (self._bundle.tokens_per_image, self._before.shape[1]):
            raise ExecutorError(
                f"vision graph gave {image.shape} embeddings, the bundle says "
                f"{(self._bundle.tokens_per_image, self._before.shape[1])}"
            )
        if self._encoded.enabled:
            self._encoded.put(picture.digest, image)
        return image

    def _takes_no_frames(self) -> ContextError:
        name = self._bundle.manifest.name
        return ContextError(f"{name} is a text-only model, it takes no frames")

    def model_identity(self, geometry: KVGeometry) -> ModelIdentity:
        """Which model's pages, of this geometry, mean the same."""
        return model_identity(self._bundle, geometry)

    def close(self) -> None:
        """Give the vision graph back, once no frame is being encoded."""
        with self._lock:
            self._closed = True
            if self._vision is not None:
                self._vision.close()
        if self.sources is not None:
            self.sources.close()


def model_identity(bundle: Bundle, geometry: KVGeometry) -> ModelIdentity:
    """Which model's pages, of this geometry, mean the same."""
    return ModelIdentity(bundle.manifest.name, bundle.weights_sha256, OP_VERSION, geometry)


def content_of(token_ids: Sequence[int]) -> bytes:
    """What a segment of these tokens holds, in full."""
    return np.asarray(token_ids, np.int32).tobytes()


def _load_tokenizer(bundle: Bundle) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(bundle.tokenizer_path))
    except Exception as error:  # the library raises nothing narrower
        name = bundle.tokenizer_path.name
        raise BundleError(f"{bundle.path}: {name}: not a tokenizer ({error})") from None
