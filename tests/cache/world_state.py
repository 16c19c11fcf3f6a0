"""A cache, a simulated device behind it, a naive model beside it: their state, and what must hold.

The device holds one number per slot (which token was written there) and where it was written; it is
never cleared, so a stale or overwritten slot reads as a wrong token. Steps run on the device when
they end, in any order, as late as possible: a page reused too early shows in what the step reads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgekv.cache import Append, PageCache, Sequence, SequenceState, Step, check, sha256
from edgekv.cache.retention import RetentionRule, retention_rule
from edgekv.config import KVGeometry
from edgekv.errors import CacheError, ContextError, OutOfPagesError
from tests.cache.compare import assert_same
from tests.cache.naive import NaiveSegment, NaiveSequence, Path


@dataclass
class Pending:
    append: Append
    tokens: list[int]
    offsets: list[tuple[int, ...]]
    advance: tuple[int, ...]
    uniform: bool
    limits: list[int]
    content: bytes | None  # what the segment is to be found by
    num_drawn: int = 0  # pages from the sequence's reserve


@dataclass
class Stored:
    """A segment that was dropped, as a tier would keep it."""

    segment: NaiveSegment
    row: np.void
    valid: np.ndarray  # (pages,)
    written: np.ndarray  # (pages, R)
    slots: np.ndarray  # (pages, page_size) what the device held
    places: np.ndarray  # (R, pages, page_size) where it was written


@dataclass
class InFlight:
    step: Step
    tokens: list[int]  # that the device will write
    rows: list[list[tuple[int, ...]]]  # what each row of the page table must read as
    used: np.ndarray  # (n,) pages that it reads, writes or copies


@dataclass
class Known:
    """A segment that must be found: what is in front of it and in it says where."""

    pages: list[int]
    segment: NaiveSegment


class WorldState:
    """What a ``World`` plays with."""

    def __init__(
        self,
        *,
        num_pages: int = 24,
        page_size: int = 4,
        num_axes: int = 1,
        max_pages: int = 16,
        digest_bits: int = 256,
    ) -> None:
        """Digests of fewer bits than 256 collide, so that a segment may not be found; one that is
        found is the right one all the same."""
        geometry = KVGeometry(1, 1, 1, page_size, "float32", num_axes)
        mask = (1 << digest_bits) - 1
        self.cache = PageCache(
            geometry,
            num_pages,
            max_pages=max_pages,
            digest=lambda data: (int.from_bytes(sha256(data)) & mask).to_bytes(32),
        )
        self.collides = digest_bits < 256
        self.known: dict[Path, Known] = {}
        self.num_found = 0
        self.page_size, self.num_axes = page_size, max(num_axes, 1)
        self.rope_axes = num_axes
        self.max_pages = max_pages
        self.pairs: list[tuple[Sequence, NaiveSequence]] = []
        self.pending: dict[int, Pending] = {}  # by sequence id
        self.in_flight: list[InFlight] = []
        self.slots = np.full(num_pages * page_size, -1, np.int64)
        self.written = np.full((self.num_axes, num_pages * page_size), -(10**6), np.int64)
        self.next_token = 0
        self.stored: dict[int, dict[int, Stored]] = {}  # by sequence id, by segment id
        self.rule: RetentionRule = retention_rule("window")

    def check(self) -> None:
        snapshot = self.cache.snapshot()
        check(snapshot)
        assert len(snapshot.sequences) == len(self.pairs)
        for sequence, naive in self.pairs:
            assert sequence.num_tokens == naive.num_tokens
            assert tuple(sequence.next_position.tolist()) == naive.next_position
            table = sequence.table
            shifts = table.rows[:, 2 : 2 + self.num_axes]
            assert self.read(table.page_ids, table.valid, shifts) == naive.read()
            assert sequence.is_findable == naive.is_findable
            drawn = self.pending[sequence.id].num_drawn if sequence.id in self.pending else 0
            assert sequence.reserved_pages.size + drawn == naive.num_reserved
        assert {tuple(e.pages.tolist()) for e in snapshot.entries} == {
            tuple(k.pages) for k in self.known.values()
        }

    def read(self, ids: np.ndarray, valid: np.ndarray, shifts: np.ndarray) -> list[tuple[int, ...]]:
        """What the operator would see: each token and where it stands now."""
        page = np.repeat(np.arange(ids.size), valid)
        offset = np.arange(page.size) - np.repeat(np.cumsum(valid) - valid, valid)
        slots = ids[page] * self.page_size + offset
        now = self.written[:, slots] + shifts[page].T
        return list(zip(self.slots[slots].tolist(), *now.tolist(), strict=True))

    def _forget(self, missing: int) -> None:
        """What was given up for ``missing`` pages cannot be found any more."""
        there = {tuple(entry.pages.tolist()) for entry in self.cache.snapshot().entries}
        gone = [path for path, known in self.known.items() if tuple(known.pages) not in there]
        assert not gone or missing > 0, "nothing is given up without need"
        for path in gone:
            del self.known[path]

    def _store(self, sequence: Sequence, naive: NaiveSequence, ids: set[int]) -> None:
        kept = self._as_stored(sequence, naive, ids)
        self.stored.setdefault(sequence.id, {}).update({s.segment.id: s for s in kept})

    def _as_stored(self, sequence: Sequence, naive: NaiveSequence, ids: set[int]) -> list[Stored]:
        state, out, start = sequence.export_state(), [], 0
        for segment, row in zip(naive.segments, state.segments, strict=True):
            here = slice(start, start := start + int(row["num_pages"]))
            pages = sequence.table.page_ids[here]
            if segment.id in ids:
                places = self.written.reshape(self.num_axes, -1, self.page_size)
                out.append(
                    Stored(
                        copy.deepcopy(segment),
                        row,
                        state.valid[here],
                        state.written[here],
                        self.slots.reshape(-1, self.page_size)[pages],
                        places[:, pages],
                    )
                )
        return out

    def _drawable(self, sequence: Sequence) -> list[int]:
        """Reserved pages that no step in flight uses."""
        used = {page for f in self.in_flight for page in np.unique(f.used).tolist()}
        return [page for page in sequence.reserved_pages.tolist() if page not in used]

    def _pick(self, which: int) -> tuple[Sequence, NaiveSequence]:
        return self.pairs[which % len(self.pairs)]

    def _naive(self, sequence: Sequence) -> NaiveSequence:
        return next(n for s, n in self.pairs if s is sequence)

    def _positions(self, n: int, style: int) -> tuple[np.ndarray | None, object]:
        if style % 4 == 0:
            grid = np.stack([np.arange(n) // (1 + a) for a in range(self.num_axes)])
            return grid, None
        if style % 4 == 1:
            return None, tuple(n if a == 0 else 0 for a in range(self.num_axes))
        return None, None

    def _run(self, num_tokens: int, style: int) -> list[tuple[int, int]]:
        if style % 3:
            return []
        start = style % num_tokens
        return [(start, num_tokens)]

    def _must_fail(
        self, error: Exception, sequence: Sequence, kind: str, num_tokens: int, extend: bool
    ) -> None:
        if isinstance(error, OutOfPagesError):
            needed = sequence.pages_needed(kind, num_tokens, extend=extend)
            room = self.cache.counts.available + len(self._drawable(sequence))
            assert error.needed == needed > error.free == room
        elif isinstance(error, ContextError):
            needed = sequence.pages_needed(kind, num_tokens, extend=extend)
            assert sequence.num_pages + needed > self.max_pages
        else:
            assert sequence.pending is not None

    def _refuses(self, operation: Callable[[], object]) -> None:
        before = self.cache.snapshot()
        try:
            operation()
        except (CacheError, ValueError):
            assert_same(before, self.cache.snapshot())
        else:
            raise AssertionError("an operation that must be refused was done")

    def _check_tables(self, step: Step, chosen: list[Pending]) -> None:
        tables, start = step.tables, 0
        assert tables.page_table.shape[2] == 2 + self.rope_axes
        written = np.unique(tables.slot_mapping // self.page_size)
        assert not self.cache.allocator.is_kept(written).any(), "nobody writes what is kept"
        for b, p in enumerate(chosen):
            naive, stop = self._naive(p.append.sequence), start + len(p.tokens)
            assert tables.query_starts[b : b + 2].tolist() == [start, stop]
            at = range(naive.num_tokens, naive.num_tokens + len(p.tokens))
            assert tables.query_indices[start:stop].tolist() == list(at)
            assert tables.kv_limits[start:stop].tolist() == p.limits
            ids = tables.page_table[b, :, 0]
            assert tables.page_table[b, ids >= 0, 1].sum() == naive.num_tokens + len(p.tokens)
            start = stop

    def _run_on_device(self, flight: InFlight) -> None:
        size, tables = self.page_size, flight.step.tables
        for source, target in flight.step.copies.tolist():
            for pool in (self.slots, *self.written):
                pool[target * size : (target + 1) * size] = pool[
                    source * size : (source + 1) * size
                ]
        self.slots[tables.slot_mapping] = flight.tokens
        self.written[:, tables.slot_mapping] = tables.position_ids
        for row, expected in zip(tables.page_table, flight.rows, strict=True):
            row = row[row[:, 0] >= 0]
            if self.rope_axes:
                assert self.read(row[:, 0], row[:, 1], row[:, 2:]) == expected, "what a step reads"
            else:
                got = self.read(row[:, 0], row[:, 1], np.zeros((len(row), 1), np.int64))
                assert [t for t, _ in got] == [t for t, _ in expected], "what a step reads"


def state_of(stored: list[Stored]) -> SequenceState:
    """The segments as a sequence of their own would hold them."""
    rows = np.array([s.row for s in stored])
    written = np.concatenate([s.written for s in stored])
    starts = np.repeat(np.cumsum(rows["span"], axis=0) - rows["span"], rows["num_pages"], axis=0)
    return SequenceState(
        valid=np.concatenate([s.valid for s in stored]),
        shifts=starts.astype(np.int32) - written,
        written=written,
        segments=rows,
        next_segment_id=int(rows["id"].max()) + 1,
    )
