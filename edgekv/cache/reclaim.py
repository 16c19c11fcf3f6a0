"""Which sequences give back pages when a pool is short, and which segments those are.

Owns: the order in which they are asked, and what each gives, by its own retention rule.
Guarantees: nothing leaves before the caller drops what was planned; pinned segments are never
    given, nor the newest frame where it is spared; a lower priority gives all it can before a
    higher one gives anything; each sequence is asked twice at most, and once more for what it can
    only give together with others; only pages that nobody holds afterwards count as given.
Does not know: where shares and priorities come from, what the pages are wanted for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import groupby, product

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention import RetentionRule, choose, may_leave, offered
from edgekv.cache.sequence import Sequence
from edgekv.errors import ContextError

RECLAIM = "reclaim"  # named in place of a rule by a drop for pages that somebody else is short of


class Giver:
    """One sequence amid a plan. ``leaving`` segments are gone whatever else is planned."""

    def __init__(
        self,
        sequence: Sequence,
        rule: RetentionRule,
        *,
        priority: int,
        share: int,  # pages it may hold when all want more than there is
        batch: int,  # pages that it gives at once, as long as it holds more than its share
        spare_newest: bool,
        leaving: Collection[int] = (),
    ) -> None:
        self.priority, self.share, self.batch = priority, share, batch
        self.has_given = False  # more than was leaving anyway
        self._rule, self._sequence = rule, sequence
        self._page_ids, self._holders = sequence.table.page_ids.copy(), sequence.holders()
        self._table = offered(sequence, rule)
        self._private = sequence.private_pages()  # (n,)
        self._gone = np.isin(self._table.ids, np.array(leaving, dtype=np.int64))  # (n,)
        self._able = may_leave(self._table, spare_newest=spare_newest) & ~self._gone  # (n,)

    @property
    def ids(self) -> NDArray[np.int64]:
        """(k,) segments to drop."""
        return self._table.ids[self._gone]

    @property
    def excess(self) -> int:
        """Pages that stay, shared ones included, beyond its share; negative: below it."""
        return int(self._table.num_pages[~self._gone].sum()) - self.share

    @property
    def num_freed(self) -> int:
        """Pages that come free by what is planned."""
        return int(self._private[self._gone].sum())

    @property
    def num_left(self) -> int:
        """Pages that could still be given."""
        return int(self._private[self._able].sum())

    def give(self, num_pages: int) -> None:
        """Plan to free ``num_pages`` more, at most ``num_left``."""
        if num_pages <= 0:
            return
        able = np.flatnonzero(self._able)
        offer = self._table.take(able).having(num_pages=self._private[able])
        try:
            ids = choose(self._sequence, self._rule, offer, num_pages)
        except ContextError:  # a rule that lets nothing leave
            self._able[:] = False
            return
        chosen = self._table.ids.searchsorted(ids)
        self._gone[chosen] = True
        self._able[chosen] = False
        self.has_given = True

    @property
    def pages(self) -> NDArray[np.int32]:
        """(n,) pages of the segments that could leave."""
        pages: NDArray[np.int32] = self._page_ids[self._able[self._owners]]
        return pages

    def choose_together(self, num_pages: int, holding: Mapping[int, int]) -> set[int]:
        """Pages of segments that its rule would let go first, towards ``num_pages`` that come free
        when all let go who can: ``holding`` says how many those are of each page."""
        can = np.array([holding.get(page, 0) for page in self._page_ids.tolist()], dtype=np.int32)
        joint = (can == self._holders) & (can > 1)
        freed = np.bincount(self._owners[joint], minlength=len(self._table)).astype(np.int32)
        able = np.flatnonzero(self._able & (freed > 0))
        if not able.size:
            return set()
        offer = self._table.take(able).having(num_pages=freed[able])
        wanted = min(num_pages, int(freed[able].sum()))
        try:
            ids = choose(self._sequence, self._rule, offer, wanted)
        except ContextError:
            return set()
        chosen = self._table.ids.searchsorted(ids)
        return set(self._page_ids[joint & np.isin(self._owners, chosen)].tolist())

    def leave_with(self, pages: set[int]) -> None:
        """Plan to drop the segments that have any of ``pages``."""
        hit = np.isin(self._page_ids, np.fromiter(pages, dtype=np.int32)) & self._able[self._owners]
        chosen = np.unique(self._owners[hit])
        self._gone[chosen] = True
        self._able[chosen] = False
        self.has_given |= bool(chosen.size)

    @property
    def _owners(self) -> NDArray[np.intp]:
        """(num_pages,) the segment of each page, by its place."""
        return np.repeat(np.arange(len(self._table)), self._table.num_pages)


def collect_together(num_pages: int, givers: Collection[Giver]) -> int:
    """Plan until ``num_pages`` come free that several of ``givers`` hold, and nobody else: how many
    do. The one furthest above its share chooses, and all who hold it let it go."""
    freed = 0
    for giver in sorted(givers, key=lambda giver: (giver.priority, -giver.excess)):
        holding = Counter(page for other in givers for page in other.pages.tolist())
        if freed >= num_pages:
            break
        pages = giver.choose_together(max(num_pages - freed, giver.batch), holding)
        if pages:
            for other in givers:
                other.leave_with(pages)
            freed += len(pages)
    return freed


def collect(
    num_pages: int, givers: Collection[Giver], *, priority: int, asking: Giver | None = None
) -> int:
    """Plan until ``num_pages`` come free, those that leave anyway included: how many do.

    They are for the sequence ``asking``, of this ``priority``, or for a question (None). Lower
    priorities give all they can, equals down to their share, higher ones nothing; but for a
    sequence that asks for no more than its own share, everybody gives all.
    """
    missing = num_pages - sum(giver.num_freed for giver in givers)
    # Where a frame more or less makes the difference, whoever asks has it, until others ask.
    order = sorted(givers, key=lambda giver: (giver.priority, -giver.excess, giver is asking))
    for _, group in groupby(order, key=lambda giver: giver.priority):
        for everything, giver in product((False, True), tuple(group)):
            if missing <= 0:
                break
            excess = max(giver.excess, 0)
            free_to_ask = giver is asking or giver.priority < priority
            if free_to_ask or (asking is not None and asking.excess <= 0):
                most = giver.num_left if everything else excess
            else:
                most = excess if giver.priority == priority else 0
            wanted = min(missing, most)
            if wanted > 0 and excess:
                wanted = max(wanted, giver.batch)
            before = giver.num_freed
            giver.give(min(wanted, giver.num_left))
            missing -= giver.num_freed - before
    return num_pages - missing
