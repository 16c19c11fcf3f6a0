"""Frames and text become embedding rows for the decoder.

Owns: the vision graph, the tokenizer, and the fixed tokens a family puts around a frame.
Guarantees: a bad frame or text fails here, before the cache is touched. Does not know sequences.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgekv.bundle import Bundle
from edgekv.config import KVGeometry
from edgekv.errors import ContextError, ExecutorError
from edgekv.executors import VisionExecutor
from edgekv.media.preprocess import Preprocessor
from edgekv.names import OP_VERSION
from edgekv.types import Frame, ModelIdentity


class InputEncoder:
    """Turns what a user gives into (n, hidden) float32 rows."""

    def __init__(self, bundle: Bundle, vision: VisionExecutor | None) -> None:
        self._bundle = bundle
        self._vision = vision
        self._lock = threading.Lock()
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
        self._prompts = bundle.prompts()
        self._preprocess = None if bundle.image is None else Preprocessor(bundle.image)
        self._before = self.embed(self._ids(self._prompts.frame_prefix))
        self._after = self.embed(self._ids(self._prompts.frame_suffix))
        self.tokens_per_frame = len(self._before) + bundle.tokens_per_image + len(self._after)
        self.end_ids = frozenset(bundle.manifest.prompt.eos_ids)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def start_ids(self, instructions: str | None) -> list[int]:
        """Tokens of the pinned start."""
        return self._ids(self._prompts.start(instructions))

    def question_ids(self, prompt: str, *, frames: bool) -> list[int]:
        """Tokens of a question up to where the answer begins. ``frames``: some stand before it."""
        return self._ids(self._prompts.question(prompt, frames=frames))

    def text_ids(self, text: str) -> list[int]:
        """Tokens of plain text inside the user's turn."""
        return self._ids(text)

    def embed(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Token ids (n,) -> rows (n, hidden)."""
        return self._bundle.embed(np.asarray(token_ids, np.int64))

    def frame(self, frame: Frame) -> NDArray[np.float32]:
        """A frame -> rows (tokens_per_frame, hidden). Raises ValueError for a frame of wrong shape
        or dtype, ContextError for a text-only model."""
        if self._vision is None or self._preprocess is None:
            raise ContextError(
                f"{self._bundle.manifest.name} is a text-only model, it takes no frames"
            )
        with self._lock:  # the preprocessor has one output buffer
            image = self._vision.encode(self._preprocess(frame.pixels))[0]
        if image.shape != (self._bundle.tokens_per_image, self._before.shape[1]):
            raise ExecutorError(
                f"vision graph gave {image.shape} embeddings, the bundle says "
                f"{(self._bundle.tokens_per_image, self._before.shape[1])}"
            )
        return np.concatenate([self._before, image, self._after])

    def model_identity(self, geometry: KVGeometry) -> ModelIdentity:
        """Which model's pages, of this geometry, mean the same."""
        name, sha256 = self._bundle.manifest.name, self._bundle.weights_sha256
        return ModelIdentity(name, sha256, OP_VERSION, geometry)

    def close(self) -> None:
        """Give the vision graph back."""
        if self._vision is not None:
            self._vision.close()
