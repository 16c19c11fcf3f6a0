"""How often a cache did what, and how long taking pages took: counts for a monitor to read.

Owns: the counts, from the cache's beginning, and the buckets of the allocation histogram.
Guarantees: an observer like any other, that takes no memory per event; counts only grow.
Does not know: who reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.observer import CacheObserver, Fate, Removal

if TYPE_CHECKING:
    from edgekv.cache.append import Append
    from edgekv.cache.sequence import Sequence
    from edgekv.cache.step import Step

# Upper bounds in microseconds; what is longer than the last falls into one bucket more.
ALLOCATION_BUCKETS_US = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 10000.0)


class CacheCounters(CacheObserver):
    """Counts. What is not counted here: choices, as what leaves is counted when it leaves; sharing,
    as the index counts what it finds; reserves, as pages count when an append draws them."""

    def __init__(self) -> None:
        self.num_opened = 0  # sequences, forks not counted
        self.num_forks = 0
        self.num_steps = 0
        self.num_aborted = 0  # appends
        self.allocated_pages = 0
        self.tokens: Counter[str] = Counter()  # committed, by segment kind
        self.dropped_segments: Counter[str] = Counter()  # by the rule that chose them
        self._aside: dict[int, tuple[str, int]] = {}  # by sequence: rule and segments
        self.inserted_segments = 0  # that had been dropped and came back
        self.allocation_us = 0.0  # in all
        self.allocations = [0] * (len(ALLOCATION_BUCKETS_US) + 1)  # by time, see the buckets

    def opened(self, sequence: Sequence, parent: Sequence | None) -> None:  # noqa: ARG002
        if parent is None:
            self.num_opened += 1
        else:
            self.num_forks += 1

    def planned(self, append: Append, allocation_ns: int) -> None:
        micros = allocation_ns / 1e3
        self.allocation_us += micros
        self.allocations[bisect_left(ALLOCATION_BUCKETS_US, micros)] += 1
        self.allocated_pages += append.pages.size + (append.copy_page >= 0)

    def stepped(self, step: Step) -> None:
        self.num_steps += not step.ended

    def settled(self, append: Append) -> None:
        if append.state == "committed":
            self.tokens[append.kind] += append.num_tokens
        else:
            self.num_aborted += 1

    def removed(
        self,
        sequence: Sequence,
        how: Removal,
        segment_ids: NDArray[np.int64],
        rule: str,
    ) -> None:
        if how == "set aside":
            self._aside[sequence.id] = (rule or "caller", segment_ids.size)
        elif how == "drop":
            self.dropped_segments[rule or "caller"] += segment_ids.size

    def decided(self, sequence: Sequence, fate: Fate) -> None:
        aside = self._aside.pop(sequence.id, None)  # None: from before anything was heard
        if fate == "let go" and aside is not None:
            rule, num_segments = aside
            self.dropped_segments[rule] += num_segments

    def inserted(self, sequence: Sequence, segment_ids: NDArray[np.int64]) -> None:  # noqa: ARG002
        self.inserted_segments += segment_ids.size
