"""Who held which page, when: what a log says, put together without a cache.

Owns: a small model of sequences, segments and page holders, and the columns it fills.
Guarantees: works from the middle of a run too; a page shared by several sequences is counted once
    and lives until its last holder lets go; memory grows with the log, not with the run.
Does not know: pictures, which rule is right, where pages should have come from.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from edgekv.errors import TraceError
from edgekv.trace.codec import Header
from edgekv.trace.events import (
    ANSWER,
    FRAME,
    TEXT,
    Closed,
    Counted,
    Dropped,
    Event,
    GivenUp,
    Held,
    HeldSegment,
    Inserted,
    Kept,
    Opened,
    Planned,
    Reserved,
    Settled,
    StepBegun,
    StepEnded,
    Taken,
    Truncated,
)
from edgekv.trace.reader import TraceLog

CACHED = 4  # what a page holds, beside the kinds of segments: one that was, and can be found
STILL, DROPPED, CUT, CLOSED, ABORTED = range(5)  # how a segment ended
ENDS = ("still there", "dropped", "cut off", "its sequence closed", "its append aborted")


@dataclass(slots=True)
class Lives:
    """Segments by number, as columns. Times in microseconds, -1 = still there."""

    kind: array[int] = field(default_factory=lambda: array("b"))
    sequence: array[int] = field(default_factory=lambda: array("q"))
    index: array[int] = field(default_factory=lambda: array("q"))  # frame number, -1 = none
    time_s: array[float] = field(default_factory=lambda: array("d"))  # NaN = none
    num_tokens: array[int] = field(default_factory=lambda: array("q"))
    num_pages: array[int] = field(default_factory=lambda: array("q"))
    came_us: array[int] = field(default_factory=lambda: array("q"))
    left_us: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("b"))

    def add(self, kind: int, sequence: int, index: int, time_s: float, came_us: int) -> int:
        """A new segment's number."""
        self.kind.append(kind)
        self.sequence.append(sequence)
        self.index.append(index)
        self.time_s.append(time_s)
        self.num_tokens.append(0)
        self.num_pages.append(0)
        self.came_us.append(came_us)
        self.left_us.append(-1)
        self.end.append(STILL)
        return len(self.kind) - 1


@dataclass(slots=True)
class Spans:
    """Stretches of one page being held, as columns."""

    page: array[int] = field(default_factory=lambda: array("q"))
    life: array[int] = field(default_factory=lambda: array("q"))
    from_us: array[int] = field(default_factory=lambda: array("q"))
    to_us: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class SequenceLife:
    """One sequence: the live context of a session, or a fork."""

    id: int
    parent: int  # -1 = none
    opened_us: int
    closed_us: int = -1
    num_frames: int = 0  # that it wrote itself
    num_text: int = 0  # text segments it wrote itself
    num_answer_tokens: int = 0
    last_us: int = 0

    @property
    def is_question(self) -> bool:
        """A fork that was told something and took in no frame of its own."""
        return self.parent >= 0 and self.num_frames == 0 and self.num_text > 0

    @property
    def is_safeguard(self) -> bool:
        """A fork that wrote nothing: it held what an eviction took until the step was done."""
        wrote = self.num_frames + self.num_text + self.num_answer_tokens > 0
        return self.parent >= 0 and not wrote and self.closed_us >= 0


class Drop(NamedTuple):
    """Segments that left at once."""

    at_us: int
    sequence: int
    rule: str
    num_frames: int
    num_segments: int
    num_pages: int


class _Segment(NamedTuple):
    """A segment as one sequence holds it."""

    id: int
    life: int
    pages: tuple[int, ...]


class _Context:
    """What one sequence holds now."""

    __slots__ = ("drawn", "next_id", "num_frames", "pending", "reserve", "segments")

    def __init__(self, segments: list[_Segment], next_id: int, num_frames: int = 0) -> None:
        self.segments = segments
        self.next_id = next_id
        self.num_frames = num_frames
        self.pending: tuple[Planned, int] | None = None  # and its life
        self.reserve: set[int] = set()  # pages held for appends to come; they show nothing
        self.drawn: set[int] = set()  # those that the pending append has from there

    def pages(self) -> list[int]:
        out = [page for segment in self.segments for page in segment.pages]
        if self.pending is not None:
            out += self.pending[0].pages
        return out


