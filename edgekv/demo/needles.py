"""Long held-out streams with a needle: an object that is seen early and never again.

Owns: which streams have one, and what is asked when they have ended.
Guarantees: the needle is clearly visible in some of the first frames and in no later one, the
stranger in none at all, so "yes" and "no" come equally often; every call gives the same streams.
Does not know: how a stream is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgekv.demo.evaluation import HELD_OUT_SEEDS, MAX_FRAMES, ask_all
from edgekv.demo.questions import ABSENT, PRESENT, WORDINGS, Kind, Question, Window
from edgekv.demo.render import SHAPES
from edgekv.demo.scenes import Clip, Scene, identity_name

MIN_SIGHTINGS: Final = 4  # frames that show the needle clearly
NOW_KINDS: Final[tuple[Kind, ...]] = (
    "visible",
    "shape",
    "colour",
    "count",
    "list",
    "where",
    "direction",
)
PAST_KINDS: Final[tuple[Kind, ...]] = ("appeared", "seen", "first", "gone")

_CHUNK: Final = 2 * MAX_FRAMES


@dataclass(frozen=True)
class NeedleStream:
    """A stream as a camera would give it, with everything that is true in it."""

    seed: int
    clip: Clip
    needle: int  # identity seen in the first MAX_FRAMES frames only
    stranger: int  # identity never seen; shares colour or shape with the needle if one can

    @property
    def sightings(self) -> NDArray[np.intp]:
        """(k,) frames that show the needle clearly."""
        return np.flatnonzero(self.clip.visible[:, self.needle] >= PRESENT)

    def about_needle(self) -> tuple[Question, Question]:
        """Whether the needle was there: yes; whether the stranger was: no."""
        wording = WORDINGS["seen"][self.seed % len(WORDINGS["seen"])]
        last = len(self.clip) - 1
        return (
            Question("seen", wording.format(identity_name(self.needle)), "yes", 0, last),
            Question("seen", wording.format(identity_name(self.stranger)), "no", 0, last),
        )

    def about_now(self) -> list[Question]:
        """What can be told from the last two frames, at most one question of a kind."""
        last = len(self.clip) - 1
        return self._ask(Window(self.clip, last - 1, last), NOW_KINDS)

    def about_kept(self, frames: NDArray[np.int64]) -> list[Question]:
        """What can be told about the past from these ``frames`` (n,) alone, ascending."""
        kept = Clip(*(column[frames] for column in astuple(self.clip)))
        return self._ask(Window(kept, 0, len(kept) - 1), PAST_KINDS)

    def _ask(self, window: Window, kinds: tuple[Kind, ...]) -> list[Question]:
        rng = np.random.default_rng((self.seed, window.first, window.last))
        return [question for question in ask_all(rng, window) if question.kind in kinds]


def needle_streams(num_streams: int, num_frames: int) -> Iterator[NeedleStream]:
    """``num_streams`` streams of ``num_frames`` frames. Scenes without a needle are passed over, so
    these are quieter than most, the more so the longer they are."""
    seed = 3 * HELD_OUT_SEEDS + num_frames * 10**5
    while num_streams:
        if (stream := _needle_stream(seed, num_frames)) is not None:
            num_streams -= 1
            yield stream
        seed += 1


def _needle_stream(seed: int, num_frames: int) -> NeedleStream | None:
    """The stream with this seed, None if it has no needle or everything came."""
    scene = Scene(seed)
    parts = [scene.read(MAX_FRAMES)]
    needles = (parts[0].visible >= PRESENT).sum(0) >= MIN_SIGHTINGS  # (18,) bool
    strangers = (parts[0].inside <= ABSENT).all(0)  # (18,) bool
    while scene.position < num_frames and needles.any() and strangers.any():
        parts.append(scene.read(min(_CHUNK, num_frames - scene.position)))
        away = (parts[-1].inside <= ABSENT).all(0)
        needles &= away
        strangers &= away
    if not (needles.any() and strangers.any()):
        return None
    rng = np.random.default_rng(seed)
    needle = int(rng.choice(np.flatnonzero(needles)))
    others = np.flatnonzero(strangers)
    alike = (others // len(SHAPES) == needle // len(SHAPES)) | (
        others % len(SHAPES) == needle % len(SHAPES)
    )
    clip = Clip(*map(np.concatenate, zip(*map(astuple, parts), strict=True)))
    return NeedleStream(
        seed, clip, needle, int(rng.choice(others[alike] if alike.any() else others))
    )
