"""The host side of the KV cache: pages, page tables, sequences, steps. NumPy, and native
calls for what holds pages.

Typical use::

    cache = PageCache(geometry, num_pages)
    with cache.open() as sequence:
        append = sequence.append("frame", 64, index=0, time_s=0.0)
        with cache.begin_step([append]) as step:
            ...  # copy step.copies, run the decoder with step.tables
            step.commit()
"""

from edgekv.cache.allocator import PageAllocator
from edgekv.cache.append import Append
from edgekv.cache.counters import ALLOCATION_BUCKETS_US, CacheCounters
from edgekv.cache.cross import CrossCache, CrossCounts, CrossInput, content_key
from edgekv.cache.identity import Entry, sha256
from edgekv.cache.invariants import InvariantError, check
from edgekv.cache.observer import (
    CacheObserver,
    Fate,
    InputChange,
    InputObserver,
    Purpose,
    Removal,
    Reserving,
    Sharing,
)
from edgekv.cache.page_cache import PageCache
from edgekv.cache.segments import Segment, SegmentTable
from edgekv.cache.sequence import Sequence
from edgekv.cache.snapshot import CacheSnapshot, IndexCounts, PageCounts
from edgekv.cache.state import SequenceState
from edgekv.cache.step import Step

__all__ = [
    "ALLOCATION_BUCKETS_US",
    "Append",
    "CacheCounters",
    "CacheObserver",
    "CacheSnapshot",
    "CrossCache",
    "CrossCounts",
    "CrossInput",
    "Entry",
    "Fate",
    "IndexCounts",
    "InputChange",
    "InputObserver",
    "InvariantError",
    "PageAllocator",
    "PageCache",
    "PageCounts",
    "Purpose",
    "Removal",
    "Reserving",
    "Segment",
    "SegmentTable",
    "Sequence",
    "SequenceState",
    "Sharing",
    "Step",
    "check",
    "content_key",
    "sha256",
]
