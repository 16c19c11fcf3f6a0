"""Which sequences give back pages when a pool is short, and which segments those are.

Owns: the order in which they are asked, and what each gives, by its own retention rule.
Guarantees: nothing leaves before the caller drops what was planned; pinned segments are never
    given, nor the newest frame where it is spared; a lower priority gives all it can before a
    higher one gives anything; each sequence is asked twice at most; only pages that nobody else
    holds count as given.
Does not know: where shares and priorities come from, what the pages are wanted for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import groupby, product

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention import RetentionRule, offered
from edgekv.cache.segments import FRAME_CODE, SYSTEM_CODE
from edgekv.cache.sequence import Sequence
from edgekv.errors import ContextError


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
        self._rule = rule
        self._table = offered(sequence, rule)
        self._private = sequence.private_pages()  # (n,)
        self._gone = np.isin(self._table.ids, np.array(leaving, dtype=np.int64))  # (n,)
        self._able = (self._table.kinds != SYSTEM_CODE) & ~self._gone  # (n,)
        if spare_newest and self._able.any():
            frames = np.flatnonzero(self._able & (self._table.kinds == FRAME_CODE))
            newest = frames if frames.size else np.flatnonzero(self._able)
            self._able[newest[-1]] = False

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
        offer = replace(self._table.take(able), num_pages=self._private[able])
        try:
            chosen = able[self._rule.choose(offer, num_pages)]
        except ContextError:  # a rule that lets nothing leave
            self._able[:] = False
            return
        self._gone[chosen] = True
        self._able[chosen] = False
        self.has_given = True


def collect(
    num_pages: int, givers: Collection[Giver], *, priority: int, asking: Giver | None = None
) -> int:
    """Plan until ``num_pages`` come free, those that leave anyway included: how many do.

    They are for the sequence ``asking``, of this ``priority``, or for a question (None). Lower
    priorities give all they can, equals down to their share, higher ones nothing; but for a
    sequence that asks for no more than its own share, everybody gives all.
    """
    missing = num_pages - sum(giver.num_freed for giver in givers)
    order = sorted(givers, key=lambda giver: (giver.priority, -giver.excess))
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
