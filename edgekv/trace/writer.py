"""Observes a cache and writes what happens to a file, for as long as it runs.

Owns: the file, its rotation, a buffer of about 8 KiB, what rules have seen of pages.
Guarantees: never disturbs the cache: when the file cannot be written the log ends, with a reason,
    and the stream goes on; at most ``max_bytes`` on disk, in two parts (``FILE.1`` is the older);
    what was written is readable up to the last complete record, however the process ends; at most
    a second of events waits in memory while events come.
Does not know: what frames show. Called under the lock that guards the cache.
"""

from __future__ import annotations

import logging
import os
import time
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekv.atomic_file import holds_something_else
from edgekv.cache import Append, PageCache, Removal, Reserving, Sequence, Sharing, Step
from edgekv.cache.segments import KINDS as CACHE_KINDS
from edgekv.cache.segments import SYSTEM_CODE, SegmentTable
from edgekv.config import format_bytes
from edgekv.errors import CacheError, TraceError
from edgekv.trace import records
from edgekv.trace.codec import MAGIC, Header, frame_record, pack_header
from edgekv.trace.events import (
    KINDS,
    Chosen,
    Dropped,
    GivenUp,
    Held,
    HeldSegment,
    Inserted,
    Kept,
    Origin,
    Planned,
    Reserved,
    Shown,
    StepBegun,
    Taken,
)
from edgekv.trace.evidence import Evidence, first_pages
from edgekv.trace.records import RecordWriter

DEFAULT_MAX_BYTES = 64 * 2**20
MIN_BYTES = 64 * 2**10
_BUFFER_BYTES = 8 * 2**10
_FLUSH_US = 1_000_000
_RECORDS_PER_COUNT = 64

_log = logging.getLogger(__name__)


