"""Planning an append: which pages it takes, where its tokens will stand, whether there is room.

Owns: the arithmetic between a sequence's end, its reserve, its pool and the tokens to come.
Guarantees: a plan that cannot be made changes nothing; what it continues is continued only in a
    page that nobody else holds, uses or keeps, otherwise in a copy of it.
Does not know: when a plan is settled, what becomes of its pages then.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.append import Append, Runs, limits_for, relative_positions, slots_for
from edgekv.cache.layout import Layout
from edgekv.cache.pool import PoolState
from edgekv.cache.reserve import Reserve
from edgekv.cache.segments import KIND_CODES, KINDS, checked_label
from edgekv.cache.table import SHIFT
from edgekv.errors import ContextError
from edgekv.types import SegmentKind

if TYPE_CHECKING:
    from edgekv.cache.sequence import Sequence


class Tail(NamedTuple):
    """The last page, as far as an append continues it."""

    page: int
    valid: int  # tokens in it before the append
    num_tokens: int  # tokens of the append that go into it, 0 = none
    copy: bool  # others hold or use it: it must be copied first


_NO_TAIL = Tail(-1, 0, 0, copy=False)


class Planner:
    """Plans the appends to ``layout``, in pages of ``pool``, those in ``reserve`` first."""

    def __init__(self, pool: PoolState, layout: Layout, reserve: Reserve) -> None:
        self._pool = pool
        self._layout = layout
        self._reserve = reserve

    def tail(self, kind: str, num_tokens: int, *, extend: bool, index: int) -> Tail:
        """What an append can put into the last page."""
        if kind not in KIND_CODES:
            raise ValueError(f"segment kind must be one of {', '.join(KINDS)}, got {kind!r}")
        if num_tokens < 1:
            raise ValueError(f"an append needs at least 1 token, got {num_tokens}")
        if not extend:
            return _NO_TAIL
        table, segments = self._layout.table, self._layout.segments
        if not len(segments):
            raise ValueError(f"cannot extend a {kind} segment, the sequence is empty")
        last = segments.last
        if last["kind"] != KIND_CODES[kind]:
            raise ValueError(f"cannot extend a {KINDS[last['kind']]} segment with {kind} tokens")
        if index not in (-1, last["index"]):
            raise ValueError(f"cannot extend frame {last['index']} with tokens of frame {index}")
        page, valid = table.rows[-1, :SHIFT].tolist()
        fitting = min(num_tokens, self._pool.geometry.page_size - valid)
        if fitting == 0 or table.tail_has_moved:
            return _NO_TAIL
        return Tail(page, valid, fitting, copy=not self._pool.allocator.is_writable(page))

    def check_room(
        self,
        num_new: int,
        positions: NDArray[np.int64],
        *,
        num_own: int = 0,  # pages that need not come from the pool
        num_waiting: int = 0,  # pages that will be in the table by then
    ) -> None:
        """Raise ContextError when ``num_new`` pages or ``positions`` are beyond a sequence."""
        pool, num_held = self._pool, self._layout.table.num_pages + num_waiting
        # A pool that has too few pages is the allocator's error, also for the only sequence in it.
        if pool.max_pages - num_held < num_new <= pool.allocator.counts.available + num_own:
            held = f"the sequence holds {num_held} of at most {pool.max_pages}"
            raise ContextError(f"need {num_new} more pages, {held}")
        if pool.max_positions is not None and (last := int(positions.max())) >= pool.max_positions:
            raise ContextError(
                f"need position {last}, the model's last is {pool.max_positions - 1}"
            )

    def fill_reserve(
        self, num_tokens: int, positions: NDArray[np.integer] | None
    ) -> NDArray[np.int32]:
        """Reserve the pages of ``num_tokens`` more tokens of a new segment: (n,) pages."""
        pool = self._pool
        relative, _ = relative_positions(pool.num_axes, num_tokens, positions, None)
        num_pages = pool.geometry.pages_for(num_tokens)
        absolute = relative + self._layout.next_position[:, None]
        self.check_room(num_pages, absolute, num_waiting=self._reserve.pages.size)
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
        pool = self._pool
        index, time_s = checked_label(index, time_s)
        tail = self.tail(kind, num_tokens, extend=extend, index=index)
        relative, move = relative_positions(pool.num_axes, num_tokens, positions, advance)
        absolute = relative + self._layout.next_position[:, None]
        num_held = self._layout.num_tokens
        indices = np.arange(num_held, num_held + num_tokens, dtype=np.int32)
        limits = limits_for(indices, bidirectional)
        num_new = pool.geometry.pages_for(num_tokens - tail.num_tokens)
        self.check_room(num_new, absolute, num_own=self._reserve.drawable().size)
        began = perf_counter_ns()
        taken, num_reserved = self._reserve.take(num_new + tail.copy)
        allocation_ns = perf_counter_ns() - began
        pages = taken[int(tail.copy) :]
        copy_page = int(taken[0]) if tail.copy else -1
        first_slot = (copy_page if tail.copy else tail.page) * pool.geometry.page_size + tail.valid
        self._stage(pages, num_tokens - tail.num_tokens, extend=extend)
        append = Append(
            sequence=sequence,
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
        return append, allocation_ns

    def _stage(self, pages: NDArray[np.int32], num_tokens: int, *, extend: bool) -> None:
        """Prepare table entries for ``num_tokens`` tokens in new ``pages`` of one segment."""
        base = self._layout.next_position
        if extend:
            base = base - self._layout.segments.last["span"]
        self._layout.table.stage(pages, num_tokens, self._pool.geometry.page_size, base)
