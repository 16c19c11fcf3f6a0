"""What happened, in words: the sentences and figures above the picture.

Guarantees: every number comes from the log. Does not know: how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgekv.config import format_bytes
from edgekv.trace.axis import clock_text, column_text
from edgekv.trace.events import FRAME
from edgekv.trace.lives import ABORTED
from edgekv.trace.reader import TraceLog
from edgekv.trace.timeline import Timeline
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
    counts = _count(view.timeline)
    return Words(
        title=log.path.name,
        story=" ".join(_story(view, counts)),
        notes=tuple(_notes(log, view, counts.frames)),
        figures=tuple(_figures(log, view.timeline, counts)),
        axis="stream time" if view.clock.is_stream else "time since the log began",
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    frames: int
    evicted: int  # frames that contexts let go
    batches: int
    rules: tuple[str, ...]
    questions: int
    answer_tokens: int
    contexts: int  # and forks that are no questions


def _count(timeline: Timeline) -> _Counts:
    lives, sequences = timeline.lives, timeline.sequences
    done = np.asarray(lives.end, np.int8) != ABORTED
    questions = [life for life in sequences.values() if life.is_question]
    own = [drop for drop in timeline.drops if not sequences[drop.sequence].is_question]
    return _Counts(
        frames=int(np.count_nonzero((np.asarray(lives.kind, np.int8) == FRAME) & done)),
        evicted=sum(drop.num_frames for drop in own),
        batches=len(own),
        rules=tuple(dict.fromkeys(drop.rule or "the caller" for drop in own)),
        questions=len(questions),
        answer_tokens=sum(life.num_answer_tokens for life in questions),
        contexts=sum(not (s.is_question or s.is_safeguard) for s in sequences.values()),
    )


def _story(view: View, counts: _Counts) -> Iterator[str]:
    timeline, clock = view.timeline, view.clock
    wall = clock_text((timeline.end_us - timeline.begin_us) / 1e6)
    length = f"within {wall}"
    if clock.is_stream:
        length = f"over {clock_text(clock.end_s - clock.begin_s)} of stream, in {wall} of computing"
    yield f"{_many(counts.frames, 'frame')} came in {length}."
    if counts.evicted:
        named = ", ".join(f"“{rule}”" for rule in counts.rules)
        yield (
            f"No context held more than {_many(timeline.most_frames, 'frame')}; "
            f"{counts.evicted:,} left again in {_many(counts.batches, 'batch', 'batches')}, "
            f"chosen by {named}."
        )
    elif counts.frames:
        yield (
            f"All {_many(timeline.most_frames, 'frame')} that one context held at most stayed to "
            "the end: nothing was evicted."
        )
    if counts.questions:
        yield (
            f"{_many(counts.questions, 'question')} {_was(counts.questions)} asked, "
            "each on a fork that shared the context’s pages; "
            f"all answers together have {_many(counts.answer_tokens, 'token')}."
        )
    if timeline.num_recalled:
        back = _many(timeline.num_recalled, "frame")
        yield f"{back} that had left came back for questions."
    if timeline.num_taken:
        found = f"{_many(timeline.num_taken, 'segment')} {_was(timeline.num_taken)}"
        yield f"{found} found in the pool, and not computed again."
    share = timeline.peak / timeline.num_pages
    yield (
        f"At most {timeline.peak:,} of {timeline.num_pages:,} pages ({share:.0%}) were in use, "
        "cached ones not counted."
    )


def _figures(log: TraceLog, timeline: Timeline, counts: _Counts) -> Iterator[tuple[str, str]]:
    took = np.asarray(timeline.allocation_us, np.float64)
    p50, p99 = np.percentile(took, (50, 99)) if took.size else (0.0, 0.0)
    yield "frames", f"{counts.frames:,}"
    yield "evicted frames", f"{counts.evicted:,}"
    yield "questions", f"{counts.questions:,}"
    yield "window, frames", f"{timeline.most_frames:,}"
    yield "peak pages", f"{timeline.peak:,} of {timeline.num_pages:,}"
    yield "pool", format_bytes(timeline.num_pages * log.header.geometry.page_bytes)
    yield "contexts and forks", f"{counts.contexts:,}"
    yield "allocation p50 / p99", f"{p50:.1f} / {p99:.1f} µs"


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


def _many(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"
