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
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.append import Append, Runs
from edgekv.cache.cross import CrossInput
from edgekv.cache.identity import Entry
from edgekv.cache.layout import Layout
from edgekv.cache.observer import Purpose
from edgekv.cache.planning import Planner
from edgekv.cache.pool import PoolState
from edgekv.cache.segments import KIND_CODES, SegmentTable, checked_label
from edgekv.cache.state import SequenceState
from edgekv.cache.view import Aside, SequenceView
from edgekv.errors import CacheError
from edgekv.types import SegmentKind
from edgekv.uncopied import uncopied

if TYPE_CHECKING:
    from typing_extensions import Self


_NO_IDS = np.empty(0, dtype=np.int64)


def _ids_of(given: Iterable[int]) -> NDArray[np.int64]:
    listed = list(given)
    return np.array(listed) if listed else _NO_IDS


@uncopied("use its fork()")
class Sequence(SequenceView):
    """Tokens in pages. Made by a ``PageCache`` and by ``fork``; usable in a ``with`` block."""

    def __init__(
        self,
        pool: PoolState,
        layout: Layout,
        found_by: Entry | None,
        *,
        purpose: Purpose = "context",
    ) -> None:
        """Takes ``layout`` over, and with it one reference on each of its pages. ``found_by`` is
        the entry of its last segment, None for a context that is private."""
        super().__init__(pool, layout, found_by)
        self.purpose = purpose
        self._planner = Planner(pool, layout, self._reserve)
        pool.sequences[self.id] = self

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

    def pages_needed(self, kind: SegmentKind, num_tokens: int, *, extend: bool = False) -> int:
        """Pages that ``append`` with the same arguments would take now."""
        return self._planner.pages_needed(kind, num_tokens, extend=extend)

    def reserve(self, num_tokens: int, *, positions: NDArray[np.integer] | None = None) -> None:
        """Hold the pages that ``num_tokens`` more tokens of a new segment will need, beside those
        held already. Appends draw from them first; a fork does not inherit them.

        ``positions`` are the tokens' as in ``append``. Raises as ``append``; nothing is changed
        then. What is left goes back with ``release_reserve`` or when the sequence closes.
        """
        self._require_idle()
        if num_tokens < 1:
            raise ValueError(f"a reserve is for at least 1 token, got {num_tokens}")
        pages = self._planner.fill_reserve(num_tokens, positions)
        self._pool.observer.reserved("reserved", self, pages)

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
        if extend and self._aside is not None and self.num_tokens == self._aside.num_tokens:
            raise CacheError(
                f"sequence {self.id} has set something aside: what it ended with cannot grow"
            )
        self._pending, allocation_ns = self._planner.plan(
            self,
            kind,
            num_tokens,
            extend=extend,
            positions=positions,
            advance=advance,
            bidirectional=bidirectional,
            index=index,
            time_s=time_s,
            mass_weight=mass_weight,
        )
        try:
            self._pool.observer.planned(self._pending, allocation_ns)
        except BaseException:
            self.abort(self._pending)
            raise
        return self._pending

    def commit(self, append: Append) -> None:
        """The append's tokens are written: count them. Called by the step."""
        self._require_pending(append)
        if append.extend and self._lineage.reaches_end:
            self._lineage.entry = None  # its last segment is not the one that is kept any more
        self._planner.commit(append)
        append.state = "committed"
        self._pending = None
        self._pool.observer.settled(append)

    def abort(self, append: Append) -> None:
        """Give the append's pages back, those that were reserved to the reserve."""
        self._require_pending(append)
        taken = append.taken
        self._reserve.put_back(taken[: append.num_reserved])
        self._pool.allocator.release(taken[append.num_reserved :])
        append.state = "aborted"
        self._pending = None
        self._pool.observer.settled(append)

    def fork(self, *, purpose: Purpose = "context") -> Sequence:
        """A child with the same tokens, sharing every page. A pending append stays the parent's.
        ``purpose`` is for whoever observes the cache."""
        self._require_open()
        layout = self._layout.copy()
        self._pool.allocator.retain(self.table.page_ids)
        child = Sequence(self._pool, layout, self._lineage.entry, purpose=purpose)
        if self._source is not None:
            child.look_at(self._source)
        self._pool.observer.opened(child, self)
        return child

    def find(self, kind: SegmentKind, content: bytes) -> Entry | None:
        """The segment of this content that some context of the pool, the same as this one up to
        here, has computed: to ``take``. None when there is none, or this context is private."""
        self._require_idle()
        return self._lineage.find(KIND_CODES[kind], content)

    def take(self, entry: Entry, *, index: int = -1, time_s: float = float("nan")) -> None:
        """Go on with a segment that ``find`` has just found, in the pages it is in."""
        self._require_idle()
        index, time_s = checked_label(index, time_s)
        self._lineage.take(entry, self._pool.geometry.page_size, index, time_s)
        self._pool.observer.shared("taken", self, entry.pages)

    def keep(self, content: bytes) -> bool:
        """Let others find the last segment, which holds ``content``: all that its keys and values
        depend on beside what is in front of it. Nobody writes its pages from now on.

        False when it cannot be found: the context is private, because something was dropped from
        it, a segment was not kept, or another context has the place in the index.
        """
        self._require_idle()
        pages = self._lineage.keep(content)
        if pages is None:
            return False
        self._pool.observer.shared("kept", self, pages)
        return True

    def make_private(self) -> None:
        """Let nobody find what comes from now on, and find nothing: to be called by whatever makes
        the context another than its segments' contents tell."""
        self._lineage.entry = None

    def chosen(
        self, rule: str, offer: SegmentTable, num_pages: int, segment_ids: NDArray[np.int64]
    ) -> None:
        """``rule`` has chosen ``segment_ids`` (k,) of ``offer`` for ``num_pages``: for whoever
        observes the cache. Nothing changes."""
        self._pool.observer.chose(self, rule, offer, num_pages, segment_ids)

    def drop(self, segment_ids: Iterable[int] | NDArray[np.int64], *, rule: str = "") -> int:
        """Forget whole segments; what stands behind them moves up, no key is touched. How many of
        them were frames.

        ``rule`` says who chose them, for whoever observes the cache.

        Raises ValueError for unknown or repeated ids, CacheError for system segments and for
        sequences whose positions cannot be shifted.
        """
        ids = segment_ids if isinstance(segment_ids, np.ndarray) else _ids_of(segment_ids)
        self._require_settled()
        if not ids.size:
            return 0
        pages, num_frames = self._take_out(ids, save=False)
        self._pool.allocator.release(pages)
        self._pool.observer.removed(self, "drop", ids, rule)
        return num_frames

    def set_aside(self, ids: NDArray[np.int64], *, rule: str = "") -> int:
        """As ``drop``, of ``ids`` (k > 0,), until it is decided what becomes of them: their pages
        are held until ``let_go``, and ``put_back`` undoes it. Until then nothing else leaves."""
        self._require_settled()
        found_by = self._lineage.entry
        pages, num_frames = self._take_out(ids, save=True)
        self._aside = Aside(pages, found_by, self.num_tokens)
        self._pool.observer.removed(self, "set aside", ids, rule)
        return num_frames

    def let_go(self) -> None:
        """Give up what was set aside."""
        if self._aside is not None:
            pages = self._aside.pages
            self._pool.allocator.ledger.release_at(self._layout.dropped_at, pages.size)
            self._aside = None
            self._pool.observer.decided(self, "let go")

    def put_back(self) -> None:
        """What was set aside is where it was, and what came since is gone; pages that it drew from
        the reserve go back to the pool."""
        if self._aside is None:
            return
        if self._pending is not None:
            self.abort(self._pending)
        self.truncate(self._aside.num_tokens)
        self._layout.restore()
        self._lineage.entry = self._aside.found_by
        self._aside = None
        self._pool.observer.decided(self, "put back")

    def _take_out(self, ids: NDArray[np.int64], *, save: bool) -> tuple[NDArray[np.int32], int]:
        """Drop segments ``ids`` (k > 0,): (n,) their pages, still held, and how many frames."""
        if not self._pool.shiftable:
            self._refuse_shift("dropped")
        taken = self._layout.drop(ids, save=save)
        self._lineage.entry = None  # what is left is another context than its contents tell
        return taken

    def insert(self, state: SequenceState) -> NDArray[np.int32]:
        """Bring dropped segments back to where they stood: the inverse of ``drop``, (n,) pages.

        ``state`` says what they were, with the ids they had, which give them their place; what
        stands behind moves towards the end, no key is touched. The caller fills the pages, in
        order, before the next step. Raises ValueError for ids that are here already, not given out
        yet or not growing and for a state that no sequence of this cache can hold, OutOfPagesError,
        ContextError and, where positions cannot be shifted, CacheError; nothing is changed then.
        """
        self._require_settled()
        pool = self._pool
        if not pool.shiftable:
            self._refuse_shift("inserted")
        self._layout.check_insertable(state, pool.geometry.page_size)
        span = state.segments["span"].sum(axis=0)
        last_position = int((self._layout.next_position + span).max()) - 1
        self._planner.check_room(state.num_pages, last_position)
        pages = pool.allocate(state.num_pages)
        self.make_private()
        self._layout.insert(state, pages)
        pool.observer.inserted(self, state.segments["id"].copy())
        return pages

    def truncate(self, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` tokens.

        A frame, or a segment with positions of its own, leaves whole or not at all: ValueError when
        the cut falls inside one.
        """
        self._require_idle()
        least = 0 if self._aside is None else self._aside.num_tokens
        if not least <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot keep {num_tokens} of {self.num_tokens} tokens")
        if num_tokens < self.num_tokens:
            self._pool.allocator.release(self._layout.truncate(num_tokens))
            found_by = self._lineage.entry
            if found_by is not None and num_tokens < found_by.end:
                self.make_private()
            self._pool.observer.removed(self, "truncate", _NO_IDS, "")

    def close(self) -> None:
        """Give every page back, a pending append's and reserved ones too. Closing twice is
        allowed."""
        if self._closed:
            return
        if self._pending is not None:
            self.abort(self._pending)
        self.let_go()
        self._lineage.end()
        self._pool.allocator.release(self._layout.clear())
        self._reserve.empty()
        if self._source is not None:
            self._source.release()
            self._source = None
        self._closed = True
        del self._pool.sequences[self.id]
        self._pool.observer.removed(self, "close", _NO_IDS, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _require_idle(self) -> None:
        if self._closed or self._pending is not None:
            self._refuse_busy()

    def _refuse_busy(self) -> None:
        self._require_open()
        if self._pending is not None:
            raise CacheError(f"sequence {self.id} has an append pending: commit or abort it first")

    def _require_settled(self) -> None:
        if self._closed or self._pending is not None:
            self._refuse_busy()
        if self._aside is not None:
            raise CacheError(
                f"sequence {self.id} has set something aside: let it go or put it back first"
            )

    def _refuse_shift(self, what: str) -> NoReturn:
        raise CacheError(f"this model's positions cannot be shifted, so no segment can be {what}")

    def _require_pending(self, append: Append) -> None:
        if append is not self._pending:
            raise CacheError(
                f"the append is {append.state}, only a pending one can be committed or aborted"
            )
