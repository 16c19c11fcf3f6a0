"""The sessions of one pool, and what each may count on.

Owns: the list of sessions on a pool, their shares, and who can still be let in.
Guarantees: whoever is let in keeps its pinned start and one frame, whatever the others want; shares
    are max-min fair among equals.
Does not know: who gives up what for whom. Its owner serialises, as for the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Collection
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import PageCache, Sequence
from edgekv.cache.retention import RetentionRule
from edgekv.cache.segments import SYSTEM_CODE
from edgekv.checks import whole
from edgekv.limits import Limits, check_fits

OnLeaving = Callable[[Sequence, NDArray[np.int64]], None]  # ids (k,) of segments of the sequence


def check_priority(priority: int) -> None:
    """Raise ValueError for what cannot be compared with other priorities."""
    whole(priority, "priority")


class Record(Protocol):
    """What a session counts; exists so that evictions are counted in the session's own record."""

    num_frames: int  # pushed
    num_evicted_frames: int
    num_questions: int


@dataclass(slots=True, eq=False)
class Member:
    """One session's context, as far as the pool is concerned."""

    sequence: Sequence
    rule: RetentionRule
    limits: Limits
    priority: int  # the higher, the later it gives
    record: Record
    number: int = -1  # of this session among all that ever joined
    on_leaving: OnLeaving | None = None  # told before anything leaves
    _evicted_before: int = 0  # frames, when something was set aside last
    _within: tuple[int, Limits] | None = None  # of ``limits_within``, for so many pages
    _pinned: NDArray[np.int32] | None = None  # of ``pinned_pages``, once there are any

    def __post_init__(self) -> None:
        check_priority(self.priority)

    def limits_within(self, num_pages: int) -> Limits:
        """``limits`` with ``num_pages`` for the context and a question: hardly ever others than the
        frame before had."""
        if self._within is None or self._within[0] != num_pages:
            self._within = (num_pages, self.limits.within(num_pages))
        return self._within[1]

    def pinned_pages(self) -> NDArray[np.int32]:
        """(n,) pages of the pinned start, which are the same from when it is computed on."""
        if self._pinned is not None:
            return self._pinned
        segments = self.sequence.segment_table()
        is_pinned = np.repeat(segments.kinds == SYSTEM_CODE, segments.num_pages)
        pages: NDArray[np.int32] = self.sequence.table.page_ids[is_pinned]
        self._pinned = pages if pages.size else None
        return pages

    def drop(self, ids: NDArray[np.int64], *, rule: str, hold: bool = False) -> None:
        """Forget segments ``ids`` (k > 0,); with ``hold`` they are set aside until ``let_go`` or
        ``put_back``."""
        if self.on_leaving is not None:
            self.on_leaving(self.sequence, ids)
        leave = self.sequence.set_aside if hold else self.sequence.drop
        self._evicted_before = self.record.num_evicted_frames
        self.record.num_evicted_frames += leave(ids, rule=rule)

    def undo_appends(self, num_tokens: int) -> None:
        """What came behind the first ``num_tokens`` has never come."""
        sequence = self.sequence
        if sequence.closed:
            return
        if sequence.pending is not None:
            sequence.pending.abort()
        if sequence.num_tokens > num_tokens:
            sequence.truncate(num_tokens)

    def put_back(self) -> None:
        """What was set aside has never left."""
        if self.sequence.has_set_aside:
            self.sequence.put_back()
            self.record.num_evicted_frames = self._evicted_before


class Members:
    """Who shares a pool."""

    def __init__(self, cache: PageCache) -> None:
        self.cache = cache
        self._members: list[Member] = []
        self._numbers = count()

    @property
    def members(self) -> tuple[Member, ...]:
        """Those whose sequence is open, in the order they came."""
        if any(member.sequence.closed for member in self._members):
            self._members = [m for m in self._members if not m.sequence.closed]
        return tuple(self._members)

    @property
    def reserve_pages(self) -> int:
        """The room for a question."""
        return max((member.limits.reserve_pages for member in self.members), default=0)

    def join(self, member: Member) -> None:
        """Count a member in, until its sequence is closed, and give it a number."""
        member.number = next(self._numbers)
        self._members.append(member)

    def check_newcomer(
        self, limits: Limits, *, num_pages: int | None = None, num_shared: int = 0
    ) -> None:
        """Raise BudgetError unless a session with ``limits`` can be let in beside the others.

        ``num_pages`` is what it holds at once, None: its pinned start and a frame; others hold
        ``num_shared`` of them too.
        """
        what = "the pinned start, one frame and a question"
        if num_pages is None:
            num_pages = limits.floor_pages
        else:
            what = "the context and a question"
        reserve = limits.reserve_pages
        needed = num_pages - num_shared + reserve
        check_fits(self.cache, needed, self.most_pages(reserve), what)

    def most_pages(self, reserve_pages: int, member: Member | None = None) -> int:
        """Most pages that ``member`` (None: a newcomer) can have, a room for questions of
        ``reserve_pages`` included, beside what the others cannot do without."""
        others = [other for other in self.members if other is not member]
        if not others:
            return self.cache.allocator.num_pages
        floors = _pinned_pages(others) + sum(other.limits.frame_pages for other in others)
        reserved = max((other.limits.reserve_pages for other in others), default=0)
        return self.cache.allocator.num_pages - floors - max(reserved - reserve_pages, 0)

    def shares(self) -> dict[Member, int]:
        """Pages that each session may hold when all want more than there is."""
        members = self.members
        # A share counts a pinned start as its session's own, the pool holds a shared one once.
        num_starts = sum(member.limits.start_pages for member in members)
        num_twice = max(num_starts - _pinned_pages(members), 0)
        shares = fair_shares(
            self.cache.counts.num_pages - self.reserve_pages + num_twice,
            floors=[member.limits.floor_pages for member in members],
            most=[member.limits.most_pages for member in members],
            priorities=[member.priority for member in members],
        )
        return dict(zip(members, shares, strict=True))


def fair_shares(
    num_pages: int,
    *,
    floors: Collection[int],  # what each cannot do without
    most: Collection[int],  # what each can use
    priorities: Collection[int],
) -> list[int]:
    """Pages for each: its floor, then the rest from the highest priority down, evenly among equals
    as far as they can use it (max-min fairness). Pages too few to go round are in nobody's share:
    whoever asks first has them, until others ask."""
    shares = list(floors)
    rest = max(num_pages - sum(floors), 0)
    for priority in sorted(set(priorities), reverse=True):
        group = [i for i, own in enumerate(priorities) if own == priority]
        group.sort(key=lambda i: most[i] - floors[i])
        for place, i in enumerate(group):
            wanted, even = max(most[i] - floors[i], 0), rest // (len(group) - place)
            if wanted > even:  # and so do those behind it
                for j in group[place:]:
                    shares[j] += even
                return shares
            shares[i] += wanted
            rest -= wanted
    return shares


def _pinned_pages(members: Collection[Member]) -> int:
    """Pages of pinned starts, shared ones once, those still to be computed included."""
    pinned = [member.pinned_pages() for member in members]
    planned = sum(
        member.limits.start_pages
        for member, pages in zip(members, pinned, strict=True)
        if not pages.size
    )
    return planned + len(set().union(*(pages.tolist() for pages in pinned)))
