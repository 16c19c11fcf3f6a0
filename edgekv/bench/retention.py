"""``edgekv bench retention``: what each rule still knows about the beginning of a long stream.

A needle test on the demo model: an object that is seen in the first window of a drawn stream and
never again is asked about at the end, and so is one that never came. Each rule gets the same
streams and the same context of one window; ``window``, the baseline, cannot know.

- *needle*: right answers to both questions, half of which are "yes"; *found* and *false_alarms* are
  the yes-answers to each. *kept* is the share of streams with a frame that shows the needle in the
  context at the end: where it is above *found*, the model does not use what the rule kept.
- *now*: questions about the last two frames. A rule must not hurt the present.
- *context*: questions about the past, with the answers that follow from the kept frames alone:
  whether the model copes with frames that are no longer equally far apart.
- cost: what the rule adds to ``push`` (summary and choice), in percent of the whole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

import edgekv
from edgekv.bench.accuracy import Score
from edgekv.bench.report import BenchResult, machine
from edgekv.cache.retention import offered, retention_rule, retention_rules
from edgekv.cache.segments import FRAME_CODE
from edgekv.demo import MAX_FRAMES
from edgekv.demo.needles import NOW_KINDS, PAST_KINDS, NeedleStream, needle_streams

_BASELINE = "window"
_OPTIONS = edgekv.SamplingOptions(max_new_tokens=16)
_NUM_TIMED = 300


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
    """Every rule on ``num_streams`` streams of each length, which is given in windows."""
    figures: dict[str, float] = {}
    baseline: dict[str, str | float] = {}
    with edgekv.load(path, kv_budget="4MiB", num_threads=1) as model:
        for length in windows:
            tallies = _on_streams(model, num_streams, length, console)
            plain = tallies[_BASELINE].figures()
            for rule, tally in tallies.items():
                for key, value in tally.figures().items():
                    figures[f"{rule}_{length}w_{key}"] = value
                    if rule != _BASELINE:
                        baseline[f"{_BASELINE}.{rule}_{length}w_{key}"] = plain[key]
                figures[f"{rule}_{length}w_now_lost"] = plain["now"] - tally.figures()["now"]
        for rule in retention_rules():
            cost_ms, push_ms = _cost(model, rule)
            figures[f"{rule}_cost_ms"], figures[f"{rule}_push_ms"] = cost_ms, push_ms
            figures[f"{rule}_cost_percent"] = 100 * cost_ms / push_ms
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
    lines = ["| stream | rule | " + " | ".join(columns.values()) + " | cost of a frame |"]
    lines.append("|" + "---|" * (len(columns) + 3))
    for length in windows:
        for rule in retention_rules():
            cells = [f"{figures[f'{rule}_{length}w_{key}']:.0f}" for key in columns]
            cells.append(f"{figures[f'{rule}_cost_percent']:.2f} %")
            lines.append(f"| {length} windows | `{rule}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _bounds(figures: dict[str, float]) -> dict[str, tuple[str, float]]:
    """What must hold of ``figures``: the needle is found at one eighth of the stream (8 windows),
    the present is not hurt, and choosing costs next to nothing."""
    bounds: dict[str, tuple[str, float]] = {}
    for figure in figures:
        if figure in ("novelty_8w_found", "novelty_8w_needle"):
            bounds[figure] = (">=", 80.0)
        elif figure.endswith("_now_lost") and not figure.startswith(_BASELINE):
            bounds[figure] = ("<=", 2.0)
        elif figure.endswith("_cost_percent"):
            bounds[figure] = ("<=", 1.0)
    return bounds


def _on_streams(
    model: edgekv.Model, num_streams: int, length: int, console: Console
) -> dict[str, Tally]:
    tallies = {rule: Tally() for rule in retention_rules()}
    streams = needle_streams(num_streams, length * MAX_FRAMES)
    title = f"{length} windows"
    for stream in track(streams, title, total=num_streams, console=console, transient=True):
        for rule, tally in tallies.items():
            with model.session(retain=rule) as session:
                for k, pixels in enumerate(stream.clip.frames):
                    session.push(pixels, k / 2)
                _question(session, stream, tally)
    return tallies


def _question(session: edgekv.Session, stream: NeedleStream, tally: Tally) -> None:
    """All questions at the end of a stream."""
    frames = session.context_frames()
    tally.kept.append(bool(np.isin(stream.sightings, frames).any()))
    tally.num_old.append(int((frames < len(stream.clip) // 2).sum()))
    about_needle, about_stranger = stream.about_needle()
    for question, said_yes in ((about_needle, tally.found), (about_stranger, tally.false_alarms)):
        said_yes.append(session.ask(question.text, _OPTIONS).text.strip() == "yes")
    tally.now.ask(session, stream.about_now())
    tally.context.ask(session, stream.about_kept(frames))


def _cost(model: edgekv.Model, name: str) -> tuple[float, float]:
    """Milliseconds a frame, medians: what the rule does (its summary, and its share of the choice
    that comes once per batch), and the whole ``push``.

    The parts are timed by themselves: as a difference of two streams they would drown in noise.
    """
    rule, stream = retention_rule(name), next(needle_streams(1, 8 * MAX_FRAMES))
    push_s, choose_s, sum_up_s = [], [], [0.0]
    with model.session(retain=name) as session:
        sequence, runner = session._sequence, session._runner
        for k in range(_NUM_TIMED):
            began = time.perf_counter()
            session.push(stream.clip.frames[k % len(stream.clip)], k / 2)
            push_s.append(time.perf_counter() - began)
            if rule.needs_summaries:
                began = time.perf_counter()
                runner.sum_up(sequence, newest=1)
                sum_up_s.append(time.perf_counter() - began)
            table = offered(sequence, rule)
            if len(table) < MAX_FRAMES // 2:
                continue
            began = time.perf_counter()
            table = offered(sequence, rule)
            frames = table.take(table.kinds == FRAME_CODE)
            batch = max(len(frames) // 8, 1)
            rule.choose(frames, int(frames.num_pages[:batch].sum()))
            choose_s.append((time.perf_counter() - began) / batch)
    cost_s = np.median(choose_s) + (np.median(sum_up_s[1:]) if rule.needs_summaries else 0.0)
    return 1e3 * float(cost_s), 1e3 * float(np.median(push_s))
