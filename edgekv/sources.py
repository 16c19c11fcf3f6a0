"""What a model with cross-attention looks at: pictures and sounds become pages, once each.

Owns: the encoder graph and the preparation of its input; how large the cross pools are.
Guarantees: the encoder runs once for each content, whoever asks and however many ask at once; an
input that is bad, or for which there is no room, fails before anything is taken.
Does not know: sequences, prompts.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.bundle import Bundle, CrossSettings
from edgekv.cache import CrossInput, content_key
from edgekv.config import KVDtype, format_bytes, parse_bytes
from edgekv.errors import BudgetError, ModelError
from edgekv.executors import (
    CrossExecutor,
    Device,
    EncoderExecutor,
    EngineSource,
    create_cross,
    create_encoder,
    cross_signature,
    encoder_signature,
)
from edgekv.generate import Runner
from edgekv.media.mel import MelFeatures, check_samples
from edgekv.media.preprocess import check_pixels
from edgekv.media.tiles import Tiler, choose_arrangement
from edgekv.types import Frame, Sound

# Largest inputs that the cross pools hold: the one a session looks at has to stay while the next is
# written.
_MIN_INPUTS, _DEFAULT_INPUTS = 2, 4


class SourceEncoder:
    """Turns pictures, or sounds, into inputs that sequences can look at."""

    def __init__(
        self, settings: CrossSettings, encoder: EncoderExecutor, runner: Runner, model_sha256: str
    ) -> None:
        self._settings = settings
        self._encoder = encoder
        self._runner = runner
        self._model_sha256 = model_sha256
        self._tiler = None if settings.tiles is None else Tiler(settings.tiles)
        self._mel = None if settings.audio is None else MelFeatures(settings.audio)
        self._lock = threading.Lock()  # the tiler has one output buffer
        self._closed = False

    @property
    def hears(self) -> bool:
        """Whether it takes sound, not pictures."""
        return self._mel is not None

    @contextmanager
    def hold(self, frame: Frame | Sound) -> Generator[CrossInput, None, None]:
        """The pages of a picture or sound, held as long as the block runs.

        Raises ValueError for an input of the wrong kind, shape or dtype, OutOfPagesError when those
        that are in use leave no room for it.
        """
        source = self._find_or_encode(frame)
        try:
            yield source
        finally:
            with self._runner.lock:
                source.release()

    def _find_or_encode(self, frame: Frame | Sound) -> CrossInput:
        content = self._content(frame)
        cache = self._runner.cache.cross
        assert cache is not None
        key = content_key(self._model_sha256, content)
        with self._lock:
            with self._runner.lock:
                if (found := cache.find(key)) is not None:
                    return found
                cache.check_room(num_states := self._num_states(content))
            if self._closed:
                raise ModelError("this model is closed")
            states = self._encoder.encode(self._prepare(content))
            with self._runner.lock:
                source = cache.reserve(key, num_states)
                try:
                    self._runner.write_source(states, source)
                    cache.publish(source)
                except BaseException:
                    source.release()
                    raise
                return source

    def close(self) -> None:
        """Give the encoder graph back, once no input is being encoded."""
        with self._lock:
            self._closed = True
            self._encoder.close()

    def _content(self, frame: Frame | Sound) -> NDArray[np.generic]:
        if isinstance(frame, Sound) != self.hears:
            wanted, got = ("sound", "a picture") if self.hears else ("pictures", "sound")
            raise ValueError(f"this model takes {wanted}, got {got}")
        if isinstance(frame, Sound):
            check_samples(frame.samples)
            return frame.samples
        check_pixels(frame.pixels)
        return frame.pixels

    def _num_states(self, content: NDArray[np.generic]) -> int:
        tiles = self._settings.tiles
        if tiles is None:
            return self._settings.states_per_part
        height, width = content.shape[:2]
        rows, columns = tiles.arrangements[choose_arrangement(height, width, tiles)]
        return rows * columns * self._settings.states_per_part

    def _prepare(self, content: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
        """What the encoder takes, by name."""
        if self._mel is not None:
            return {names.INPUT_FEATURES: self._mel(content.astype(np.float32, copy=False))}
        assert self._tiler is not None
        tiles, number = self._tiler(content.astype(np.uint8, copy=False))
        return {names.PIXEL_VALUES: tiles, names.ASPECT_RATIO_IDS: np.array([number + 1])}


def cross_pages(
    bundle: Bundle, budget: str | int | None, kv_dtype: KVDtype | None
) -> tuple[int, int]:
    """Pages of the cross pools, and their bytes. Raises BudgetError, ValueError."""
    geometry = bundle.cross_geometry_for(kv_dtype)
    if bundle.cross is None or geometry is None:
        if budget is not None:
            raise ValueError(f"{bundle.manifest.name} has no cross-attention, so no cross_budget")
        return 0, 0
    most = geometry.pages_for(bundle.cross.max_states)
    num_pages = _DEFAULT_INPUTS * most
    if budget is not None:
        num_pages = parse_bytes(budget, "cross_budget") // geometry.page_bytes
    if num_pages < _MIN_INPUTS * most:
        would_do = format_bytes(_MIN_INPUTS * most * geometry.page_bytes, rounded="up")
        raise BudgetError(
            f"a cross budget of {budget} holds fewer than {_MIN_INPUTS} inputs of "
            f"{bundle.manifest.name}: {would_do} would do"
        )
    return num_pages, num_pages * geometry.page_bytes


def create_cross_executor(
    bundle: Bundle,
    device: Device,
    kv_dtype: KVDtype | None,
    *,
    num_pages: int,
    num_threads: int,
    engines: EngineSource | None = None,
) -> CrossExecutor | None:
    """What owns and writes the cross pools; None for a model without."""
    geometry = bundle.cross_geometry_for(kv_dtype)
    if bundle.cross is None or geometry is None:
        return None
    return create_cross(
        device,
        bundle.path / bundle.cross.graphs[geometry.dtype],
        geometry,
        num_pages=num_pages,
        num_threads=num_threads,
        signature=cross_signature(
            geometry, num_states=bundle.cross.max_states, hidden_size=bundle.cross.hidden_size
        ),
        engines=engines,
    )


def load_sources(
    bundle: Bundle,
    device: Device,
    runner: Runner,
    num_threads: int,
    engines: EngineSource | None = None,
) -> SourceEncoder | None:
    """The encoder of what cross-attention sees; None for a model without."""
    if bundle.cross is None:
        return None
    encoder = create_encoder(
        device,
        bundle.encoder_path,
        num_threads=num_threads,
        signature=encoder_signature(
            num_states=bundle.cross.max_states,
            hidden_size=bundle.cross.hidden_size,
            tiles=bundle.cross.tiles,
            audio=bundle.cross.audio,
        ),
        engines=engines,
    )
    return SourceEncoder(bundle.cross, encoder, runner, bundle.weights_sha256)