class TraceWriter:
    """A ``CacheObserver`` that logs ``cache`` from now on, until ``close``."""

    def __init__(
        self, cache: PageCache, path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        """Raises TraceError when the file cannot be made, ValueError for a limit below 64 KiB,
        CacheError while an append or a step is under way."""
        if max_bytes < MIN_BYTES:
            raise ValueError(
                f"a trace needs at least {format_bytes(MIN_BYTES)}, got {format_bytes(max_bytes)}"
            )
        pending = any(sequence.pending is not None for sequence in cache.sequences)
        if pending or cache.allocator.num_steps:
            raise CacheError("a trace begins between steps, and an append or a step is under way")
        self.path = Path(path)
        self.problem: str | None = None  # why the log ended before ``close``
        self._cache = cache
        self._evidence = Evidence()
        self._part_bytes = max_bytes // 2
        self._began_ns = time.perf_counter_ns()
        self._began_unix_s = time.time()
        self._run = os.urandom(8).hex()
        self._part = 0
        self._num_open = 0  # pending appends and steps in flight
        self._plan: Planned | None = None  # not written yet, since its commit may come next
        self._plan_of: Append | None = None
        self._plan_step: Step | None = None
        if holds_something_else(path, MAGIC):
            raise TraceError(f"{path} holds something else than a trace and is not replaced")
        try:
            self._file = self._start()
        except OSError as error:
            raise TraceError(f"cannot write the trace {path}: {error.strerror}") from None
        cache.observe(self)

    # -- what the cache tells ---------------------------------------------------------------------

    def opened(self, sequence: Sequence, parent: Sequence | None) -> None:
        self._write_plan()
        if parent is not None:
            self._emit(self._records.head(records.FORK, self._now(), sequence.id, parent.id))
        else:
            self._emit(self._records.head(records.OPEN, self._now(), sequence.id))
            if sequence.num_pages:
                self._emit(self._records.held(held(sequence, self._now(), restored=True)))
        self._after()

    def planned(self, append: Append, allocation_ns: int) -> None:
        self._write_plan()
        self._num_open += 1
        self._evidence.forget(append.taken.tolist())
        self._plan_of, self._plan_step = append, None
        self._plan = Planned(
            self._now(),
            append.sequence.id,
            KINDS.index(append.kind),
            append.extend,
            append.num_tokens,
            append.tail_tokens,
            append.copy_page >= 0,
            tuple(append.taken.tolist()),
            append.index,
            append.time_s,
            () if append.uniform else tuple(append.advance.tolist()),
            allocation_ns / 1000,
        )

    def stepped(self, step: Step) -> None:
        self._num_open += -1 if step.ended else 1
        if self._plan is not None:
            if not step.ended and self._plan_step is None and step.appends == (self._plan_of,):
                self._plan_step = step
                return
            if step.ended and step is self._plan_step:
                return
            self._write_plan()
        if step.ended:
            self._emit(self._records.head(records.END, self._now(), step.token))
        else:
            ids = tuple(append.sequence.id for append in step.appends)
            self._emit(self._records.begin(StepBegun(self._now(), step.token, ids)))
        self._after()

    def settled(self, append: Append) -> None:
        self._num_open -= 1
        committed = append.state == "committed"
        step_done = self._plan_step is None or self._plan_step.ended
        if self._plan is not None and append is self._plan_of and committed and step_done:
            took_us = self._now() - self._plan.at_us
            self._emit(self._records.plan(self._plan, written_after_us=took_us))
            self._plan = self._plan_of = self._plan_step = None
        else:
            self._write_plan()
            tag = records.COMMIT if committed else records.ABORT
            self._emit(self._records.head(tag, self._now(), append.sequence.id))
        self._after()

    def removed(
        self, sequence: Sequence, how: Removal, segment_ids: NDArray[np.int64], rule: str
    ) -> None:
        self._write_plan()
        now = self._now()
        if how == "drop":
            dropped = Dropped(now, sequence.id, rule, tuple(segment_ids.tolist()))
            self._emit(self._records.drop(dropped, self._name(rule, now)))
        elif how == "truncate":
            left = (sequence.num_tokens, sequence.num_pages)
            self._emit(self._records.head(records.CUT, now, sequence.id, *left))
        else:
            self._emit(self._records.head(records.CLOSE, now, sequence.id))
        self._after()

    def chose(
        self,
        sequence: Sequence,
        rule: str,
        offer: SegmentTable,
        num_pages: int,
        segment_ids: NDArray[np.int64],
    ) -> None:
        self._write_plan()
        table = sequence.segment_table()
        first = first_pages(table.num_pages, sequence.table.page_ids)
        for news in self._evidence.news(offer, first[np.isin(table.ids, offer.ids)]):
            self._evidence.tell(*news)
            self._emit(self._records.show(Shown(self._now(), *news)))
            self._after()
            if self.problem is not None:
                return
        event = chosen(sequence, self._now(), rule, offer, num_pages, segment_ids)
        self._emit(self._records.choose(event, self._name(rule, event.at_us)))
        self._after()

    def inserted(self, sequence: Sequence, segment_ids: NDArray[np.int64]) -> None:
        self._write_plan()
        whole = held(sequence, self._now(), restored=False)
        ids = set(segment_ids.tolist())
        back = tuple(segment for segment in whole.segments if segment.id in ids)
        self._emit(self._records.inserted(Inserted(whole.at_us, sequence.id, back)))
        self._after()

    def shared(self, how: Sharing, sequence: Sequence | None, pages: NDArray[np.int32]) -> None:
        self._write_plan()
        now, ids = self._now(), tuple(pages.tolist())
        if sequence is None:
            # What the pages are for comes next: a count in between would find half of it done.
            self._emit(self._records.give_up(GivenUp(now, ids)))
            return
        if how == "kept":
            self._emit(self._records.keep(Kept(now, sequence.id, ids)))
        else:
            self._emit(self._records.take(taken(sequence, now, ids)))
        self._after()

    def reserved(self, how: Reserving, sequence: Sequence, pages: NDArray[np.int32]) -> None:
        self._write_plan()
        event = Reserved(self._now(), sequence.id, how, tuple(pages.tolist()))
        self._emit(self._records.reserve(event))
        self._after()

    def close(self) -> None:
        """Write what is left and stop observing. Closing twice is fine."""
        if self._file.closed:
            return
        self._cache.observe(None)
        self._write_plan()
        self._count()
        self._flush()
        self._file.close()

    # -- writing ----------------------------------------------------------------------------------

    def _now(self) -> int:
        return (time.perf_counter_ns() - self._began_ns) // 1000

    def _start(self) -> FileIO:
        """Begin a part: its header, and what the cache holds."""
        now = self._now()
        cache = self._cache
        self._records = RecordWriter(now)
        self._chain = 0
        self._num_records = 0
        self._last_flush_us = now
        self._buffer = bytearray(
            pack_header(
                Header(
                    geometry=cache.geometry,
                    num_pages=cache.allocator.num_pages,
                    max_pages=cache.max_pages,
                    max_positions=cache.max_positions,
                    shiftable=cache.shiftable,
                    began_unix_s=self._began_unix_s,
                    run=self._run,
                    part=self._part,
                    part_us=now,
                )
            )
        )
        for sequence in cache.sequences:
            self._emit(self._records.held(held(sequence, now, restored=False)))
            if len(reserve := sequence.reserved_pages):
                waiting = Reserved(now, sequence.id, "carried", tuple(reserve.tolist()))
                self._emit(self._records.reserve(waiting))
        allocator = cache.allocator
        kept = np.flatnonzero(allocator.is_kept(np.arange(allocator.num_pages, dtype=np.int32)))
        if kept.size:
            self._emit(self._records.keep(Kept(now, -1, tuple(kept.tolist()))))
        self._num_bytes = 0
        file = FileIO(self.path, "wb")
        self._write_out(file)
        return file

    def _name(self, text: str, now: int) -> int:
        """The number of a name, which is told when it is new."""
        number, named = self._records.name(text, now)
        if named is not None:
            self._emit(named)
        return number

    def _emit(self, record: bytearray) -> None:
        framed, self._chain = frame_record(record, self._chain)
        self._buffer += framed
        self._num_records += 1

    def _write_plan(self) -> None:
        """Something else came between a plan and its commit: write what was held back."""
        if self._plan is None:
            return
        self._emit(self._records.plan(self._plan))
        if self._plan_step is not None:
            step, ids = self._plan_step, (self._plan.sequence,)
            self._emit(self._records.begin(StepBegun(self._plan.at_us, step.token, ids)))
            if step.ended:
                self._emit(self._records.head(records.END, self._now(), step.token))
        self._plan = self._plan_of = self._plan_step = None

    def _count(self) -> None:
        counts = self._cache.counts
        self._emit(
            self._records.head(
                records.COUNT,
                self._now(),
                counts.free,
                counts.live,
                counts.cached,
                counts.in_flight,
                counts.peak,
            )
        )

    def _after(self) -> None:
        """The cache and the log agree now: count, flush and rotate when it is time."""
        if self._num_records >= _RECORDS_PER_COUNT:
            self._num_records = 0
            self._count()
        now = self._now()
        if len(self._buffer) < _BUFFER_BYTES and now - self._last_flush_us < _FLUSH_US:
            return
        self._last_flush_us = now
        self._flush()
        if self._num_bytes >= 2 * self._part_bytes - _BUFFER_BYTES:
            self._stop("it is full, and a step has been in flight too long to begin another part")
        elif self._num_bytes >= self._part_bytes - _BUFFER_BYTES and not self._num_open:
            self._rotate()

    def _flush(self) -> None:
        if self._file.closed:
            return
        try:
            self._write_out(self._file)
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _write_out(self, file: FileIO) -> None:
        while self._buffer:  # an unbuffered file may take less than it is given
            num_written = file.write(self._buffer)
            self._num_bytes += num_written
            del self._buffer[:num_written]

    def _rotate(self) -> None:
        self._file.close()
        self._part += 1
        try:
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._file = self._start()
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _stop(self, reason: str) -> None:
        self.problem = reason
        self._cache.observe(None)
        self._buffer.clear()
        self._file.close()
        _log.warning("the trace %s ends here: %s", self.path, reason)


def taken(sequence: Sequence, at_us: int, pages: tuple[int, ...]) -> Taken:
    """The last segment of a sequence, which was found in ``pages``."""
    table = sequence.segment_table()
    kind, num_tokens = KINDS.index(CACHE_KINDS[table.kinds[-1]]), int(table.num_tokens[-1])
    index, time_s = int(table.index[-1]), float(table.time_s[-1])
    return Taken(at_us, sequence.id, kind, num_tokens, index, time_s, pages)


def chosen(
    sequence: Sequence,
    at_us: int,
    rule: str,
    offer: SegmentTable,
    num_pages: int,
    segment_ids: NDArray[np.int64],
) -> Chosen:
    """What a rule chose, and from what, as far as the sequence does not tell."""
    table = sequence.segment_table()
    is_offered = np.isin(table.ids, offer.ids)
    withheld = table.ids[~is_offered & (table.kinds != SYSTEM_CODE)]
    as_held = np.array_equal(offer.num_pages, table.num_pages[is_offered])
    return Chosen(
        at_us,
        sequence.id,
        rule,
        num_pages,
        tuple(withheld.tolist()),
        () if as_held else tuple(offer.num_pages.tolist()),
        offer.summaries.shape[1],
        tuple(segment_ids.tolist()),
    )


def held(sequence: Sequence, at_us: int, *, restored: bool) -> Held:
    """What a sequence holds now."""
    state, pages, stop = sequence.export_state(), sequence.table.page_ids, 0
    segments = []
    for row in state.segments:
        start, stop = stop, stop + int(row["num_pages"])
        kind = KINDS.index(CACHE_KINDS[row["kind"]])
        segments.append(
            HeldSegment(
                int(row["id"]),
                kind,
                int(row["num_tokens"]),
                int(row["index"]),
                float(row["time_s"]),
                pages=tuple(pages[start:stop].tolist()),
                valid=tuple(state.valid[start:stop].tolist()),
                written=tuple(state.written[start:stop].ravel().tolist()),
                span=tuple(row["span"].tolist()),
                uniform=bool(row["uniform"]),
            )
        )
    origin: Origin = "restored" if restored else "carried"
    return Held(at_us, sequence.id, origin, state.next_segment_id, tuple(segments))
