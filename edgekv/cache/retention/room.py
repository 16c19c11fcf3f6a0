"""Making room in a sequence before an append, by a retention rule, in batches.

Owns: the water marks, the decision how many pages must leave, and the one place where a rule is
    asked.
Guarantees: at most two choices by the rule however full the pool is; either the room is there
    afterwards or an error says what is missing and nothing was dropped.
Does not know: how the rule chooses, what is appended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention.rules import RetentionRule
from edgekv.cache.segments import FRAME_CODE, SYSTEM_CODE, SegmentTable
from edgekv.errors import ContextError, OutOfPagesError

if TYPE_CHECKING:
    from edgekv.cache.sequence import Sequence

_NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """How many pages a sequence may hold, and how far it is emptied once it would hold more.

    With ``low`` below ``high``, segments leave in batches and not one with every frame.
    """

    high: int  # pages
    low: int  # pages

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.high < 1:
            raise ValueError(
                f"water marks need 0 <= low <= high, got low {self.low}, high {self.high}"
            )

    def excess(self, held: int, wanted: int) -> int:
        """Pages that must leave before ``wanted`` more join ``held``; 0 up to the high mark."""
        return 0 if held + wanted <= self.high else held + wanted - self.low


def offered(sequence: Sequence, rule: RetentionRule) -> SegmentTable:
    """All segments of a sequence, with the columns that ``rule`` reads."""
    return sequence.segment_table(summaries=rule.needs_summaries, heat=rule.needs_heat)


def choose(
    sequence: Sequence, rule: RetentionRule, offer: SegmentTable, num_pages: int
) -> NDArray[np.int64]:
    """Which of ``offer``, segments of ``sequence``, ``rule`` would drop: (k,) ids, ascending.
    Whoever observes the cache is told."""
    places = rule.choose(offer, num_pages)
    try:
        ids = offer.ids[places]
    except IndexError as error:
        raise ValueError(
            f"rule {rule.name} must choose places in {len(offer)} segments: {error}"
        ) from None
    sequence.chosen(rule.name, offer, num_pages, ids)
    return ids


def may_leave(segments: SegmentTable, *, spare_newest: bool) -> NDArray[np.bool_]:
    """(n,) which segments of a context can leave it: none that is pinned, and not its newest frame
    where that is spared."""
    able: NDArray[np.bool_] = segments.kinds != SYSTEM_CODE
    if spare_newest and (frames := np.flatnonzero(segments.kinds == FRAME_CODE)).size:
        able[frames[-1]] = False
    return able


def choose_room(
    sequence: Sequence,
    num_pages: int,
    *,
    rule: RetentionRule,
    marks: Watermarks,
    num_free: int,
    spare_newest: bool = False,
) -> NDArray[np.int64]:
    """What ``rule`` would drop until ``num_pages`` more pages fit: (k,) ids. Changes nothing.

    They must fit under the high mark (ContextError if they cannot), and into the pool, which has
    ``num_free`` free pages (OutOfPagesError). Dropping to the low mark is tried, never required.
    ``spare_newest``: the newest frame stays, whatever it is that joins.
    """
    excess = marks.excess(sequence.num_pages, num_pages)
    if num_pages <= num_free and not excess:
        return _NOTHING
    loose = _loose(offered(sequence, rule), spare_newest=spare_newest)
    if excess > len(loose):  # which have a page each, or more
        droppable = int(loose.num_pages.sum())
        pinned = sequence.num_pages - droppable
        if pinned + num_pages > marks.high:
            kept = "pinned or the newest frame's" if spare_newest else "pinned"
            raise ContextError(f"need {num_pages} pages, {pinned} of {marks.high} are {kept}")
        excess = min(excess, droppable)
    if num_pages <= num_free:
        return choose(sequence, rule, loose, excess)
    # Pages that forks hold too come free only with the forks.
    is_loose = np.isin(sequence.segment_table().ids, loose.ids)
    private = sequence.private_pages()[is_loose]
    freeable = num_free + int(private.sum())
    if num_pages > freeable:
        raise OutOfPagesError(num_pages, freeable)
    ids = choose(sequence, rule, loose, excess) if excess > 0 else _NOTHING
    stays = ~np.isin(loose.ids, ids)
    missing = num_pages - num_free - int(private[~stays].sum())
    if missing > 0:
        offer = loose.take(stays).having(num_pages=private[stays])
        ids = np.union1d(ids, choose(sequence, rule, offer, missing))
    return ids


def _loose(table: SegmentTable, *, spare_newest: bool) -> SegmentTable:
    """Those of a whole fresh ``table`` that may leave."""
    codes = table.codes
    num_pinned = codes.count(SYSTEM_CODE)
    if not spare_newest and codes.rfind(SYSTEM_CODE) < num_pinned:  # all behind the start
        table.skip(num_pinned)
        return table
    return table.take(may_leave(table, spare_newest=spare_newest))
