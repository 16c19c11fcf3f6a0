"""One context: a page table and its typed segments, changed only as a whole.

Owns: one sequence's layout and the references it holds on pages, pending ones included.
Guarantees: an operation that fails changes nothing; tokens of an append are invisible until its
    commit and an abort leaves no trace; a page never holds tokens of two segments; new tokens are
    written at their current position, in pages with shift 0; what others can find is only what
    nothing was dropped in front of, and is never written again.
Does not know: what tokens are, which segments should leave, what executes a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Collection
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.append import Append, Runs, limits_for, relative_positions, slots_for
from edgekv.cache.cross import CrossInput
from edgekv.cache.identity import Entry
from edgekv.cache.layout import Layout
from edgekv.cache.pool import PoolState
from edgekv.cache.reserve import Reserve
from edgekv.cache.segments import (
    KIND_CODES,
    KINDS,
    Segment,
    SegmentTable,
    checked_label,
)
from edgekv.cache.snapshot import SequenceSnapshot, frozen
from edgekv.cache.state import SequenceState
from edgekv.cache.table import SHIFT, PageTable
from edgekv.errors import CacheError, ContextError
from edgekv.types import SegmentKind

if TYPE_CHECKING:
    from typing_extensions import Self


class Tail(NamedTuple):
    """The last page, as far as an append continues it."""

    page: int
    valid: int  # tokens in it before the append
    num_tokens: int  # tokens of the append that go into it, 0 = none
    copy: bool  # others hold or use it: it must be copied first


_NO_TAIL = Tail(-1, 0, 0, copy=False)
_NO_IDS = np.empty(0, dtype=np.int64)


class Sequence:
    """Tokens in pages. Made by a ``PageCache`` and by ``fork``; usable in a ``with`` block."""

    def __init__(self, pool: PoolState, layout: Layout, found_by: Entry | None) -> None:
        """Takes ``layout`` over, and with it one reference on each of its pages. ``found_by`` is
        the entry of its last segment, None for a context that is private."""
        self._pool = pool
        self.id = next(pool.ids)
        self._layout = layout
        self._found_by = found_by
        self._pending: Append | None = None
        self._reserve = Reserve(pool)
        self._closed = False
        self._source: CrossInput | None = None
        pool.sequences[self.id] = self

    @property
    def table(self) -> PageTable:
        """The committed page table: to read, never to write."""
        return self._layout.table

    @property
    def num_tokens(self) -> int:
        return self._layout.num_tokens

    @property
    def num_pages(self) -> int:
        return self._layout.table.num_pages

    @property
    def num_segments(self) -> int:
        return len(self._layout.segments)

    @property
    def next_position(self) -> NDArray[np.int32]:
        """(R,) where the next token stands on each axis; not the number of tokens. A copy."""
        return np.array(self._layout.next_position)

    @property
    def next_segment_id(self) -> int:
        """The id that the next segment gets."""
        return self._layout.segments.next_id

    @property
    def pending(self) -> Append | None:
        return self._pending

    @property
    def reserved_pages(self) -> NDArray[np.int32]:
        """(n,) pages held for appends to come; a copy."""
        return np.array(self._reserve.pages)

    @property
    def source(self) -> CrossInput | None:
        """What tokens appended from now on see by cross-attention."""
        return self._source

    def look_at(self, source: CrossInput | None) -> None:
        """Let tokens appended from now on see ``source``, which is held until another follows.

        What comes then depends on it, so the context is private from now on."""
        self._require_idle()
        if source is not None:
            if self._pool.cross is None:
                raise CacheError("this model has no cross-attention")
            source.retain()
            self.make_private()
        if self._source is not None:
            self._source.release()
        self._source = source

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first, as views: for people and tests, costs one object each."""
        return self._layout.views()

    def segment_table(self) -> SegmentTable:
        """All segments as columns, oldest first: what retention rules read."""
        return self._layout.segments.table()

    def private_pages(self) -> NDArray[np.int32]:
        """(num_segments,) pages of each segment that nobody else holds: what a drop frees."""
        alone = self._pool.allocator.ref_counts(self.table.page_ids) == 1
        owner = np.repeat(np.arange(self.num_segments), self._layout.segments.rows["num_pages"])
        return np.bincount(owner[alone], minlength=self.num_segments).astype(np.int32)

    def holders(self) -> NDArray[np.int32]:
        """(num_pages,) how many sequences hold each page, this one included."""
        return self._pool.allocator.ref_counts(self.table.page_ids)

    def summaries(self) -> NDArray[np.float32]:
        """(num_segments, width) what each frame's pages say, NaN where no summary is kept."""
        return self._pool.summaries.of(self.table.page_ids, self._layout.segments.rows)

    def heat(self) -> NDArray[np.float64]:
        """(num_segments,) how much attention each segment's pages got, older use fading."""
        rows = self._layout.segments.rows
        return self._pool.heat.of(self.table.page_ids, rows["num_pages"])

    def pages_needed(self, kind: SegmentKind, num_tokens: int, *, extend: bool = False) -> int:
        """Pages that ``append`` with the same arguments would take now."""
        tail = self._tail_for(kind, num_tokens, extend=extend, index=-1)
        return self._pool.geometry.pages_for(num_tokens - tail.num_tokens) + tail.copy

    def reserve(self, num_tokens: int, *, positions: NDArray[np.integer] | None = None) -> None:
        """Hold the pages that ``num_tokens`` more tokens of a new segment will need, beside those
        held already. Appends draw from them first; a fork does not inherit them.

        ``positions`` are the tokens' as in ``append``. Raises as ``append``; nothing is changed
        then. What is left goes back with ``release_reserve`` or when the sequence closes.
        """
        self._require_idle()
        if num_tokens < 1:
            raise ValueError(f"a reserve is for at least 1 token, got {num_tokens}")
        pool = self._pool
        relative, _ = relative_positions(pool.num_axes, num_tokens, positions, None)
        num_pages = pool.geometry.pages_for(num_tokens)
        absolute = relative + self._layout.next_position[:, None]
        self._check_room(num_pages, absolute, num_waiting=self._reserve.pages.size)
        pool.observer.reserved("reserved", self, self._reserve.fill(num_pages))

    def release_reserve(self) -> None:
        """Give back what no append has drawn. Without a reserve this does nothing."""
        self._require_idle()
        pages = self._reserve.empty()
        if pages.size:
            self._pool.observer.reserved("given back", self, pages)

    def append(
        self,
        kind: SegmentKind,
        num_tokens: int,
        *,
        extend: bool = False,
        positions: NDArray[np.integer] | None = None,
        advance: int | Collection[int] | None = None,
        bidirectional: bool | Runs = False,
        index: int = -1,
        time_s: float = float("nan"),
        mass_weight: float = 0.0,
    ) -> Append:
        """Plan ``num_tokens`` more tokens; they count once the step that computes them commits.

        ``extend`` continues the last segment, which must be of the same kind (and the same frame);
        otherwise a new segment starts on a page of its own. ``positions`` (R, num_tokens) are
        relative to ``next_position``, which moves by ``advance`` (one number, or one per axis).
        ``bidirectional`` tokens see to the end of the append, or of their ``(start, stop)`` run.
        What the tokens look at counts ``mass_weight`` times into the mass of the pages.

        Raises OutOfPagesError, ContextError (table or positions full), CacheError (an append is
        pending, or the sequence is closed), ValueError; nothing is changed then.
        """
        self._require_idle()
        pool = self._pool
        index, time_s = checked_label(index, time_s)
        tail = self._tail_for(kind, num_tokens, extend=extend, index=index)
        relative, move = relative_positions(pool.num_axes, num_tokens, positions, advance)
        absolute = relative + self._layout.next_position[:, None]
        indices = np.arange(self.num_tokens, self.num_tokens + num_tokens, dtype=np.int32)
        limits = limits_for(indices, bidirectional)
        num_new = pool.geometry.pages_for(num_tokens - tail.num_tokens)
        self._check_room(num_new, absolute, num_own=self._reserve.drawable().size)
        began = perf_counter_ns()
        taken, num_reserved = self._reserve.take(num_new + tail.copy)
        allocation_ns = perf_counter_ns() - began
        pages = taken[int(tail.copy) :]
        copy_page = int(taken[0]) if tail.copy else -1
        first_slot = (copy_page if tail.copy else tail.page) * pool.geometry.page_size + tail.valid
        self._stage(pages, num_tokens - tail.num_tokens, extend=extend)
        self._pending = Append(
            sequence=self,
            kind=kind,
            num_tokens=num_tokens,
            extend=extend,
            tail_tokens=tail.num_tokens,
            copy_page=copy_page,
            pages=pages,
            slots=slots_for(
                first_slot, tail.num_tokens, pages, num_tokens, pool.geometry.page_size
            ),
            positions=absolute,
            query_indices=indices,
            kv_limits=limits,
            advance=move,
            uniform=positions is None and (advance is None or bool((move == num_tokens).all())),
            index=index,
            time_s=time_s,
            mass_weight=mass_weight,
            num_reserved=num_reserved,
        )
        pool.observer.planned(self._pending, allocation_ns)
        return self._pending

    def commit(self, append: Append) -> None:
        """The append's tokens are written: count them. Called by the step."""
        self._require_pending(append)
        if append.extend and self._is_found:
            self._found_by = None  # its last segment is not the one that is kept any more
        replaced = self._layout.grow(append)
        self._pool.summaries.forget(append.taken)
        self._pool.heat.forget(append.taken)
        if replaced.size:
            self._pool.allocator.release(replaced)
        append.state = "committed"
        self._pending = None
        self._pool.observer.settled(append)

    def abort(self, append: Append) -> None:
        """Give the append's pages back, those that were reserved to the reserve."""
        self._require_pending(append)
        # A step that carried the append has shown them, and its tokens in the last page before.
        self.table.changed(max(self.num_pages - 1, 0))
        taken = append.taken
        self._reserve.put_back(taken[: append.num_reserved])
        self._pool.allocator.release(taken[append.num_reserved :])
        append.state = "aborted"
        self._pending = None
        self._pool.observer.settled(append)

    def fork(self) -> Sequence:
        """A child with the same tokens, sharing every page. A pending append stays the parent's."""
        self._require_open()
        self._pool.allocator.retain(self.table.page_ids)
        child = Sequence(self._pool, self._layout.copy(), self._found_by)
        child.look_at(self._source)
        self._pool.observer.opened(child, self)
        return child

    @property
    def is_findable(self) -> bool:
        """Whether other contexts can find what this one holds, and this one what comes next."""
        return self._is_found

    def find(self, kind: SegmentKind, content: bytes) -> Entry | None:
        """The segment of this content that some context of the pool, the same as this one up to
        here, has computed: to ``take``. None when there is none, or this context is private."""
        self._require_idle()
        if self._found_by is None or not self._is_found:
            return None
        return self._pool.index.find(self._found_by, KIND_CODES[kind], content)

    def take(self, entry: Entry, *, index: int = -1, time_s: float = float("nan")) -> None:
        """Go on with a segment that ``find`` has just found, in the pages it is in."""
        self._require_idle()
        index, time_s = checked_label(index, time_s)
        if entry.parent is not self._found_by or not self._is_found:
            raise CacheError("a segment was found behind another context than this one")
        self._pool.index.use(entry)
        self._layout.join(entry, self._pool.geometry.page_size, index, time_s)
        self._found_by = entry
        self._pool.index.touch(self.table.page_ids)
        self._pool.observer.shared("taken", self, entry.pages)

    def keep(self, content: bytes) -> bool:
        """Let others find the last segment, which holds ``content``: all that its keys and values
        depend on beside what is in front of it. Nobody writes its pages from now on.

        False when it cannot be found: the context is private, because something was dropped from
        it, a segment was not kept, or another context has the place in the index.
        """
        self._require_idle()
        parent = self._found_by
        if parent is None or self.num_segments != parent.depth + 1:
            return False
        row = self._layout.segments.last
        pages = self.table.page_ids[-int(row["num_pages"]) :].copy()
        entry = self._pool.index.keep(
            Entry(
                parent=parent,
                kind=int(row["kind"]),
                content=content,
                pages=pages,
                num_tokens=int(row["num_tokens"]),
                span=row["span"].copy(),
                uniform=bool(row["uniform"]),
                depth=parent.depth + 1,
                end=self.num_tokens,
            )
        )
        if entry is None:
            return False
        self._found_by = entry
        self._pool.index.touch(self.table.page_ids)
        self._pool.observer.shared("kept", self, pages)
        return True

    def make_private(self) -> None:
        """Let nobody find what comes from now on, and find nothing: to be called by whatever makes
        the context another than its segments' contents tell."""
        self._found_by = None

    def chosen(
        self, rule: str, offer: SegmentTable, num_pages: int, segment_ids: NDArray[np.int64]
    ) -> None:
        """``rule`` has chosen ``segment_ids`` (k,) of ``offer`` for ``num_pages``: for whoever
        observes the cache. Nothing changes."""
        self._pool.observer.chose(self, rule, offer, num_pages, segment_ids)

    def drop(self, segment_ids: Iterable[int], *, rule: str = "") -> None:
        """Forget whole segments; what stands behind them moves up, no key is touched.

        ``rule`` says who chose them, for whoever observes the cache.

        Raises ValueError for unknown or repeated ids, CacheError for system segments and for
        sequences whose positions cannot be shifted.
        """
        self._require_idle()
        ids = np.fromiter(segment_ids, dtype=np.int64)
        if not ids.size:
            return
        if not self._pool.shiftable:
            raise CacheError(
                "this model's positions cannot be shifted, so no segment can be dropped"
            )
        released = self._layout.drop(ids)
        self._found_by = None
        self._pool.allocator.release(released)
        self._pool.observer.removed(self, "drop", ids, rule)

    def insert(self, state: SequenceState) -> NDArray[np.int32]:
        """Bring dropped segments back to where they stood: the inverse of ``drop``, (n,) pages.

        ``state`` says what they were, with the ids they had, which give them their place; what
        stands behind moves towards the end, no key is touched. The caller fills the pages, in
        order, before the next step. Raises ValueError for ids that are here already, not given out
        yet or not growing and for a state that no sequence of this cache can hold, OutOfPagesError,
        ContextError and, where positions cannot be shifted, CacheError; nothing is changed then.
        """
        self._require_idle()
        pool = self._pool
        if not pool.shiftable:
            raise CacheError(
                "this model's positions cannot be shifted, so no segment can be inserted"
            )
        self._layout.check_insertable(state, pool.geometry.page_size)
        span = state.segments["span"].sum(axis=0)
        self._check_room(state.num_pages, (self._layout.next_position + span - 1)[:, None])
        pages = pool.allocate(state.num_pages)
        self.make_private()
        pool.summaries.forget(pages)
        self._layout.insert(state, pages)
        pool.observer.inserted(self, state.segments["id"].copy())
        return pages

    def truncate(self, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` tokens.

        A frame, or a segment with positions of its own, leaves whole or not at all: ValueError when
        the cut falls inside one.
        """
        self._require_idle()
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot keep {num_tokens} of {self.num_tokens} tokens")
        if num_tokens < self.num_tokens:
            self._pool.allocator.release(self._layout.truncate(num_tokens))
            if self._found_by is not None and num_tokens < self._found_by.end:
                self._found_by = None
            self._pool.observer.removed(self, "truncate", _NO_IDS, "")

    def close(self) -> None:
        """Give every page back, a pending append's and reserved ones too. Closing twice is
        allowed."""
        if self._closed:
            return
        if self._pending is not None:
            self.abort(self._pending)
        if self._found_by is not None:
            self._pool.index.touch(self._found_by.path_pages())
        self._pool.allocator.release(self._layout.clear())
        self._reserve.empty()
        self._found_by = None
        if self._source is not None:
            self._source.release()
            self._source = None
        self._closed = True
        del self._pool.sequences[self.id]
        self._pool.observer.removed(self, "close", _NO_IDS, "")

    def export_state(self) -> SequenceState:
        """What it takes to continue in another pool, beside what the pages hold."""
        self._require_open()
        return self._layout.state()

    def snapshot(self) -> SequenceSnapshot:
        """Everything the sequence knows, as read-only copies."""
        pending = self._pending.taken if self._pending is not None else np.empty(0, dtype=np.int32)
        return SequenceSnapshot(
            id=self.id,
            num_tokens=self.num_tokens,
            next_position=frozen(self._layout.next_position),
            page_table=frozen(self.table.rows),
            segments=frozen(self._layout.segments.rows),
            pending_pages=frozen(pending),
            reserved_pages=frozen(self._reserve.pages),
            found_by=frozen(self._found_by.path_pages()) if self._found_by is not None else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _is_found(self) -> bool:
        """Whether the last segment is the one that the index knows this context by."""
        return self._found_by is not None and self._found_by.depth == self.num_segments

    def _tail_for(self, kind: str, num_tokens: int, *, extend: bool, index: int) -> Tail:
        """What an append can put into the last page."""
        if kind not in KIND_CODES:
            raise ValueError(f"segment kind must be one of {', '.join(KINDS)}, got {kind!r}")
        if num_tokens < 1:
            raise ValueError(f"an append needs at least 1 token, got {num_tokens}")
        if not extend:
            return _NO_TAIL
        if not self.num_segments:
            raise ValueError(f"cannot extend a {kind} segment, the sequence is empty")
        last = self._layout.segments.last
        if last["kind"] != KIND_CODES[kind]:
            raise ValueError(f"cannot extend a {KINDS[last['kind']]} segment with {kind} tokens")
        if index not in (-1, last["index"]):
            raise ValueError(f"cannot extend frame {last['index']} with tokens of frame {index}")
        page, valid = self.table.rows[-1, :SHIFT].tolist()
        fitting = min(num_tokens, self._pool.geometry.page_size - valid)
        if fitting == 0 or self.table.tail_has_moved:
            return _NO_TAIL
        return Tail(page, valid, fitting, copy=not self._pool.allocator.is_writable(page))

    def _stage(self, pages: NDArray[np.int32], num_tokens: int, *, extend: bool) -> None:
        """Prepare table entries for ``num_tokens`` tokens in new ``pages`` of one segment."""
        base = self._layout.next_position
        if extend:
            base = base - self._layout.segments.last["span"]
        self.table.stage(pages, num_tokens, self._pool.geometry.page_size, base)

    def _check_room(
        self,
        num_new: int,
        positions: NDArray[np.int64],
        *,
        num_own: int = 0,  # pages that need not come from the pool
        num_waiting: int = 0,  # pages that will be in the table by then
    ) -> None:
        pool, num_held = self._pool, self.num_pages + num_waiting
        # A pool that has too few pages is the allocator's error, also for the only sequence in it.
        if pool.max_pages - num_held < num_new <= pool.allocator.counts.available + num_own:
            held = f"the sequence holds {num_held} of at most {pool.max_pages}"
            raise ContextError(f"need {num_new} more pages, {held}")
        if pool.max_positions is not None and (last := int(positions.max())) >= pool.max_positions:
            raise ContextError(
                f"need position {last}, the model's last is {pool.max_positions - 1}"
            )

    def _require_open(self) -> None:
        if self._closed:
            raise CacheError(f"sequence {self.id} is closed")

    def _require_idle(self) -> None:
        self._require_open()
        if self._pending is not None:
            raise CacheError(f"sequence {self.id} has an append pending: commit or abort it first")

    def _require_pending(self, append: Append) -> None:
        if append is not self._pending:
            raise CacheError(
                f"the append is {append.state}, only a pending one can be committed or aborted"
            )