class Timeline:
    """Feed it every event, then read its columns."""

    def __init__(self, header: Header) -> None:
        self.num_pages = header.num_pages
        self.page_size = header.geometry.page_size
        self.lives, self.spans = Lives(), Spans()
        self.sequences: dict[int, SequenceLife] = {}
        self.drops: list[Drop] = []
        # One entry an event: time, pages free, cached and in flight, tokens in live pages.
        self.at_us, self.free, self.in_flight = array("q"), array("q"), array("q")
        self.cached = array("q")
        self.tokens = array("q")
        self.planned_us, self.allocation_us = array("q"), array("d")
        self.num_committed_tokens = [0, 0, 0, 0]  # by kind
        self.num_aborted = 0
        self.num_recalled = 0  # frames that came back to a context that had let them go
        self.num_taken = 0  # segments that were found
        self.frames_us, self.frames_s = array("q"), array("d")  # frames' stream times
        self.most_frames = 0  # that one sequence held
        self.peak = 0
        self.end_us = header.part_us
        self.begin_us = header.part_us
        self._contexts: dict[int, _Context] = {}
        self._refs = [0] * self.num_pages
        self._valid = [0] * self.num_pages
        self._span = [-1] * self.num_pages  # the page's open span
        self._num_free, self._num_in_flight, self._num_tokens = self.num_pages, 0, 0
        self._steps: dict[int, list[int]] = {}
        self._waiting: set[int] = set()  # pages in flight
        self._kept: set[int] = set()  # pages that can be found
        self._cached: set[int] = set()  # those that nobody holds
        self._cached_life = -1  # the one life of all cached pages, made when there is the first

    def feed(self, event: Event) -> None:
        """Take in the next event. ValueError, KeyError or IndexError when it cannot be."""
        self.end_us = now = event.at_us
        if isinstance(event, Planned):
            self._plan(event)
        elif isinstance(event, Settled):
            self._settle(event)
        elif isinstance(event, Opened):
            self._open(event)
        elif isinstance(event, Dropped):
            self._drop(event)
        elif isinstance(event, Closed):
            context = self._contexts.pop(event.sequence)
            self._leave(context.segments, now, CLOSED, event.sequence)
            self._release(tuple(context.reserve), now)
            self.sequences[event.sequence].closed_us = now
        elif isinstance(event, Truncated):
            self._truncate(event)
        elif isinstance(event, StepBegun | StepEnded):
            self._step(event)
        elif isinstance(event, Held | Inserted):
            self._come_in(event)
        elif isinstance(event, Kept | Taken | GivenUp | Reserved):
            self._share(event)
        elif isinstance(event, Counted):
            self.peak = max(self.peak, event.peak)
            return
        used = self.num_pages - self._num_free - len(self._cached)
        if used > self.peak:
            self.peak = used
        self.at_us.append(now)
        self.free.append(self._num_free)
        self.cached.append(len(self._cached))
        self.in_flight.append(self._num_in_flight)
        self.tokens.append(self._num_tokens)

    def finish(self) -> None:
        """Close what is still open at the end of the log."""
        for page, span in enumerate(self._span):
            if span >= 0 and (self._refs[page] or page in self._waiting | self._cached):
                self.spans.to_us[span] = self.end_us

    # -- events -----------------------------------------------------------------------------------

    def _open(self, event: Opened) -> None:
        if event.parent < 0:
            context = _Context([], 0)
        else:
            parent = self._contexts[event.parent]
            context = _Context(list(parent.segments), parent.next_id, parent.num_frames)
            for segment in context.segments:
                for page in segment.pages:
                    self._refs[page] += 1
        self._contexts[event.sequence] = context
        self.sequences[event.sequence] = SequenceLife(event.sequence, event.parent, event.at_us)

    def _hold(self, event: Held) -> None:
        if event.sequence not in self.sequences:
            self.sequences[event.sequence] = SequenceLife(event.sequence, -1, event.at_us)
        context = _Context([], event.next_segment)
        for held in event.segments:
            shared = self._span[held.pages[0]] if self._refs[held.pages[0]] else -1
            if shared >= 0:
                life = self.spans.life[shared]
            else:
                life = self._life_of(held, event.sequence, event.at_us)
                self.sequences[event.sequence].num_frames += held.kind == FRAME
            for page, valid in zip(held.pages, held.valid, strict=True):
                if self._refs[page]:
                    self._refs[page] += 1
                else:
                    self._take(page, life, event.at_us)
                    self._fill(page, valid)
            context.segments.append(_Segment(held.id, life, held.pages))
        self._contexts[event.sequence] = context
        context.num_frames = self._frames(context.segments)
        self.most_frames = max(self.most_frames, context.num_frames)

    def _come_in(self, event: Held | Inserted) -> None:
        if isinstance(event, Held):
            self._hold(event)
        else:
            self._insert(event)

    def _insert(self, event: Inserted) -> None:
        context = self._contexts[event.sequence]
        for held in event.segments:
            life = self._life_of(held, event.sequence, event.at_us)
            for page, valid in zip(held.pages, held.valid, strict=True):
                self._take(page, life, event.at_us)
                self._fill(page, valid)
            context.segments.append(_Segment(held.id, life, held.pages))
        context.segments.sort(key=lambda segment: segment.id)
        num_frames = sum(held.kind == FRAME for held in event.segments)
        context.num_frames += num_frames
        self.num_recalled += num_frames

    def _life_of(self, held: HeldSegment, sequence: int, now: int) -> int:
        """A new segment whose tokens are there at once."""
        life = self.lives.add(held.kind, sequence, held.frame, held.time_s, now)
        self.lives.num_tokens[life] = held.num_tokens
        self.lives.num_pages[life] = len(held.pages)
        return life

    def _plan(self, event: Planned) -> None:
        context = self._contexts[event.sequence]
        if event.extend:
            life = context.segments[-1].life
        else:
            life = self.lives.add(
                event.kind, event.sequence, event.frame, event.time_s, event.at_us
            )
        context.drawn = context.reserve.intersection(event.pages)
        context.reserve -= context.drawn
        for page in event.pages:
            if page in context.drawn:
                self._begin_span(page, life, event.at_us)
            else:
                self._take(page, life, event.at_us)
        context.pending = (event, life)
        self.planned_us.append(event.at_us)
        self.allocation_us.append(event.allocation_us)

    def _settle(self, event: Settled) -> None:
        context = self._contexts[event.sequence]
        if context.pending is None:
            raise ValueError(f"sequence {event.sequence} settles an append that was not planned")
        plan, life = context.pending
        context.pending = None
        if not event.committed:
            self.num_aborted += 1
            for page in context.drawn:
                self.spans.to_us[self._span[page]], self._span[page] = event.at_us, -1
            context.reserve |= context.drawn
            self._release(tuple(set(plan.pages) - context.drawn), event.at_us)
            if not plan.extend:
                self.lives.left_us[life], self.lives.end[life] = event.at_us, ABORTED
            return
        self._commit(event, context, plan, life)

    def _commit(self, event: Settled, context: _Context, plan: Planned, life: int) -> None:
        pages, left = plan.pages, plan.num_tokens
        if plan.extend:
            last = context.segments.pop()
            before = last.pages
            if plan.copies:
                self._fill(pages[0], self._valid[before[-1]])
                self._release(before[-1:], event.at_us)
                before = (*before[:-1], pages[0])
                pages = pages[1:]
            if plan.tail_tokens:
                self._fill(before[-1], plan.tail_tokens)
                left -= plan.tail_tokens
            context.segments.append(_Segment(last.id, life, before + pages))
        else:
            context.segments.append(_Segment(context.next_id, life, pages))
            context.next_id += 1
        for page in pages:
            self._fill(page, min(left, self.page_size))
            left -= self.page_size
        self.lives.num_tokens[life] += plan.num_tokens
        self.lives.num_pages[life] += len(pages)
        self._note(plan, context, event.at_us)

    def _note(self, plan: Planned, context: _Context, now: int) -> None:
        """Count a committed append."""
        sequence = self.sequences[plan.sequence]
        sequence.last_us = now
        self.num_committed_tokens[plan.kind] += plan.num_tokens
        if plan.kind == ANSWER:
            sequence.num_answer_tokens += plan.num_tokens
        if plan.extend:
            return
        sequence.num_text += plan.kind == TEXT
        if plan.kind == FRAME:
            self._note_frame(sequence, context, plan.at_us, plan.time_s)

    def _note_frame(
        self, sequence: SequenceLife, context: _Context, at_us: int, time_s: float
    ) -> None:
        sequence.num_frames += 1
        context.num_frames += 1
        self.most_frames = max(self.most_frames, context.num_frames)
        if time_s == time_s:
            self.frames_us.append(at_us)
            self.frames_s.append(time_s)

    def _frames(self, segments: list[_Segment]) -> int:
        return sum(self.lives.kind[segment.life] == FRAME for segment in segments)

    def _drop(self, event: Dropped) -> None:
        context, gone = self._contexts[event.sequence], set(event.segments)
        leaving = [segment for segment in context.segments if segment.id in gone]
        if len(leaving) != len(gone):
            raise ValueError(f"sequence {event.sequence} drops segments it does not hold")
        context.segments = [segment for segment in context.segments if segment.id not in gone]
        num_frames = self._frames(leaving)
        context.num_frames -= num_frames
        num_pages = sum(len(segment.pages) for segment in leaving)
        drop = (event.rule, num_frames, len(leaving), num_pages)
        self.drops.append(Drop(event.at_us, event.sequence, *drop))
        self._leave(leaving, event.at_us, DROPPED, event.sequence)

    def _truncate(self, event: Truncated) -> None:
        context = self._contexts[event.sequence]
        left_pages = event.num_pages
        kept: list[_Segment] = []
        for segment in context.segments:
            stay = segment.pages[: max(left_pages, 0)]
            left_pages -= len(segment.pages)
            self._release(segment.pages[len(stay) :], event.at_us)
            if stay:
                kept.append(segment._replace(pages=stay))
            elif self.lives.sequence[segment.life] == event.sequence:
                self._end(segment.life, event.at_us, CUT)
        held = sum(self._valid[page] for segment in kept for page in segment.pages)
        if kept and held > event.num_tokens:
            self._fill(kept[-1].pages[-1], event.num_tokens - held)
        context.segments = kept
        context.num_frames = self._frames(kept)

    def _step(self, event: StepBegun | StepEnded) -> None:
        if isinstance(event, StepBegun):
            contexts = [self._contexts[number] for number in event.sequences]
            self._steps[event.step] = [page for c in contexts for page in c.pages()]
            return
        pages = self._steps.pop(event.step)
        for page in self._waiting.intersection(pages):
            if not any(page in others for others in self._steps.values()):
                self._waiting.discard(page)
                self._num_in_flight -= 1
                self._free(page, event.at_us)

    def _share(self, event: Kept | Taken | GivenUp | Reserved) -> None:
        if isinstance(event, Reserved):
            self._reserve(event)
        elif isinstance(event, Kept):
            self._keep(event)
        elif isinstance(event, Taken):
            self._find(event)
        else:
            self._give_up(event)

    def _keep(self, event: Kept) -> None:
        self._kept.update(event.pages)
        if event.sequence < 0:
            for page in event.pages:
                if not self._refs[page]:
                    self._num_free -= 1
                    self._cache(page, event.at_us)

    def _find(self, event: Taken) -> None:
        context, first = self._contexts[event.sequence], event.pages[0]
        if self._refs[first] or first in self._waiting:
            life = self.spans.life[self._span[first]]
        else:
            life = self.lives.add(
                event.kind, event.sequence, event.frame, event.time_s, event.at_us
            )
            self.lives.num_tokens[life] = event.num_tokens
            self.lives.num_pages[life] = len(event.pages)
        left = event.num_tokens
        for page in event.pages:
            if self._refs[page]:
                self._refs[page] += 1
            else:
                self._revive(page, life, event.at_us)
                self._fill(page, min(left, self.page_size))
            left -= self.page_size
        context.segments.append(_Segment(context.next_id, life, event.pages))
        context.next_id += 1
        self.num_taken += 1
        sequence = self.sequences[event.sequence]
        sequence.last_us = event.at_us
        sequence.num_text += event.kind == TEXT
        if event.kind == FRAME:
            self._note_frame(sequence, context, event.at_us, event.time_s)

    def _give_up(self, event: GivenUp) -> None:
        for page in event.pages:
            self._kept.discard(page)
            if page in self._cached:
                self._cached.discard(page)
                self.spans.to_us[self._span[page]] = event.at_us
                self._num_free += 1

    def _reserve(self, event: Reserved) -> None:
        context = self._contexts[event.sequence]
        if event.how == "given back":
            context.reserve.difference_update(event.pages)
            self._release(event.pages, event.at_us)
            return
        for page in event.pages:
            if self._refs[page] or page in self._cached:
                raise ValueError(f"page {page} is taken twice")
            self._refs[page], self._span[page] = 1, -1
        self._num_free -= len(event.pages)
        context.reserve.update(event.pages)

    # -- pages ------------------------------------------------------------------------------------

    def _take(self, page: int, life: int, now: int) -> None:
        if self._refs[page] or page in self._cached:
            raise ValueError(f"page {page} is taken twice")
        self._refs[page] = 1
        self._num_free -= 1
        self._begin_span(page, life, now)

    def _revive(self, page: int, life: int, now: int) -> None:
        """Somebody holds a page again that nobody held."""
        self._refs[page] = 1
        if page in self._waiting:
            self._waiting.discard(page)
            self._num_in_flight -= 1
        elif page in self._cached:
            self._cached.discard(page)
            self.spans.to_us[self._span[page]] = now
            self._begin_span(page, life, now)
        else:
            raise ValueError(f"page {page} is found, but it is free")

    def _cache(self, page: int, now: int) -> None:
        if self._cached_life < 0:
            self._cached_life = self.lives.add(CACHED, -1, -1, float("nan"), now)
        self._cached.add(page)
        self._begin_span(page, self._cached_life, now)

    def _begin_span(self, page: int, life: int, now: int) -> None:
        self._span[page] = len(self.spans.page)
        self.spans.page.append(page)
        self.spans.life.append(life)
        self.spans.from_us.append(now)
        self.spans.to_us.append(-1)

    def _fill(self, page: int, num_tokens: int) -> None:
        self._valid[page] += num_tokens
        self._num_tokens += num_tokens

    def _release(self, pages: tuple[int, ...], now: int) -> None:
        for page in pages:
            self._refs[page] -= 1
            if self._refs[page] > 0:
                continue
            if self._refs[page] < 0:
                raise ValueError(f"page {page} is given back twice")
            self._num_tokens -= self._valid[page]
            self._valid[page] = 0
            if self._steps and any(page in used for used in self._steps.values()):
                self._waiting.add(page)
                self._num_in_flight += 1
            else:
                self._free(page, now)

    def _free(self, page: int, now: int) -> None:
        if self._span[page] >= 0:  # one that was reserved and never drawn shows nothing
            self.spans.to_us[self._span[page]] = now
        if page in self._kept:
            self._cache(page, now)
        else:
            self._num_free += 1

    def _leave(self, segments: list[_Segment], now: int, end: int, sequence: int) -> None:
        for segment in segments:
            self._release(segment.pages, now)
            if self.lives.sequence[segment.life] == sequence:
                self._end(segment.life, now, end)

    def _end(self, life: int, now: int, end: int) -> None:
        self.lives.left_us[life], self.lives.end[life] = now, end


def build_timeline(log: TraceLog) -> Timeline:
    """Read a whole log. Raises TraceError where it is damaged or contradicts itself."""
    timeline, number = Timeline(log.header), 0
    for number, event in enumerate(log.events()):
        try:
            timeline.feed(event)
        except (KeyError, IndexError, ValueError) as error:
            what = f"no sequence {error}" if isinstance(error, KeyError) else str(error)
            raise TraceError(
                f"{log.path}: event {number} does not fit those before it: {what}"
            ) from None
    timeline.finish()
    return timeline
