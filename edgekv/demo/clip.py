"""The built-in demo clip: an ordinary video file, and questions with their true answers.

Owns where the two files lie and what they say. Guarantees that each answer is the same whether a
session still holds MIN_FRAMES or MAX_FRAMES frames when the question is asked. Does not decode the
video.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from edgekv.demo.questions import KINDS, Kind

MIN_FRAMES: Final = 12  # a `window` of 24 frames that is cut in batches holds 12 to 24


@dataclass(frozen=True)
class ClipQuestion:
    """A question to ask once the frame shown at ``time_s`` has been seen."""

    time_s: float
    kind: Kind
    text: str
    answer: str


@dataclass(frozen=True)
class DemoClip:
    """The clip's file and facts."""

    path: Path
    fps: float
    num_frames: int
    seed: int  # of the scene
    first_frame: int  # of the scene that the clip begins with
    questions: tuple[ClipQuestion, ...]  # in the order of time

    @property
    def duration_s(self) -> float:
        return self.num_frames / self.fps


@cache
def demo_clip() -> DemoClip:
    """The clip that plays when no source is given."""
    folder = resources.files("edgekv.demo")
    facts = json.loads((folder / "clip.json").read_text(encoding="utf-8"))
    return DemoClip(
        path=Path(str(folder / facts["file"])),
        fps=float(facts["fps"]),
        num_frames=int(facts["num_frames"]),
        seed=int(facts["seed"]),
        first_frame=int(facts["first_frame"]),
        questions=tuple(
            ClipQuestion(float(q["time_s"]), _kind(q["kind"]), str(q["text"]), str(q["answer"]))
            for q in facts["questions"]
        ),
    )


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise ValueError(f"clip.json has a question of kind {name!r}, known are {', '.join(KINDS)}")
    return name
