"""What happened, in words: the sentences and figures above the picture.

Guarantees: every number comes from the log. Does not know: how it is shown.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from edgekv.config import format_bytes
from edgekv.trace.events import FRAME
from edgekv.trace.reader import TraceLog
from edgekv.trace.timeline import ABORTED
from edgekv.trace.view import View


@dataclass(frozen=True, slots=True)
class Words:
    """The text around a picture."""

    title: str
    story: str  # what happened, in a few sentences
    notes: tuple[str, ...]  # how to read it, what was left out
    figures: tuple[tuple[str, str], ...]  # (name, value)
    axis: str


def describe(log: TraceLog, view: View) -> Words:
    """Put a log into words."""
    timeline = view.timeline
    lives = timeline.lives
    done = np.asarray(lives.end, np.int8) != ABORTED
    num_frames = int(np.count_nonzero((np.asarray(lives.kind, np.int8) == FRAME) & done))
    questions = [life for life in timeline.sequences.values() if life.is_question]
    contexts = [
        life
        for life in timeline.sequences.values()
        if not life.is_question and not life.is_safeguard
    ]
    own = [d for d in timeline.drops if not timeline.sequences[d.sequence].is_question]
    evicted = sum(drop.num_frames for drop in own)
    rules = Counter(drop.rule or "the caller" for drop in own)
    took = np.asarray(timeline.allocation_us, np.float64)
    p50, p99 = np.percentile(took, (50, 99)) if took.size else (0.0, 0.0)
    wall_s = (timeline.end_us - timeline.begin_us) / 1e6
    stream_s = view.clock.end_s - view.clock.begin_s
    length = (
        f"over {clock_text(stream_s)} of stream, in {clock_text(wall_s)} of computing"
        if view.clock.is_stream
        else f"within {clock_text(wall_s)}"
    )
    story = [f"{_many(num_frames, 'frame')} came in {length}."]
    if evicted:
        named = ", ".join(f"“{rule}”" for rule in rules)
        story.append(
            f"No context held more than {_many(timeline.most_frames, 'frame')}; {evicted:,} left "
            f"again in {_many(len(own), 'batch', 'batches')}, chosen by {named}."
        )
    elif num_frames:
        story.append(
            f"All {_many(timeline.most_frames, 'frame')} that one context held at most stayed to "
            "the end: nothing was evicted."
        )
    if questions:
        tokens = sum(life.num_answer_tokens for life in questions)
        was = "was" if len(questions) == 1 else "were"
        story.append(
            f"{_many(len(questions), 'question')} {was} asked, "
            "each on a fork that shared the context’s pages; "
            f"all answers together have {_many(tokens, 'token')}."
        )
    if timeline.num_recalled:
        story.append(
            f"{_many(timeline.num_recalled, 'frame')} that had left came back for questions."
        )
    if timeline.num_taken:
        was = "was" if timeline.num_taken == 1 else "were"
        found = _many(timeline.num_taken, "segment")
        story.append(f"{found} {was} found in the pool, and not computed again.")
    share = timeline.peak / timeline.num_pages
    story.append(
        f"At most {timeline.peak:,} of {timeline.num_pages:,} pages ({share:.0%}) were in use, "
        "cached ones not counted."
    )
    pool = format_bytes(timeline.num_pages * log.header.geometry.page_bytes)
    figures = [
        ("frames", f"{num_frames:,}"),
        ("evicted frames", f"{evicted:,}"),
        ("questions", f"{len(questions):,}"),
        ("window, frames", f"{timeline.most_frames:,}"),
        ("peak pages", f"{timeline.peak:,} of {timeline.num_pages:,}"),
        ("pool", pool),
        ("contexts and forks", f"{len(contexts):,}"),
        ("allocation p50 / p99", f"{p50:.1f} / {p99:.1f} µs"),
    ]
    return Words(
        title=log.path.name,
        story=" ".join(story),
        notes=tuple(_notes(log, view, num_frames)),
        figures=tuple(figures),
        axis="stream time" if view.clock.is_stream else "time since the log began",
    )


def _notes(log: TraceLog, view: View, num_frames: int) -> list[str]:
    geometry = log.header.geometry
    per_frame = f", {log.num_bytes / num_frames:.0f} bytes a frame" if num_frames else ""
    notes = [
        f"Each row is a page of {geometry.page_size} tokens "
        f"({format_bytes(geometry.page_bytes)}), each column {column_text(view.column_s)} of "
        f"{'stream' if view.clock.is_stream else 'time'}. A question is drawn at least one column "
        "wide, and over what the page held otherwise."
    ]
    if view.pages_per_row > 1:
        notes.append(f"One row stands for {view.pages_per_row:.3g} pages; the newest is shown.")
    num_events = len(view.timeline.at_us)
    if num_events > view.num_columns:
        notes.append(
            f"Downsampled by time, {num_events:,} events into {view.num_columns:,} columns: what "
            "came and went within one column may be covered by what came after it; curves show "
            "each column’s extreme."
        )
    if not log.from_start:
        notes.append("The log begins in the middle of the run; older parts were rotated away.")
    if log.cut_short:
        notes.append(f"The log ends early: {log.cut_short}.")
    notes.append(f"Log: {format_bytes(log.num_bytes)}{per_frame}, all events included.")
    return notes


def clock_text(seconds: float) -> str:
    """``0.8 s``, ``12.5 s``, ``3:07 min``, ``2:03:07 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h" if hours else f"{minutes}:{rest:02d} min"


def column_text(seconds: float) -> str:
    """A column's length with three digits."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else clock_text(seconds)


def axis_ticks(begin: float, end: float, most: int) -> list[tuple[float, str]]:
    """Round times inside an axis with their labels: at most ``most``."""
    steps = [base * 10.0**power for power in (-3, -2, -1, 0) for base in (1, 2, 5)] + [
        10.0,
        15,
        30,
        60,
        120,
        300,
        600,
        900,
        1800,
        3600,
        7200,
        14400,
        21600,
        43200,
        86400,
    ]
    step = next((s for s in steps if (end - begin) / s <= most), 86400.0)
    while (end - begin) / step > most:
        step *= 2
    first = int(np.ceil(begin / step - 1e-9))
    return [
        (k * step, tick_text(k * step, step))
        for k in range(first, int(np.floor(end / step + 1e-9)) + 1)
    ]


def tick_text(seconds: float, step: float) -> str:
    """``m:ss`` (with hours from one hour on), or seconds with a fraction for small steps."""
    if step < 1:
        return f"{seconds:.{3 if step < 0.01 else 2 if step < 0.1 else 1}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _many(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
