"""Observes a cache and writes what happens to a file, for as long as it runs.

Owns: when something is written, and what rules have seen of pages.
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
from pathlib import Path
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from edgekv.atomic_file import holds_something_else
from edgekv.cache import (
    Append,
    CacheObserver,
    CrossInput,
    Fate,
    InputChange,
    PageCache,
    Removal,
    Reserving,
    Sequence,
    Sharing,
    Step,
)
from edgekv.cache.segments import SegmentTable
from edgekv.errors import TraceError
from edgekv.trace import records
from edgekv.trace.codec import MAGIC
from edgekv.trace.events import (
    Decided,
    Dropped,
    GivenUp,
    Inserted,
    Kept,
    Opened,
    Reserved,
    Shown,
    StepBegun,
)
from edgekv.trace.evidence import Evidence, first_pages
from edgekv.trace.held_back import HeldBack
from edgekv.trace.log_file import DEFAULT_MAX_BYTES, LogFile, check_limit
from edgekv.trace.observed import (
    carried,
    changed,
    check_quiet,
    chosen,
    header,
    held,
    planned,
    taken,
)
from edgekv.trace.records import RecordWriter

_RECORDS_PER_COUNT = 64

_log = logging.getLogger(__name__)


class TraceWriter(CacheObserver):
    """Observes ``cache`` and its cross cache, and logs both from now on, until ``close``."""

    def __init__(
        self, cache: PageCache, path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        """Raises TraceError when the file cannot be made, ValueError for a limit below 64 KiB,
        CacheError while an append or a step is under way, or an input is being written."""
        check_limit(max_bytes)
        check_quiet(cache)
        self.path = Path(path).absolute()
        self.problem: str | None = None  # why the log ended before ``close``
        self._cache = cache
        self._evidence = Evidence()
        self._log = LogFile(self.path, max_bytes)
        self._began_ns = perf_counter_ns()
        self._began_unix_s = time.time()
        self._run = os.urandom(8).hex()
        self._part = 0
        self._num_open = 0  # pending appends, steps in flight, inputs being written
        self._held_back = HeldBack()
        for part in (self.path, self._log.older_path):
            if holds_something_else(part, MAGIC):
                raise TraceError(f"{part} holds something else than a trace and is not replaced")
        try:
            self._start()
        except BlockingIOError:
            raise TraceError(f"{path}: another log is being written there") from None
        except OSError as error:
            self._log.close()
            raise TraceError(f"cannot write the trace {path}: {error.strerror}") from None
        self.listen()

    def listen(self) -> None:
        """Be told of all that happens from now on, in place of whoever was."""
        self._tell(self)

    # -- what the cache tells ---------------------------------------------------------------------

    def opened(self, sequence: Sequence, parent: Sequence | None) -> None:
        self._write_plan()
        parent_id = -1 if parent is None else parent.id
        event = Opened(self._now(), sequence.id, parent_id, sequence.purpose)
        self._emit(self._records.open(event))
        if parent is None and sequence.num_pages:
            self._emit(self._records.held(held(sequence, self._now(), restored=True)))
        self._after()

    def planned(self, append: Append, allocation_ns: int) -> None:
        self._write_plan()
        self._num_open += 1
        self._evidence.forget(append.taken.tolist())
        self._held_back.hold(append, planned(append, self._now(), allocation_ns))

    def stepped(self, step: Step) -> None:
        self._num_open += -1 if step.ended else 1
        if self._held_back.covers(step):
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
        if (plan := self._held_back.completed(append)) is not None:
            took_us = self._now() - plan.at_us
            self._emit(self._records.plan(plan, written_after_us=took_us))
        else:
            self._write_plan()
            tag = records.COMMIT if append.state == "committed" else records.ABORT
            self._emit(self._records.head(tag, self._now(), append.sequence.id))
        self._after()

    def removed(
        self, sequence: Sequence, how: Removal, segment_ids: NDArray[np.int64], rule: str
    ) -> None:
        self._write_plan()
        now = self._now()
        if how in ("drop", "set aside"):
            self._num_open += how == "set aside"
            ids = tuple(segment_ids.tolist())
            dropped = Dropped(now, sequence.id, rule, ids, aside=how == "set aside")
            self._emit(self._records.drop(dropped, self._log.name(rule, now)))
        elif how == "truncate":
            left = (sequence.num_tokens, sequence.num_pages)
            self._emit(self._records.head(records.CUT, now, sequence.id, *left))
        else:
            self._emit(self._records.head(records.CLOSE, now, sequence.id))
        self._after()

    def decided(self, sequence: Sequence, fate: Fate) -> None:
        self._write_plan()
        self._num_open -= 1
        self._emit(self._records.decided(Decided(self._now(), sequence.id, fate)))
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
        self._emit(self._records.choose(event, self._log.name(rule, event.at_us)))
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

    def input_changed(self, how: InputChange, source: CrossInput) -> None:
        self._write_plan()
        self._num_open += (how == "reserved") - (how in ("published", "withdrawn"))
        self._emit(self._records.change(changed(source, self._now(), how)))
        self._after(is_whole=False)

    def close(self) -> None:
        """Write what is left and stop observing. Closing twice is fine."""
        if self._log.closed:
            return
        self._tell(None)
        self._write_plan()
        self._count()
        self._flush()
        self._log.close()

    # -- writing ----------------------------------------------------------------------------------

    def _now(self) -> int:
        return (perf_counter_ns() - self._began_ns) // 1000

    def _start(self) -> None:
        """Begin a part: its header, and what the cache holds."""
        now, cache = self._now(), self._cache
        since = self._began_unix_s
        self._log.begin(
            header(cache, began_unix_s=since, run=self._run, part=self._part, part_us=now)
        )
        for event in carried(cache, now):
            self._emit(self._records.carried(event))
        self._log.create()

    @property
    def _records(self) -> RecordWriter:
        return self._log.records

    def _emit(self, record: bytearray) -> None:
        self._log.add(record)

    def _write_plan(self) -> None:
        """Something else came between a plan and its commit: write what was held back."""
        if not self._held_back.is_empty:
            for record in self._held_back.written(self._records, self._now()):
                self._emit(record)

    def _count(self) -> None:
        counts = self._cache.counts
        numbers = (counts.free, counts.live, counts.cached, counts.in_flight, counts.peak)
        self._emit(self._records.head(records.COUNT, self._now(), *numbers))

    def _tell(self, observer: TraceWriter | None) -> None:
        self._cache.observe(observer)
        if self._cache.cross is not None:
            self._cache.cross.observe(observer)

    def _after(self, *, is_whole: bool = True) -> None:
        """Flush when it is time; count and rotate too when the cache and the log agree now."""
        if is_whole and self._log.num_records >= _RECORDS_PER_COUNT:
            self._log.num_records = 0
            self._count()
        if self._log.is_due(self._now()):
            self._flush()
        if is_whole and not self._num_open and self._log.is_part_full:
            self._flush()
            self._rotate()

    def _flush(self) -> None:
        if self._log.closed:
            return
        if self._log.is_full:
            self._stop("it is full, and a step has been in flight too long to begin another part")
            return
        try:
            self._log.flush()
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _rotate(self) -> None:
        if self._log.closed:
            return
        self._part += 1
        try:
            self._start()
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _stop(self, reason: str) -> None:
        self.problem = reason
        self._tell(None)
        self._log.close()
        _log.warning("the trace %s ends here: %s", self.path, reason)
