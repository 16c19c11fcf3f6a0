"""Asks the rules again what a log says that they chose, and says whose choice a drop was.

Owns: what the log has shown of segments, and what was chosen since the last append.
Guarantees: a rule is offered the same segments with the same columns, bit for bit, and asked for
    the same number of pages.
Does not know: the cache beyond the sequence it is given; rules that have no name here.
"""

from __future__ import annotations

import numpy as np

from edgekv.cache import Sequence
from edgekv.cache.retention import retention_rule, retention_rules
from edgekv.cache.segments import SYSTEM_CODE, SegmentTable
from edgekv.trace.events import Chosen, Dropped
from edgekv.trace.evidence import Evidence, first_pages


class Choices:
    """The rules' part of a replay."""

    def __init__(self) -> None:
        self.evidence = Evidence()
        self._segments: dict[int, set[int]] = {}  # chosen, by sequence
        # Several may let go together what they all hold: the rule of one chooses.
        self._pages: set[int] = set()

    def choose(self, event: Chosen, sequence: Sequence) -> tuple[int, ...]:
        """What the event's rule chooses now; what the log says for a rule unknown here.

        ValueError when what it says of the offer cannot be."""
        offer = self._offer(event, sequence)
        if event.rule not in retention_rules():
            return event.segments
        chosen = offer.ids[retention_rule(event.rule).choose(offer, event.num_pages)]
        ids = tuple(chosen.tolist())
        self._segments.setdefault(event.sequence, set()).update(ids)
        self._pages.update(_pages_of(sequence, ids))
        return ids

    def is_chosen(self, event: Dropped, sequence: Sequence) -> bool:
        """Whether all that leaves was chosen by rules, before it leaves."""
        rest = set(event.segments) - self._segments.pop(event.sequence, set())
        table = sequence.segment_table()
        first = first_pages(table.num_pages, sequence.table.page_ids)
        held = dict(zip(table.ids.tolist(), first.tolist(), strict=True))
        return all(held.get(ident) in self._pages for ident in rest)

    def settle(self) -> None:
        """What was chosen and has not left by now stays."""
        self._segments.clear()
        self._pages.clear()

    def _offer(self, event: Chosen, sequence: Sequence) -> SegmentTable:
        table = sequence.segment_table()
        first = first_pages(table.num_pages, sequence.table.page_ids)
        is_offered = (table.kinds != SYSTEM_CODE) & ~np.isin(table.ids, event.withheld)
        offer = table.take(is_offered)
        if event.pages:
            if len(event.pages) != len(offer):
                raise ValueError(
                    f"the log offers {len(event.pages)} segments, the replay {len(offer)}"
                )
            offer = offer.having(num_pages=np.array(event.pages, dtype=np.int32))
        if not 1 <= event.num_pages <= offer.num_pages.sum():
            raise ValueError(
                f"{event.num_pages} pages are wanted of {offer.num_pages.sum()} on offer"
            )
        summaries, heat = self.evidence.columns(first[is_offered], event.width)
        return offer.having(summaries=summaries, heat=heat)


def _pages_of(sequence: Sequence, ids: tuple[int, ...]) -> list[int]:
    table = sequence.segment_table()
    chosen = np.repeat(np.isin(table.ids, ids), table.num_pages)
    pages: list[int] = sequence.table.page_ids[chosen].tolist()
    return pages
