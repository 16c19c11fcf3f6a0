"""Runs a log through a fresh cache and compares every decision with what the log says.

Guarantees: what is compared are the pages each append takes and replaces, which segments each
    rule chooses, what is left by each truncation, which cached pages are given up, what is found,
    the pages of each input of cross-attention and which inputs leave for it, and the counts; the
    first difference ends the replay and is told in one line.
Does not know: pools: what rules saw of them is in the log. What a caller drops, or a rule that
    has no name here, is done as logged and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import PageCache, Sequence
from edgekv.errors import EdgeKVError, TraceError
from edgekv.trace.choices import Choices
from edgekv.trace.compare import Difference, same
from edgekv.trace.events import (
    KINDS,
    Changed,
    Chosen,
    Closed,
    Counted,
    Decided,
    Dropped,
    Event,
    GivenUp,
    Held,
    Inserted,
    Kept,
    Opened,
    Planned,
    Reserved,
    Settled,
    Shown,
    StepBegun,
    StepEnded,
    Taken,
    Truncated,
)
from edgekv.trace.input_replay import InputReplay
from edgekv.trace.reader import TraceLog
from edgekv.trace.states import state_of


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How a replay ended."""

    num_events: int
    num_appends: int
    num_drops: int
    num_drops_as_logged: int  # that no rule chose, as far as the log says
    num_counts: int
    num_input_changes: int  # of cross-attention
    difference: str | None  # None = everything came out the same


def replay(log: TraceLog) -> ReplayResult:
    """Replay a whole log. Raises TraceError for a damaged one, or one without its beginning."""
    if not log.from_start:
        raise TraceError(
            f"{log.path}: a replay needs the log from its start, "
            f"but parts before part {log.header.part} are gone"
        )
    again = _Replay(log)
    num_events, difference = 0, None
    for event in log.events():
        try:
            again.play(event)
        except Difference as error:
            difference = f"event {num_events} at {event.at_us / 1e6:.6f} s: {error}"
            break
        except TraceError:
            raise
        except (EdgeKVError, KeyError, OverflowError, ValueError) as error:
            what = f"no sequence {error}" if isinstance(error, KeyError) else str(error)
            name = type(event).__name__.lower()
            difference = f"event {num_events} at {event.at_us / 1e6:.6f} s: {name}: {what}"
            break
        num_events += 1
    return ReplayResult(
        num_events,
        again.num_appends,
        again.num_drops,
        again.num_drops_as_logged,
        again.num_counts,
        again.inputs.num_changes if again.inputs is not None else 0,
        difference,
    )


