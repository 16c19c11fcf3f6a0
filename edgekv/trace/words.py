"""What happened, in words: the sentences and figures above the picture.

Guarantees: every number comes from the log. Does not know: how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgekv.config import format_bytes
from edgekv.trace.accounts import accounts, because, pages_of_note
from edgekv.trace.axis import clock_text, column_text, latency_text
from edgekv.trace.input_lives import InputLives
from edgekv.trace.labels import legend, panel_titles, session_legend
from edgekv.trace.phrases import listed, many, was
from edgekv.trace.reader import TraceLog
from edgekv.trace.timeline import Timeline
from edgekv.trace.view import View


@dataclass(frozen=True, slots=True)
class Words:
    """The text around a picture."""

    title: str
    story: str  # what happened, in a few sentences
    accounts: tuple[str, ...]  # what each session did
    notes: tuple[str, ...]  # how to read it, what was left out
    figures: tuple[tuple[str, str], ...]  # (name, value)
    axis: str
    panels: dict[str, str]  # titles, by panel; a panel that would be empty has none
    legend: tuple[tuple[str, str], ...]  # (colour, what it means), of what occurs
    session_legend: tuple[tuple[str, str], ...]  # (colour, whose); empty for a single session


def describe(log: TraceLog, view: View) -> Words:
    """Put a log into words."""
    counts = _count(view.timeline)
    return Words(
        title=log.path.name,
        story=" ".join(_story(view, counts)),
        accounts=tuple(accounts(view)),
        notes=tuple(_notes(log, view, counts)),
        figures=tuple(_figures(log, view.timeline, counts)),
        axis="stream time" if view.clock.is_stream else "time since the log began",
        panels=panel_titles(view),
        legend=tuple(legend(view)),
        session_legend=tuple(session_legend(view)),
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    evicted: int  # frames that contexts let go
    batches: int
    rules: tuple[str, ...]
    questions: int
    answer_tokens: int
    contexts: int
    forks: int  # that are contexts of their own
    probes: int


def _count(timeline: Timeline) -> _Counts:
    sequences = timeline.sequences
    questions = [life for life in sequences.values() if life.is_question]
    contexts = [life for life in sequences.values() if life.is_context]
    own = [drop for drop in timeline.drops if sequences[drop.sequence].is_context]
    own = [drop for drop in own if drop.num_frames]
    forks = sum(life.is_fork for life in contexts)
    return _Counts(
        evicted=sum(drop.num_frames for drop in own),
        batches=len(own),
        rules=tuple(dict.fromkeys(drop.rule for drop in own)),
        questions=len(questions),
        answer_tokens=sum(life.num_answer_tokens for life in questions),
        contexts=len(contexts) - forks,
        forks=forks,
        probes=sum(life.is_probe for life in sequences.values()),
    )


def _story(view: View, counts: _Counts) -> Iterator[str]:
    timeline = view.timeline
    yield _came_in(view, counts)
    if counts.evicted:
        yield (
            f"No session held more than {many(timeline.frames.most, 'frame')} at once; "
            f"{counts.evicted:,} were let go in {many(counts.batches, 'batch', 'batches')}, "
            f"{listed([because(rule) for rule in counts.rules])}."
        )
    elif timeline.frames.num:
        yield (f"None was let go: no session held more than {many(timeline.frames.most, 'frame')}.")
    if counts.questions:
        yield (
            f"{many(counts.questions, 'question')} {was(counts.questions)} asked, "
            "each on a copy of its session that shared its pages and went with the answer; "
            f"all answers together have {many(counts.answer_tokens, 'token')}."
        )
    if timeline.frames.num_recalled:
        back = many(timeline.frames.num_recalled, "old frame")
        yield (
            f"{back} {was(timeline.frames.num_recalled)} recalled: they had been let go to disk, "
            "and came back for as long as one question took."
        )
    if num_found := timeline.lookups.num_found:
        found = f"{many(num_found, 'piece')}, a frame, picture or instructions,"
        yield f"{found} {was(num_found)} found in memory, in use or cached, and not computed again."
    if timeline.inputs is not None:
        yield _inputs(timeline.inputs)
    yield from pages_of_note(view)
    share = timeline.levels.peak / timeline.num_pages
    yield (
        f"At most {timeline.levels.peak:,} of {timeline.num_pages:,} pages ({share:.0%}) were in "
        "use at once, cached ones not counted."
    )


def _came_in(view: View, counts: _Counts) -> str:
    timeline, clock = view.timeline, view.clock
    wall = clock_text((timeline.end_us - timeline.begin_us) / 1e6)
    length = f"within {wall}"
    if clock.is_stream:
        length = f"over {clock_text(clock.end_s - clock.begin_s)} of stream, in {wall} of computing"
    where = ""
    if counts.contexts + counts.forks > 1:
        where = f" to {many(counts.contexts, 'session')}"
        where += f" and {many(counts.forks, 'copy', 'copies')} of one" if counts.forks else ""
    before = ""
    if timeline.frames.num_before:
        before = f"; {many(timeline.frames.num_before, 'frame')} had been there before"
    return f"{many(timeline.frames.num, 'frame')} came in{where} {length}{before}."


def _inputs(inputs: InputLives) -> str:
    looked = len(inputs.lookups.found)
    written = looked - inputs.lookups.num_found
    return (
        f"{many(written, 'input')} of cross-attention {was(written)} written, "
        f"{inputs.lookups.num_found:,} found again, {inputs.num_given_up:,} given up for others."
    )


def _figures(log: TraceLog, timeline: Timeline, counts: _Counts) -> Iterator[tuple[str, str]]:
    took = np.asarray(timeline.allocation_us, np.float64)
    p50, p99 = np.percentile(took, (50, 99)) if took.size else (0.0, 0.0)
    yield "frames", f"{timeline.frames.num:,}"
    yield "frames let go", f"{counts.evicted:,}"
    if timeline.frames.num_recalled:
        yield "recalled frames", f"{timeline.frames.num_recalled:,}"
    yield "questions", f"{counts.questions:,}"
    if counts.probes:
        yield "probes", f"{counts.probes:,}"
    yield "most frames held", f"{timeline.frames.most:,}"
    yield "peak pages", f"{timeline.levels.peak:,} of {timeline.num_pages:,}"
    yield "memory for pages", format_bytes(timeline.num_pages * log.header.geometry.page_bytes)
    yield "sessions + copies of one", f"{counts.contexts:,} + {counts.forks:,}"
    if timeline.lookups.found:
        yield "found in memory", f"{timeline.lookups.rate:.0%} of {len(timeline.lookups.found):,}"
    if (inputs := timeline.inputs) is not None and inputs.lookups.found:
        yield "inputs found", f"{inputs.lookups.rate:.0%} of {len(inputs.lookups.found):,}"
    # Not what it takes in a loop of nothing else, which ``edgekv bench alloc`` says.
    name = "taking pages amid all else, median / slowest 1%"
    yield name, f"{latency_text(p50)} / {latency_text(p99)}"


def _notes(log: TraceLog, view: View, counts: _Counts) -> list[str]:
    geometry, num_frames = log.header.geometry, view.timeline.frames.num
    per_frame = f", {log.num_bytes / num_frames:.0f} bytes a frame" if num_frames else ""
    notes = [
        f"Each row of a map is a page, room for {geometry.page_size} tokens "
        f"({format_bytes(geometry.page_bytes)}). A question is drawn at least three pixels wide, a "
        "frame brought back five, and over what the page held otherwise."
    ]
    if view.map.pages_per_row > 1:
        notes.append(f"One row stands for {view.map.pages_per_row:.3g} pages; the newest is shown.")
    if counts.probes:
        notes.append(
            f"{many(counts.probes, 'probe')}, which timed the disk that frames are let go to or "
            f"found out what a question is about, {was(counts.probes)} not counted as questions "
            "or frames."
        )
    num_events = len(view.timeline.levels.at_us)
    if num_events > view.num_columns:
        steps = f"{view.num_columns:,} steps of {column_text(view.column_s)}"
        notes.append(
            f"Downsampled by time, {num_events:,} events into {steps}"
            f"{' of stream' if view.clock.is_stream else ''}: what came and went within one step "
            "may be covered by what came after it; curves show each step’s extreme."
        )
    if not log.from_start:
        notes.append("The log begins in the middle of the run; older parts were rotated away.")
    if log.cut_short:
        notes.append(f"The log ends early: {log.cut_short}.")
    notes.append(f"Log: {format_bytes(log.num_bytes)}{per_frame}, all events included.")
    return notes
