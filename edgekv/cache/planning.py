"""Planning an append: which pages it takes, where its tokens will stand, whether there is room.

Owns: what is asked of the native call that plans (``AppendPlanner``), and what a refusal is called.
Guarantees: a plan that cannot be made changes nothing; what it continues is continued only in a
    page that nobody else holds, uses or keeps, otherwise in a copy of it; no position is beyond
    what the model and a page table can count.
Does not know: when a plan is settled, what becomes of its pages then.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from time import perf_counter_ns
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.append import (
    Append,
    Runs,
    checked_advance,
    checked_positions,
    checked_runs,
    checked_size,
    refuse_negative,
)
from edgekv.cache.layout import Layout
from edgekv.cache.pool import PoolState
from edgekv.cache.reserve import Reserve
from edgekv.cache.segments import KIND_CODES, KINDS, checked_label
from edgekv.errors import ContextError, OutOfPagesError
from edgekv.native import appends
from edgekv.native.appends import LARGEST, AppendPlanner, Request
from edgekv.types import SegmentKind

if TYPE_CHECKING:
    from edgekv.cache.sequence import Sequence


class Planner:
    """Plans the appends to ``layout``, in pages of ``pool``, those in ``reserve`` first."""

    def __init__(self, pool: PoolState, layout: Layout, reserve: Reserve) -> None:
        self._pool = pool
        self._layout = layout
        self._reserve = reserve
        self._end_position = LARGEST if pool.max_positions is None else pool.max_positions
        self._native = AppendPlanner(
            pool.allocator.ledger,
            layout.table.memory,
            layout.segments.memory,
            layout.next_position,
            page_size=pool.geometry.page_size,
            end_position=self._end_position,
        )

    def pages_needed(self, kind: str, num_tokens: int, *, extend: bool) -> int:
        """Pages that the plan of an append would take now."""
        code, num_tokens = checked_size(kind, num_tokens)
        self._describe()
        num_pages = self._native.num_pages(code, num_tokens, extend=extend)
        if num_pages < 0:
            self._refuse_label(-num_pages, code, -1)
        return num_pages

    def check_room(
        self,
        num_new: int,
        last_position: int,
        *,
        num_own: int = 0,  # pages that need not come from the pool
        num_waiting: int = 0,  # pages that will be in the table by then
    ) -> None:
        """Raise ContextError when ``num_new`` pages or a position are beyond a sequence."""
        pool, num_held = self._pool, self._layout.table.num_pages + num_waiting
        # A pool that has too few pages is the allocator's error, also for the only sequence in it.
        if pool.max_pages - num_held < num_new <= pool.allocator.counts.available + num_own:
            held = f"the sequence holds {num_held} of at most {pool.max_pages}"
            raise ContextError(f"need {num_new} more pages, {held}")
        if last_position >= self._end_position:
            whose = "a page table's" if pool.max_positions is None else "the model's"
            raise ContextError(
                f"need position {last_position}, {whose} last is {self._end_position - 1}"
            )

    def fill_reserve(
        self, num_tokens: int, positions: NDArray[np.integer] | None
    ) -> NDArray[np.int32]:
        """Reserve the pages of ``num_tokens`` more tokens of a new segment: (n,) pages."""
        pool = self._pool
        relative = checked_positions(pool.num_axes, num_tokens, positions)
        if relative is not None and relative.min() < 0:
            refuse_negative(relative)
        num_pages = pool.geometry.pages_for(num_tokens)
        last = self._last_position(num_tokens, relative)
        self.check_room(num_pages, last, num_waiting=self._reserve.pages.size)
        return self._reserve.fill(num_pages)

    def plan(
        self,
        sequence: Sequence,
        kind: SegmentKind,
        num_tokens: int,
        *,
        extend: bool,
        positions: NDArray[np.integer] | None,
        advance: int | Collection[int] | None,
        bidirectional: bool | Runs,
        index: int,
        time_s: float,
        mass_weight: float,
    ) -> tuple[Append, int]:
        """The plan, with its pages taken, and how many nanoseconds that took."""
        pool, native = self._pool, self._native
        index, time_s = checked_label(index, time_s)
        code, num_tokens = checked_size(kind, num_tokens)
        request = Request(
            code,
            num_tokens,
            extend,
            index,
            checked_positions(pool.num_axes, num_tokens, positions),
            checked_advance(pool.num_axes, advance),
            checked_runs(num_tokens, bidirectional),
        )
        began = perf_counter_ns()
        self._take(request)
        allocation_ns = perf_counter_ns() - began
        try:
            planned, num_reserved = native.planned(), native.num_drawn
            append = Append(
                sequence=sequence,
                native=native,
                kind=kind,
                num_tokens=num_tokens,
                extend=extend,
                tail_tokens=native.tail_tokens,
                copy_page=int(planned.taken[0]) if native.copies else -1,
                taken=planned.taken,
                slots=planned.slots,
                positions=planned.positions,
                query_indices=planned.query_indices,
                kv_limits=planned.kv_limits,
                advance=planned.advance,
                uniform=native.uniform,
                index=index,
                time_s=time_s,
                mass_weight=mass_weight,
                num_reserved=num_reserved,
            )
            self._reserve.draw(planned.taken[:num_reserved])
        except BaseException:
            native.give_back()
            raise
        return append, allocation_ns

    def commit(self, append: Append) -> None:
        """Count the tokens of ``append``, the last that was planned."""
        segments = self._layout.segments
        self._native.commit(KIND_CODES[append.kind], segments.next_id, append.index, append.time_s)
        self._layout.grow(append)

    def _take(self, request: Request) -> None:
        """Take the pages of ``request``, which is planned then."""
        native, own = self._native, self._reserve.pages
        self._describe()
        code = native.plan(request, own)
        if code == appends.NOT_FREE:
            num_taken, num_drawn = native.num_taken, native.num_drawn
            available = self._pool.allocator.num_available
            if num_taken - num_drawn > available:
                raise OutOfPagesError(num_taken, available + num_drawn)
            self._pool.make_free(num_taken - num_drawn)
            code = native.plan(request, own)
        if code:
            self._refuse(code, request)

    def _describe(self) -> None:
        layout = self._layout
        self._native.describe(layout.table.num_pages, len(layout.segments), layout.num_tokens)

    def _last_position(self, num_tokens: int, relative: NDArray[np.int64] | None) -> int:
        """The largest of ``num_tokens`` more tokens."""
        starts: list[int] = self._layout.next_position.tolist()
        if relative is None:
            return max(starts) + num_tokens - 1
        return max(map(sum, zip(starts, relative.max(axis=1).tolist(), strict=True)))

    def _refuse(self, code: int, request: Request) -> NoReturn:
        """Raise what ``code`` says of ``request``."""
        relative, num_tokens = request.relative, request.num_tokens
        if code == appends.NEGATIVE and relative is not None:
            refuse_negative(relative)
        if code == appends.NO_ROOM:
            num_new = self._native.num_taken - self._native.copies
            last, num_own = self._last_position(num_tokens, relative), self._reserve.num_drawable
            self.check_room(num_new, last, num_own=num_own)
        if code == appends.ADVANCE:
            furthest = num_tokens - 1 if relative is None else int(relative.max())
            moves = furthest + 1 if request.advance is None else request.advance
            next_position = int((self._layout.next_position + np.int64(moves)).max())
            raise ContextError(
                f"the next position would be {next_position}, at most {LARGEST} can be"
            )
        self._refuse_label(code, request.kind, request.frame)

    def _refuse_label(self, code: int, kind: int, index: int) -> NoReturn:
        """Raise why a segment cannot go on with tokens of ``kind``, a code, and ``index``."""
        if code == appends.EMPTY:
            raise ValueError(f"cannot extend a {KINDS[kind]} segment, the sequence is empty")
        last = self._layout.segments.last
        if code == appends.OTHER_KIND:
            raise ValueError(
                f"cannot extend a {KINDS[last['kind']]} segment with {KINDS[kind]} tokens"
            )
        assert code == appends.OTHER_INDEX
        raise ValueError(f"cannot extend frame {last['index']} with tokens of frame {index}")
