"""Who is told what a cache does, after it was done.

Owns: what there is to hear, and how several are told.
Guarantees: calls come in the order of what happened, each when the cache is whole again; an
    operation that was refused is not reported, since it changed nothing.
Does not know: what observers do with it, files, clocks. An observer must not change the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgekv.cache.append import Append
    from edgekv.cache.cross import CrossInput
    from edgekv.cache.segments import SegmentTable
    from edgekv.cache.sequence import Sequence
    from edgekv.cache.step import Step

Removal = Literal["drop", "set aside", "truncate", "close"]
Fate = Literal["let go", "put back"]
Sharing = Literal["kept", "taken", "given up"]
Reserving = Literal["reserved", "given back"]
# Why a sequence is there: to go on, to answer and end, to measure or rank.
Purpose = Literal["context", "question", "probe"]
InputChange = Literal["reserved", "published", "found", "let go", "given up", "withdrawn"]


class CacheObserver:
    """Told of every change; exists so that the cache can be logged without knowing of logs. Who
    inherits from it overrides what it wants to hear."""

    def opened(self, sequence: Sequence, parent: Sequence | None) -> None:
        """A sequence was opened, or forked from ``parent``. It may hold pages already."""

    def planned(self, append: Append, allocation_ns: int) -> None:
        """An append has its pages; to plan it and take them took ``allocation_ns`` nanoseconds."""

    def stepped(self, step: Step) -> None:
        """A step was begun or, ``step.ended``, has ended; what it decides is settled next."""

    def settled(self, append: Append) -> None:
        """An append was committed or aborted: ``append.state``."""

    def removed(
        self, sequence: Sequence, how: Removal, segment_ids: NDArray[np.int64], rule: str
    ) -> None:
        """Tokens left: ``segment_ids`` (k,) of a drop, chosen by ``rule``, whose pages are still
        held where they were set aside; the tokens behind ``sequence.num_tokens`` of a truncation;
        or all, with the sequence."""

    def decided(self, sequence: Sequence, fate: Fate) -> None:
        """What was set aside was let go, or is in ``sequence`` again as if it had never left."""

    def chose(
        self,
        sequence: Sequence,
        rule: str,
        offer: SegmentTable,
        num_pages: int,
        segment_ids: NDArray[np.int64],
    ) -> None:
        """``rule`` was asked which of ``offer`` to drop for ``num_pages``: ``segment_ids`` (k,).
        Nothing has left, and what was planned may still come to nothing."""

    def inserted(self, sequence: Sequence, segment_ids: NDArray[np.int64]) -> None:
        """Dropped segments (k,) came back, each to its old place, in pages of their own."""

    def shared(self, how: Sharing, sequence: Sequence | None, pages: NDArray[np.int32]) -> None:
        """``pages`` (n,) can be found from now on, and are the last segment of ``sequence``; were
        found and are its last segment now; or were given up, and no sequence is named."""

    def reserved(self, how: Reserving, sequence: Sequence, pages: NDArray[np.int32]) -> None:
        """``pages`` (n,) are held for appends of ``sequence`` from now on, or were given back
        undrawn. A sequence that closes gives back what it has reserved without a word."""


class InputObserver(Protocol):
    """Told of what cross-attention sees; apart from ``CacheObserver``, since it is a pool apart."""

    def input_changed(self, how: InputChange, source: CrossInput) -> None:
        """``source`` has pages, held and not written yet; can be found from now on; was found, and
        is held again if nobody held it; is held by nobody and stays; left for another's sake; or
        was let go before anybody could find it. A sequence may be half closed meanwhile."""
        ...


class Observers(CacheObserver):
    """Tells several, one after another."""

    def __init__(self, observers: tuple[CacheObserver, ...]) -> None:
        self.all = observers

    def opened(self, sequence: Sequence, parent: Sequence | None) -> None:
        for observer in self.all:
            observer.opened(sequence, parent)

    def planned(self, append: Append, allocation_ns: int) -> None:
        for observer in self.all:
            observer.planned(append, allocation_ns)

    def stepped(self, step: Step) -> None:
        for observer in self.all:
            observer.stepped(step)

    def settled(self, append: Append) -> None:
        for observer in self.all:
            observer.settled(append)

    def removed(
        self, sequence: Sequence, how: Removal, segment_ids: NDArray[np.int64], rule: str
    ) -> None:
        for observer in self.all:
            observer.removed(sequence, how, segment_ids, rule)

    def decided(self, sequence: Sequence, fate: Fate) -> None:
        for observer in self.all:
            observer.decided(sequence, fate)

    def chose(
        self,
        sequence: Sequence,
        rule: str,
        offer: SegmentTable,
        num_pages: int,
        segment_ids: NDArray[np.int64],
    ) -> None:
        for observer in self.all:
            observer.chose(sequence, rule, offer, num_pages, segment_ids)

    def inserted(self, sequence: Sequence, segment_ids: NDArray[np.int64]) -> None:
        for observer in self.all:
            observer.inserted(sequence, segment_ids)

    def shared(self, how: Sharing, sequence: Sequence | None, pages: NDArray[np.int32]) -> None:
        for observer in self.all:
            observer.shared(how, sequence, pages)

    def reserved(self, how: Reserving, sequence: Sequence, pages: NDArray[np.int32]) -> None:
        for observer in self.all:
            observer.reserved(how, sequence, pages)
