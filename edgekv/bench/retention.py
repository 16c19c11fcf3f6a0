"""``edgekv bench retention``: what each rule still knows about the beginning of a long stream.

A needle test on the demo model: an object that is seen early in a drawn stream and never again is
asked about at the end, and so is one that never came. A window is 8 frames here, and a context may
hold one eighth of the stream: 20 frames of a stream of 20 windows. The model was trained on up to
24 frames, so an eighth of 20 of *its* windows, 60 frames, would ask it for what it never learnt.
Each rule gets the same streams and the same room; ``window``, the baseline, cannot know.

- *needle*: right answers to both questions, half of which are "yes"; *found* and *false_alarms* are
  the yes-answers to each. *kept* is the share of streams with a frame that shows the needle in the
  context at the end: where it is above *found*, the model does not use what the rule kept.
- *now*: questions about the last two frames. A rule must not hurt the present.
- *context*: questions about the past, with the answers that follow from the kept frames alone:
  whether the model copes with frames that are no longer equally far apart.
- cost: what the rule adds to ``push``, in percent of it (``rule_cost``).

``least-attended`` keeps what is asked about: its streams are asked the same two questions once a
window. Where nobody asks it is ``window``. ``recall`` is ``window`` with a context of one window, a
tier for what leaves, and questions that look there; what storing costs is ``bench tiers``'s.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

import edgekv
from edgekv.bench.accuracy import Score
from edgekv.bench.mass import mass_cost
from edgekv.bench.report import BenchResult, machine
from edgekv.bench.rule_cost import rule_costs
from edgekv.cache.retention import retention_rule, retention_rules
from edgekv.demo import MAX_FRAMES
from edgekv.demo.needles import NOW_KINDS, PAST_KINDS, NeedleStream, needle_streams
from edgekv.questions import Recalling

WINDOW = 8  # frames
_BUDGET_SHARE = 8  # a context holds one eighth of the stream
_BASELINE = "window"
_OPTIONS = edgekv.SamplingOptions(max_new_tokens=16)


@dataclass(frozen=True)
class Contender:
    """One way of remembering a stream of ``length`` windows."""

    name: str
    retain: str
    asked_on_the_way: bool = False  # once a window, what will be asked at the end
    recall: Recalling = "off"

    def num_frames(self, length: int) -> int:
        """Frames that its context may hold."""
        return WINDOW if self.recall == "auto" else length * WINDOW // _BUDGET_SHARE

    def open(self, model: edgekv.Model, length: int, folder: Path) -> edgekv.Session:
        """A session with room for so many frames, and the rest of the context for questions."""
        with model.session() as probe:
            num_start = probe.stats().num_tokens
        bundle = model.bundle
        room = self.num_frames(length) * bundle.tokens_per_image
        reserve = bundle.manifest.max_context_tokens - num_start - room
        tier = folder / "frames.tier" if self.recall == "auto" else None
        return model.session(retain=self.retain, reserve_tokens=reserve, tier=tier)


CONTENDERS = (
    *(
        Contender(name, name, asked_on_the_way=retention_rule(name).needs_heat)
        for name in retention_rules()
    ),
    Contender("recall", "window", recall="auto"),
)


@dataclass(slots=True)
class Tally:
    """What one rule did on streams of one length."""

    found: list[bool] = field(default_factory=list)
    false_alarms: list[bool] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    num_old: list[int] = field(default_factory=list)  # context frames of the stream's first half
    now: Score = field(default_factory=Score)
    context: Score = field(default_factory=Score)

    def figures(self) -> dict[str, float]:
        """Percentages, and frames of the first half."""
        right = np.concatenate([self.found, np.logical_not(self.false_alarms)])
        return {
            "needle": 100 * float(np.mean(right)),
            "found": 100 * float(np.mean(self.found)),
            "false_alarms": 100 * float(np.mean(self.false_alarms)),
            "needle_kept": 100 * float(np.mean(self.kept)),
            "old_frames": float(np.mean(self.num_old)),
            "now": self.now.percent(*NOW_KINDS),
            "context": self.context.percent(*PAST_KINDS),
        }


def run(path: Path, *, num_streams: int, windows: tuple[int, ...], console: Console) -> BenchResult:
    """Every contender on ``num_streams`` streams of each length, which is given in windows.

    Raises ValueError for a length whose eighth is no whole number of frames the model knows.
    """
    for length in windows:
        if not 1 <= length * WINDOW // _BUDGET_SHARE <= MAX_FRAMES:
            most = MAX_FRAMES * _BUDGET_SHARE // WINDOW
            raise ValueError(f"a stream may have up to {most} windows of {WINDOW} frames")
    figures: dict[str, float] = {}
    baseline: dict[str, str | float] = {}
    with edgekv.load(path, kv_budget="4MiB", num_threads=1) as model:
        for length in windows:
            tallies = _on_streams(model, num_streams, length, console)
            plain = tallies[_BASELINE].figures()
            for name, tally in tallies.items():
                for key, value in tally.figures().items():
                    figures[f"{name}_{length}w_{key}"] = value
                    if name != _BASELINE:
                        baseline[f"{_BASELINE}.{name}_{length}w_{key}"] = plain[key]
                figures[f"{name}_{length}w_now_lost"] = plain["now"] - tally.figures()["now"]
        figures |= rule_costs(model)
        figures |= mass_cost(model.bundle)
    console.print(markdown(figures, windows), markup=False, soft_wrap=True)
    return BenchResult("retention", machine(), figures, baseline, _bounds(figures))


def markdown(figures: Mapping[str, float], windows: tuple[int, ...]) -> str:
    """The table of ``docs/retention.md``."""
    columns = {
        "needle_kept": "needle kept",
        "found": "found",
        "false_alarms": "false alarms",
        "now": "now",
        "context": "kept past",
        "old_frames": "frames of the first half",
    }
    lines = ["| stream | rule | frames | " + " | ".join(columns.values()) + " | cost of a frame |"]
    lines.append("|" + "---|" * (len(columns) + 4))
    for length in windows:
        for contender in CONTENDERS:
            name = contender.name
            cells = [f"{figures[f'{name}_{length}w_{key}']:.0f}" for key in columns]
            cost = figures.get(f"{name}_cost_percent")
            cells.append("" if cost is None else f"{cost:.2f} %")
            start = f"| {length} windows | `{name}` | {contender.num_frames(length)} | "
            lines.append(start + " | ".join(cells) + " |")
    return "\n".join(lines)


def _bounds(figures: dict[str, float]) -> dict[str, tuple[str, float]]:
    """What must hold of ``figures``: ``window`` cannot find the needle, ``novelty`` does, the
    present is not hurt, and choosing costs next to nothing."""
    bounds: dict[str, tuple[str, float]] = {}
    for figure in figures:
        if figure.startswith("novelty_") and figure.endswith(("w_found", "w_needle")):
            bounds[figure] = (">=", 80.0)
        elif figure.startswith("recall_") and figure.endswith("w_found"):
            bounds[figure] = (">=", 95.0)
        elif figure.startswith(f"{_BASELINE}_") and figure.endswith("w_found"):
            bounds[figure] = ("<=", 20.0)
        elif figure.endswith("_now_lost") and not figure.startswith(_BASELINE):
            bounds[figure] = ("<=", 2.0)
        elif figure.endswith("_cost_percent"):
            bounds[figure] = ("<=", 1.0)
    return bounds


def _on_streams(
    model: edgekv.Model, num_streams: int, length: int, console: Console
) -> dict[str, Tally]:
    tallies = {contender.name: Tally() for contender in CONTENDERS}
    streams = needle_streams(num_streams, length * WINDOW)
    title = f"{length} windows"
    for stream in track(streams, title, total=num_streams, console=console, transient=True):
        for contender in CONTENDERS:
            with (
                tempfile.TemporaryDirectory() as folder,
                contender.open(model, length, Path(folder)) as session,
            ):
                for k, pixels in enumerate(stream.clip.frames):
                    session.push(pixels, k / 2)
                    if contender.asked_on_the_way and k % WINDOW == WINDOW - 1:
                        for question in stream.about_needle():
                            session.ask(question.text, _OPTIONS)
                _question(session, stream, tallies[contender.name], contender.recall)
    return tallies


def _question(
    session: edgekv.Session, stream: NeedleStream, tally: Tally, recall: Recalling
) -> None:
    """All questions at the end of a stream."""
    frames = session.context_frames()
    tally.kept.append(bool(np.isin(stream.sightings, frames).any()))
    tally.num_old.append(int((frames < len(stream.clip) // 2).sum()))
    about_needle, about_stranger = stream.about_needle()
    for question, said_yes in ((about_needle, tally.found), (about_stranger, tally.false_alarms)):
        said_yes.append(session.ask(question.text, _OPTIONS, recall=recall).text.strip() == "yes")
    tally.now.ask(session, stream.about_now(), recall=recall)
    tally.context.ask(session, stream.about_kept(frames))
