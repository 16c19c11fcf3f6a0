"""Who held which page, when: what a log says, put together without a cache.

Owns: what every sequence holds, and the columns that a picture is made of.
Guarantees: works from the middle of a run too; a page shared by several sequences is counted once
    and lives until its last holder lets go; memory grows with the log, not with the run.
Does not know: pictures, which rule is right, where pages should have come from.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from edgekv.errors import TraceError
from edgekv.trace.codec import Header
from edgekv.trace.contexts import Context, Segment
from edgekv.trace.events import (
    ANSWER,
    FRAME,
    Changed,
    Closed,
    Counted,
    Decided,
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
from edgekv.trace.frames import Frames
from edgekv.trace.holders import Holders
from edgekv.trace.input_lives import InputLives
from edgekv.trace.lives import (
    ABORTED,
    CLOSED,
    CUT,
    DROPPED,
    PROBED,
    RECALLED,
    RESERVED,
    Drop,
    Drops,
    Levels,
    Lives,
    Lookups,
    Sequences,
)
from edgekv.trace.reader import TraceLog


class Timeline:
    """Feed it every event, then read its columns."""

    def __init__(self, header: Header) -> None:
        self.num_pages = header.num_pages
        self.page_size = header.geometry.page_size
        self.lives = Lives()
        self.holders = Holders(header.num_pages, header.geometry.page_size, self.lives)
        self.sequences, self.drops = Sequences(), Drops()
        self.levels, self.lookups = Levels(), Lookups()
        self.planned_us, self.allocation_us = array("q"), array("d")
        self.inputs = None
        if header.cross is not None:
            self.inputs = InputLives(header.cross, header.num_cross_pages)
        self.frames = Frames()
        self.end_us = header.part_us
        self.begin_us = header.part_us
        self._contexts: dict[int, Context] = {}
        self._on: dict[type[Any], Callable[[Any], None]] = {
            Planned: self._plan,
            Settled: self._settle,
            Opened: self._open,
            Dropped: self._drop,
            Decided: self._decide,
            Closed: self._close,
            Truncated: self._truncate,
            StepBegun: self._begin_step,
            StepEnded: lambda event: self.holders.end_step(event.step, event.at_us),
            Held: self._hold,
            Inserted: self._insert,
            Kept: self._keep,
            Taken: self._find,
            GivenUp: lambda event: self.holders.give_up(event.pages, event.at_us),
            Reserved: self._reserve,
            Changed: self._change,
        }

    def feed(self, event: Event) -> None:
        """Take in the next event. ValueError, KeyError or IndexError when it cannot be."""
        self.end_us = event.at_us
        if isinstance(event, Counted):
            self.levels.peak = max(self.levels.peak, event.peak)
            return
        if (take_in := self._on.get(type(event))) is not None:
            take_in(event)
        pages = self.holders
        self.levels.peak = max(self.levels.peak, pages.num_used)
        states = (pages.num_free, pages.num_cached, pages.num_in_flight, pages.num_tokens)
        self.levels.note(event.at_us, *states)

    def finish(self) -> None:
        """Close what is still open at the end of the log."""
        self.holders.finish(self.end_us)
        if self.inputs is not None:
            self.inputs.holders.finish(self.end_us)

    # -- sequences --------------------------------------------------------------------------------

    def _open(self, event: Opened) -> None:
        session = self.sequences.born(event.sequence, event.parent, event.purpose, event.at_us)
        if event.parent < 0:
            context = Context(session, [], 0)
        else:
            context = self._contexts[event.parent].fork(session)
            for page in context.pages():
                self.holders.share(page, session, event.at_us)
        self._contexts[event.sequence] = context

    def _close(self, event: Closed) -> None:
        context = self._contexts.pop(event.sequence)
        self._release(context.segments, context, event.at_us)
        lives = [segment.life for segment in context.segments]
        self.lives.let_go(lives, event.sequence, event.at_us, CLOSED)
        self.holders.release(context.reserve, context.session, event.at_us)
        self.sequences[event.sequence].closed_us = event.at_us

    def _hold(self, event: Held) -> None:
        holders = self.holders
        if event.sequence not in self.sequences:
            self.sequences.born(event.sequence, -1, event.purpose, event.at_us)
            if event.segments and event.purpose != "context":  # its parent was told of long ago
                beside = holders.holding(event.segments[0].pages[0])
                self.sequences[event.sequence].session = min(beside, default=0)
        context = Context(self.sequences[event.sequence].session, [], event.next_segment)
        for held in event.segments:
            life = holders.life(held.pages[0]) if holders.is_held(held.pages[0]) else -1
            if life < 0:
                life = self._add_held(held, held.kind, event)
                self.frames.num_before += held.kind == FRAME
            context.hold(held, life, holders, event.at_us)
        self._contexts[event.sequence] = context
        context.num_frames = self._frames(context.segments)
        self.frames.held(context)

    def _insert(self, event: Inserted) -> None:
        context = self._contexts[event.sequence]
        for held in event.segments:
            kind = RECALLED if held.kind == FRAME else held.kind
            life = self._add_held(held, kind, event)
            context.hold(held, life, self.holders, event.at_us)
        context.segments.sort(key=lambda segment: segment.id)
        num_frames = sum(held.kind == FRAME for held in event.segments)
        self.frames.came_back(self.sequences[event.sequence], context, num_frames)

    def _add_held(self, held: HeldSegment, kind: int, event: Held | Inserted) -> int:
        """A new life whose tokens are there at once."""
        size = {"num_tokens": held.num_tokens, "num_pages": len(held.pages)}
        return self.lives.add(kind, event.sequence, held.frame, held.time_s, event.at_us, **size)

    def _begin_step(self, event: StepBegun) -> None:
        contexts = [self._contexts[number] for number in event.sequences]
        self.holders.begin_step(event.step, [page for c in contexts for page in c.pages()])

    def _reserve(self, event: Reserved) -> None:
        context = self._contexts[event.sequence]
        if event.how == "given back":
            context.reserve.difference_update(event.pages)
            self.holders.release(event.pages, context.session, event.at_us)
            return
        if context.promise < 0:
            context.promise = self.lives.add(
                RESERVED, event.sequence, -1, float("nan"), event.at_us
            )
        context.set_aside(event.pages, self.holders, event.at_us)

    # -- appends ----------------------------------------------------------------------------------

    def _plan(self, event: Planned) -> None:
        context = self._contexts[event.sequence]
        if event.extend:
            life = context.segments[-1].life
        else:
            kind = PROBED if self.sequences[event.sequence].is_probe else event.kind
            life = self.lives.add(kind, event.sequence, event.frame, event.time_s, event.at_us)
        context.draw(event.pages, life, self.holders, event.at_us)
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
            context.put_back(plan, self.holders, event.at_us)
            if not plan.extend:
                self.lives.leave(life, event.at_us, ABORTED)
            return
        num_pages = context.grow(plan, life, self.holders, event.at_us)
        self.lives.num_tokens[life] += plan.num_tokens
        self.lives.num_pages[life] += num_pages
        self._note(plan, context)

    def _note(self, plan: Planned, context: Context) -> None:
        """Count a committed append."""
        sequence = self.sequences[plan.sequence]
        sequence.num_appends += 1
        if plan.kind == ANSWER:
            sequence.num_answer_tokens += plan.num_tokens
        elif plan.kind == FRAME and not plan.extend and not sequence.is_probe:
            self.frames.came(sequence, context, plan.at_us, plan.time_s)

    def _find(self, event: Taken) -> None:
        context, first = self._contexts[event.sequence], event.pages[0]
        if self.holders.is_shown(first):
            life = self.holders.life(first)
        else:
            size = {"num_tokens": event.num_tokens, "num_pages": len(event.pages)}
            life = self.lives.add(
                event.kind, event.sequence, event.frame, event.time_s, event.at_us, **size
            )
        context.find(event, life, self.holders)
        self.lookups.note(event.at_us, found=True)
        sequence = self.sequences[event.sequence]
        sequence.num_appends += 1
        if event.kind == FRAME:
            self.frames.came(sequence, context, event.at_us, event.time_s)

    def _keep(self, event: Kept) -> None:
        self.holders.keep(event.pages, event.at_us)
        if event.sequence >= 0:  # it was looked for, and computed since nobody had it
            self.lookups.note(event.at_us, found=False)

    def _change(self, event: Changed) -> None:
        if self.inputs is None:
            raise ValueError("an input of cross-attention, and the model has none")
        self.inputs.feed(event)

    # -- leaving ----------------------------------------------------------------------------------

    def _drop(self, event: Dropped) -> None:
        context = self._contexts[event.sequence]
        leaving = context.take_out(event.segments)
        num_frames = self._frames(leaving)
        context.num_frames -= num_frames
        num_pages = sum(len(segment.pages) for segment in leaving)
        drop = (event.rule, num_frames, len(leaving), num_pages)
        self.drops.append(Drop(event.at_us, event.sequence, *drop))
        if event.aside:
            context.aside = leaving
        else:
            self._release(leaving, context, event.at_us)
        lives = [segment.life for segment in leaving]
        self.lives.let_go(lives, event.sequence, event.at_us, DROPPED)

    def _decide(self, event: Decided) -> None:
        context = self._contexts[event.sequence]
        aside, context.aside = context.aside, []
        if event.fate == "let go":
            self._release(aside, context, event.at_us)
            return
        context.add_back(aside)
        context.num_frames += self._frames(aside)
        for segment in aside:
            if self.lives.sequence[segment.life] == event.sequence:
                self.lives.come_back(segment.life)
        self.drops.undo(event.sequence)

    def _truncate(self, event: Truncated) -> None:
        context = self._contexts[event.sequence]
        for segment in context.cut(event.num_tokens, event.num_pages, self.holders, event.at_us):
            if self.lives.sequence[segment.life] == event.sequence:
                self.lives.leave(segment.life, event.at_us, CUT)
                if self.lives.kind[segment.life] == FRAME:
                    sequence = self.sequences[event.sequence]
                    self.frames.went_again(sequence, self.lives.came_us[segment.life])
        context.num_frames = self._frames(context.segments)

    def _frames(self, segments: list[Segment]) -> int:
        return sum(self.lives.kind[segment.life] in (FRAME, RECALLED) for segment in segments)

    def _release(self, segments: list[Segment], context: Context, now: int) -> None:
        for segment in segments:
            self.holders.release(segment.pages, context.session, now)


def build_timeline(log: TraceLog) -> Timeline:
    """Read a whole log. Raises TraceError where it is damaged or contradicts itself."""
    timeline, number = Timeline(log.header), 0
    for number, event in enumerate(log.events()):
        try:
            timeline.feed(event)
        except (KeyError, IndexError, OverflowError, ValueError) as error:
            what = f"no sequence {error}" if isinstance(error, KeyError) else str(error)
            raise TraceError(
                f"{log.path}: event {number} does not fit those before it: {what}"
            ) from None
    timeline.finish()
    return timeline