class _Replay:
    def __init__(self, log: TraceLog) -> None:
        header = log.header
        self._cache = PageCache(
            header.geometry,
            header.num_pages,
            max_pages=header.max_pages,
            max_positions=header.max_positions,
            shiftable=header.shiftable,
        )
        self.inputs = None
        if header.cross is not None:
            self.inputs = InputReplay(header.cross, header.num_cross_pages)
        self._given_up: list[int] = []  # pages, as logged, for what is taken next
        # The log does not say what segments hold: any content of its own will do for each.
        self._contents: dict[int, bytes] = {}  # by first page
        self._num_kept = 0
        self._path = log.path
        self._choices = Choices()
        self._axes = max(header.geometry.num_rope_axes, 1)
        self._sequences: dict[int, Sequence] = {}
        self._steps: dict[int, int] = {}  # the log's token: ours
        self.num_appends = self.num_drops = self.num_drops_as_logged = self.num_counts = 0

    def play(self, event: Event) -> None:
        """Do what the event says. Raises Difference, or what the cache raises."""
        if isinstance(event, Planned):
            self._plan(event)
        elif isinstance(event, Settled):
            sequence = self._sequences[event.sequence]
            if (append := sequence.pending) is None:
                raise Difference(f"sequence {event.sequence} has nothing to settle")
            if event.committed:
                sequence.commit(append)
            else:
                sequence.abort(append)
        elif isinstance(event, Opened):
            parent = self._sequences[event.parent] if event.parent >= 0 else None
            opened = self._cache.open() if parent is None else parent.fork(purpose=event.purpose)
            self._sequences[event.sequence] = opened
        elif isinstance(event, Dropped):
            self._drop(event)
        elif isinstance(event, Decided):
            self._decide(event)
        elif isinstance(event, Truncated):
            sequence = self._sequences[event.sequence]
            sequence.truncate(event.num_tokens)
            same("pages left", event.num_pages, sequence.num_pages)
        elif isinstance(event, Closed):
            self._sequences.pop(event.sequence).close()
        elif isinstance(event, Counted):
            self._count(event)
        elif isinstance(event, Inserted):
            self._insert(event)
        else:
            self._rare(event)

    def _plan(self, event: Planned) -> None:
        sequence, kept = self._sequences[event.sequence], self._kept_pages()
        positions = np.zeros((self._axes, event.num_tokens), np.int64) if event.advance else None
        append = sequence.append(
            KINDS[event.kind],
            event.num_tokens,
            extend=event.extend,
            positions=positions,
            advance=event.advance or None,
            index=event.frame,
            time_s=event.time_s,
        )
        self.num_appends += 1
        self._choices.settle()
        self._choices.evidence.forget(event.pages)
        self._compare_given_up(kept)
        same("pages taken", event.pages, tuple(append.taken.tolist()))
        same("tokens in the last page", event.tail_tokens, append.tail_tokens)
        same("copy of the last page", event.copies, append.copy_page >= 0)

    def _drop(self, event: Dropped) -> None:
        sequence = self._sequences[event.sequence]
        self.num_drops += 1
        self.num_drops_as_logged += not self._choices.is_chosen(event, sequence)
        if event.aside:
            sequence.set_aside(np.array(event.segments, np.int64), rule=event.rule)
        else:
            sequence.drop(event.segments, rule=event.rule)

    def _decide(self, event: Decided) -> None:
        sequence = self._sequences[event.sequence]
        if event.fate == "let go":
            sequence.let_go()
        else:
            sequence.put_back()

    def _insert(self, event: Inserted) -> None:
        sequence, kept = self._sequences[event.sequence], self._kept_pages()
        pages = sequence.insert(state_of(event.segments, event.segments[-1].id + 1, self._axes))
        self._compare_given_up(kept)
        same("pages taken", sum((held.pages for held in event.segments), ()), tuple(pages))

    def _kept_pages(self) -> NDArray[np.bool_]:
        """(num_pages,) which pages can be found now."""
        allocator = self._cache.allocator
        return allocator.is_kept(np.arange(allocator.num_pages, dtype=np.int32))

    def _compare_given_up(self, kept: NDArray[np.bool_]) -> None:
        """Pages were taken, and before that ``kept`` ones could be found: the same left for it."""
        now = np.flatnonzero(kept & ~self._kept_pages()).tolist()
        same("pages given up", sorted(self._given_up), now)
        self._given_up.clear()

    def _share(self, event: Kept | Taken) -> None:
        if event.sequence < 0:
            raise TraceError(
                f"{self._path}: pages were kept before the log; only a log of everything can be "
                "replayed"
            )
        sequence = self._sequences[event.sequence]
        if isinstance(event, Kept):
            self._num_kept += 1
            content = self._contents.setdefault(event.pages[0], str(self._num_kept).encode())
            if not sequence.keep(content):
                raise Difference(f"the last segment of sequence {event.sequence} cannot be kept")
            return
        found = sequence.find(KINDS[event.kind], self._contents.get(event.pages[0], b""))
        if found is None:
            raise Difference(f"sequence {event.sequence} does not find what the log says")
        same("pages found", event.pages, tuple(found.pages.tolist()))
        sequence.take(found, index=event.frame, time_s=event.time_s)

    def _count(self, event: Counted) -> None:
        counts = self._cache.counts
        now = (counts.free, counts.live, counts.cached, counts.in_flight, counts.peak)
        self.num_counts += 1
        same("free, live, cached, in-flight pages and peak", event[1:], now)

    def _rare(self, event: Event) -> None:
        if isinstance(event, Chosen):
            chosen = self._choices.choose(event, self._sequences[event.sequence])
            same(f"segments that {event.rule} chooses", event.segments, chosen)
        elif isinstance(event, Shown):
            self._choices.evidence.tell(*event[1:])
        elif isinstance(event, StepBegun):
            appends = [self._sequences[number].pending for number in event.sequences]
            rows = [append.used_pages() for append in appends if append is not None]
            self._steps[event.step] = self._cache.allocator.begin_step(rows)
        elif isinstance(event, StepEnded):
            if event.step not in self._steps:
                raise Difference(f"step {event.step} was never begun")
            self._cache.allocator.end_step(self._steps.pop(event.step))
        elif isinstance(event, Kept | Taken):
            self._share(event)
        elif isinstance(event, GivenUp):
            self._given_up += event.pages
            for page in event.pages:
                self._contents.pop(page, None)
        elif isinstance(event, Reserved):
            self._reserve(event)
        elif isinstance(event, Held):
            self._hold(event)
        elif isinstance(event, Changed):
            self._change(event)

    def _change(self, event: Changed) -> None:
        if event.how.startswith("carried"):
            raise TraceError(
                f"{self._path}: inputs of cross-attention were there before the log; only a log of "
                "everything can be replayed"
            )
        if self.inputs is None:
            raise Difference("an input of cross-attention, and the model has none")
        self.inputs.play(event)

    def _reserve(self, event: Reserved) -> None:
        sequence = self._sequences[event.sequence]
        if event.how == "carried":
            raise TraceError(
                f"{self._path}: sequence {event.sequence} has reserved pages from before the log; "
                "only a log of everything can be replayed"
            )
        kept, before = self._kept_pages(), sequence.reserved_pages
        if event.how == "reserved":
            num_tokens = len(event.pages) * self._cache.geometry.page_size
            sequence.reserve(num_tokens, positions=np.zeros((self._axes, num_tokens), np.int64))
        else:
            sequence.release_reserve()
        self._compare_given_up(kept)
        changed = np.setxor1d(before, sequence.reserved_pages)
        same(f"pages {event.how}", sorted(event.pages), changed.tolist())

    def _hold(self, event: Held) -> None:
        """What was restored comes from a file; what was there before the log, from nowhere."""
        if event.origin == "carried":
            if event.segments:
                raise TraceError(
                    f"{self._path}: sequence {event.sequence} has pages from before the log; "
                    "only a log of everything can be replayed"
                )
            self._sequences[event.sequence] = self._cache.open()
            return
        self._sequences.pop(event.sequence).close()  # opened, and filled at once
        kept = self._kept_pages()
        restored = self._cache.import_state(
            state_of(event.segments, event.next_segment, self._axes)
        )
        self._compare_given_up(kept)
        self._sequences[event.sequence] = restored
        logged = tuple(page for segment in event.segments for page in segment.pages)
        same("pages taken", logged, tuple(restored.table.page_ids.tolist()))
