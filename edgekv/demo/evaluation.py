"""Held-out questions: the same short clips and endless streams for whoever measures a model.

Owns the split: scenes from HELD_OUT_SEEDS on are never trained on. Guarantees that every call gives
the same frames and questions. Does not know how a model is asked nor how an answer is scored,
except that right means the exact text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgekv.demo.questions import KINDS, Question, Window, ask_window
from edgekv.demo.scenes import Clip, Scene

HELD_OUT_SEEDS: Final = 10**9  # the first held-out seed; training uses smaller ones only
MAX_FRAMES: Final = 24  # the longest window the demo model is trained on

_ATTEMPTS: Final = 4  # per kind and window; some questions depend on which object is picked


@dataclass(frozen=True)
class Sample:
    """A short held-out clip, and questions on all of its frames."""

    seed: int
    frames: NDArray[np.uint8]  # (n, 64, 64, 3), RGB
    questions: tuple[Question, ...]


def evaluation_set(num_clips: int = 200, *, max_frames: int = MAX_FRAMES) -> Iterator[Sample]:
    """Clips of 1 to ``max_frames`` frames, each with at most one question of every kind.

    Lengths go round evenly, so any number of clips has short and long ones.
    """
    for number in range(num_clips):
        seed = HELD_OUT_SEEDS + number
        clip = Scene(seed).read(1 + (number * 7) % max_frames)
        rng = np.random.default_rng((seed, len(clip)))
        questions = ask_all(rng, Window(clip, 0, len(clip) - 1))
        yield Sample(seed, clip.frames, tuple(questions))


class EvaluationStream:
    """An endless held-out video that remembers what was true in its newest frames.

    ``number`` chooses the stream; those of ``evaluation_set`` are other scenes.
    """

    def __init__(self, number: int = 0, *, keep: int = 4 * MAX_FRAMES) -> None:
        if keep < 1:
            raise ValueError(f"need to keep at least 1 frame, asked for {keep}")
        self._seed = 2 * HELD_OUT_SEEDS + number
        self._scene = Scene(self._seed)
        self._keep = keep
        self._recent: Clip | None = None

    @property
    def num_frames(self) -> int:
        """Frames read so far."""
        return self._scene.position

    def read(self) -> NDArray[np.uint8]:
        """The next frame, (64, 64, 3), RGB."""
        new = self._scene.read(1)
        self._recent = new if self._recent is None else _join(self._recent, new, self._keep)
        frame: NDArray[np.uint8] = new.frames[0]
        return frame

    def questions(self, num_frames: int) -> list[Question]:
        """Questions on the newest ``num_frames`` frames, at most one of every kind.

        Their ``first`` and ``last`` count from the start of the stream.
        """
        known = 0 if self._recent is None else len(self._recent)
        if not 1 <= num_frames <= known or self._recent is None:
            raise ValueError(f"can ask about 1 to {known} frames, asked for {num_frames}")
        rng = np.random.default_rng((self._seed, self.num_frames, num_frames))
        window = Window(self._recent, known - num_frames, known - 1)
        moved = self.num_frames - known
        return [
            replace(q, first=q.first + moved, last=q.last + moved) for q in ask_all(rng, window)
        ]


def ask_all(rng: np.random.Generator, window: Window) -> list[Question]:
    """At most one question of every kind on one window."""
    questions = []
    for kind in KINDS:
        for _ in range(_ATTEMPTS):
            question = ask_window(rng, window, kind)
            if question is not None:
                questions.append(question)
                break
    return questions


def _join(old: Clip, new: Clip, keep: int) -> Clip:
    cut = slice(-keep, None)
    return Clip(
        np.concatenate([old.frames, new.frames])[cut],
        np.concatenate([old.visible, new.visible])[cut],
        np.concatenate([old.inside, new.inside])[cut],
        np.concatenate([old.centres, new.centres])[cut],
        np.concatenate([old.owners, new.owners])[cut],
    )
