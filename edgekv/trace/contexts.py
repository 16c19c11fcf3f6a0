"""What one sequence holds, as far as a timeline has to know.

Guarantees: the segments, in order, are those the cache has. Does not know: who else holds a page,
what a picture shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from edgekv.trace.events import HeldSegment, Planned, Taken
from edgekv.trace.holders import Holders


class Segment(NamedTuple):
    """A segment as one sequence holds it."""

    id: int
    life: int
    pages: tuple[int, ...]


class Context:
    """The segments of one sequence, those it has set aside, its pending append and its reserve."""

    __slots__ = (
        *("aside", "drawn", "next_id", "num_frames", "pending", "promise", "reserve", "segments"),
        "session",
    )

    def __init__(
        self, session: int, segments: list[Segment], next_id: int, num_frames: int = 0
    ) -> None:
        self.session = session  # which holds its pages
        self.segments = segments
        self.next_id = next_id
        self.num_frames = num_frames
        self.promise = -1  # the life that pages of its reserve show, made when there is the first
        self.pending: tuple[Planned, int] | None = None  # and its life
        self.reserve: set[int] = set()  # pages held for appends to come
        self.drawn: set[int] = set()  # those that the pending append has from there
        self.aside: list[Segment] = []  # what has left, and is still held

    def fork(self, session: int) -> Context:
        """A child with the same segments, which a session holds."""
        return Context(session, list(self.segments), self.next_id, self.num_frames)

    def pages(self) -> list[int]:
        """All pages that a step over the pending append uses."""
        out = [page for segment in self.segments for page in segment.pages]
        if self.pending is not None:
            out += self.pending[0].pages
        return out

    def add(self, life: int, pages: tuple[int, ...]) -> None:
        """A new last segment."""
        self.segments.append(Segment(self.next_id, life, pages))
        self.next_id += 1

    def hold(self, held: HeldSegment, life: int, holders: Holders, now: int) -> None:
        """A new last segment that is there at once, in pages that others may hold already."""
        for page, valid in zip(held.pages, held.valid, strict=True):
            if holders.is_held(page):
                holders.share(page, self.session, now)
            else:
                holders.take(page, life, self.session, now)
                holders.fill(page, valid)
        self.segments.append(Segment(held.id, life, held.pages))

    def find(self, event: Taken, life: int, holders: Holders) -> None:
        """A new last segment that others hold, or that nobody does and is still in its pages."""
        left = event.num_tokens
        for page in event.pages:
            if holders.is_held(page):
                holders.share(page, self.session, event.at_us)
            else:
                holders.revive(page, life, self.session, event.at_us)
                holders.fill(page, min(left, holders.page_size))
            left -= holders.page_size
        self.add(life, event.pages)

    def set_aside(self, pages: Iterable[int], holders: Holders, now: int) -> None:
        """Free pages join the reserve."""
        for page in pages:
            holders.take(page, self.promise, self.session, now)
        self.reserve.update(pages)

    def draw(self, pages: Iterable[int], life: int, holders: Holders, now: int) -> None:
        """The pending append has these pages, some of them from the reserve; all show ``life``."""
        self.drawn = self.reserve.intersection(pages)
        self.reserve -= self.drawn
        for page in pages:
            if page in self.drawn:
                holders.show(page, life, now)
            else:
                holders.take(page, life, self.session, now)

    def take_out(self, ids: Iterable[int]) -> list[Segment]:
        """Remove segments. ValueError when one is not held."""
        gone = set(ids)
        leaving = [segment for segment in self.segments if segment.id in gone]
        if len(leaving) != len(gone):
            raise ValueError("it drops segments that it does not hold")
        self.segments = [segment for segment in self.segments if segment.id not in gone]
        return leaving

    def add_back(self, segments: Iterable[Segment]) -> None:
        """Segments that had left are where they were."""
        self.segments += segments
        self.segments.sort(key=lambda segment: segment.id)

    def grow(self, plan: Planned, life: int, holders: Holders, now: int) -> int:
        """The planned tokens are there: how many pages more its segment has."""
        pages, left = plan.pages, plan.num_tokens
        if plan.extend:
            last = self.segments.pop()
            before = last.pages
            if plan.copies:
                holders.fill(pages[0], holders.tokens(before[-1]))
                holders.release(before[-1:], self.session, now)
                before = (*before[:-1], pages[0])
                pages = pages[1:]
            if plan.tail_tokens:
                holders.fill(before[-1], plan.tail_tokens)
                left -= plan.tail_tokens
            self.segments.append(Segment(last.id, life, before + pages))
        else:
            self.add(life, pages)
        for page in pages:
            holders.fill(page, min(left, holders.page_size))
            left -= holders.page_size
        return len(pages)

    def put_back(self, plan: Planned, holders: Holders, now: int) -> None:
        """The planned append gives its pages back, those it drew to the reserve."""
        for page in self.drawn:
            holders.show(page, self.promise, now)
        self.reserve |= self.drawn
        holders.release(set(plan.pages) - self.drawn, self.session, now)

    def cut(self, num_tokens: int, num_pages: int, holders: Holders, now: int) -> list[Segment]:
        """Keep so many tokens and pages: the segments of which nothing stays."""
        kept: list[Segment] = []
        gone: list[Segment] = []
        for segment in self.segments:
            stay = segment.pages[: max(num_pages, 0)]
            num_pages -= len(segment.pages)
            holders.release(segment.pages[len(stay) :], self.session, now)
            if stay:
                kept.append(segment._replace(pages=stay))
            else:
                gone.append(segment)
        held = sum(holders.tokens(page) for segment in kept for page in segment.pages)
        if kept and held > num_tokens:
            holders.fill(kept[-1].pages[-1], num_tokens - held)
        self.segments = kept
        return gone
