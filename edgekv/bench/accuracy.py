"""``edgekv bench accuracy``: the demo model on held-out drawn video.

Three ways to be asked the same kinds of question, right meaning the exact answer:

- *clips*: windows of 1 to 24 frames, nothing evicted; what the model knows.
- *streams*: endless video under ``window`` retention, asked only after 20 times as many frames as
  any training sequence had, about the frames that are in the context then.
- *resent*, the baseline: at the same moments of the same streams, a fresh session is given the
  window's frames again. What streams lose against it is the price of never starting afresh.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

import edgekv
from edgekv.bench.report import BenchResult, machine
from edgekv.demo import KINDS, EvaluationStream, Question, evaluation_set
from edgekv.questions import Recalling

LONGEST_TRAINED = 56  # frames in the longest training sequence, see scripts/demo_training
_WARM_UP_FRAMES = 20 * LONGEST_TRAINED
_NUM_ASKED = 40  # moments of each stream at which every kind of question is asked
_FRAMES_BETWEEN = 13  # shares no factor with the eviction batch, so that every fill level is met
_OTHER_KINDS = ("direction", "caption")  # reported apart
_OPTIONS = edgekv.SamplingOptions(max_new_tokens=32)


@dataclass(slots=True)
class Score:
    """Right answers and questions asked, per kind."""

    num_right: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    num_asked: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def ask(
        self,
        session: edgekv.Session,
        questions: Iterable[Question],
        *,
        recall: Recalling = "off",
    ) -> None:
        """Ask and count."""
        for question in questions:
            answer = session.ask(question.text, _OPTIONS, recall=recall).text.strip()
            self.num_asked[question.kind] += 1
            self.num_right[question.kind] += answer == question.answer

    def percent(self, *kinds: str) -> float:
        """Right answers to questions of these kinds, in percent; NaN when none was asked."""
        asked = sum(self.num_asked[kind] for kind in kinds)
        return 100 * sum(self.num_right[kind] for kind in kinds) / asked if asked else float("nan")


def run(path: Path, *, num_clips: int, num_streams: int, console: Console) -> BenchResult:
    """Measure clips, streams and their baseline."""
    with edgekv.load(path, kv_budget="16MiB") as model:
        clips = _on_clips(model, num_clips, console)
        streams, resent = _on_streams(model, num_streams, console)
    most: list[str] = [kind for kind in KINDS if kind not in _OTHER_KINDS]
    figures: dict[str, float] = {}
    baseline: dict[str, str | float] = {}
    groups: dict[str, list[str]] = {"most_kinds": most}
    groups.update({kind: [kind] for kind in KINDS})
    for name, kinds in groups.items():
        figures[f"clips_{name}"] = clips.percent(*kinds)
        figures[f"streams_{name}"] = streams.percent(*kinds)
        baseline[f"resent.streams_{name}"] = resent.percent(*kinds)
    for name in ("most_kinds", "direction"):
        figures[f"{name}_lost_on_streams"] = figures[f"clips_{name}"] - figures[f"streams_{name}"]
    figures["num_clip_questions"] = sum(clips.num_asked.values())
    figures["num_stream_questions"] = sum(streams.num_asked.values())
    bounds = {
        "clips_most_kinds": (">=", 95.0),
        "clips_direction": (">=", 85.0),
        "most_kinds_lost_on_streams": ("<=", 2.0),
        "direction_lost_on_streams": ("<=", 2.0),
    }
    return BenchResult("accuracy", machine(), figures, baseline, bounds)


def _on_clips(model: edgekv.Model, num_clips: int, console: Console) -> Score:
    score = Score()
    samples = evaluation_set(num_clips)
    for sample in track(samples, "clips", total=num_clips, console=console, transient=True):
        with model.session() as session:
            _push(session, sample.frames)
            score.ask(session, sample.questions)
    return score


def _on_streams(model: edgekv.Model, num_streams: int, console: Console) -> tuple[Score, Score]:
    streams, resent = Score(), Score()
    num_frames = _WARM_UP_FRAMES + _NUM_ASKED * _FRAMES_BETWEEN
    for number in range(num_streams):
        stream = EvaluationStream(number)
        recent: list[NDArray[np.uint8]] = []
        with model.session() as session:
            steps = track(
                range(num_frames), f"stream {number + 1}", console=console, transient=True
            )
            for k in steps:
                recent = [*recent[-64:], stream.read()]
                session.push(recent[-1], k / 2)
                if k >= _WARM_UP_FRAMES and (k - _WARM_UP_FRAMES) % _FRAMES_BETWEEN == 0:
                    num_kept = session.stats().num_context_frames
                    questions = stream.questions(num_kept)
                    streams.ask(session, questions)
                    with model.session() as fresh:
                        _push(fresh, recent[-num_kept:])
                        resent.ask(fresh, questions)
    return streams, resent


def _push(session: edgekv.Session, frames: Iterable[NDArray[np.uint8]]) -> None:
    for k, pixels in enumerate(frames):
        session.push(pixels, k / 2)
