"""Short ways to say what most cache tests need."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgekv.cache import PageCache, Sequence, Step
from edgekv.cache.retention import RetentionRule, Watermarks, choose_room
from edgekv.config import KVGeometry

PAGE_SIZE = 4


def make_cache(num_pages: int = 32, *, num_axes: int = 1, **options: Any) -> PageCache:
    return PageCache(KVGeometry(1, 1, 1, PAGE_SIZE, "float32", num_axes), num_pages, **options)


def add(cache: PageCache, sequence: Sequence, kind: Any, num_tokens: int, **options: Any) -> Step:
    """Append in a step of its own and commit it."""
    step = cache.begin_step([sequence.append(kind, num_tokens, **options)])
    step.commit()
    return step


def make_room(
    sequence: Sequence, num_pages: int, *, rule: RetentionRule, marks: Watermarks, num_free: int
) -> np.ndarray:
    """Drop what ``choose_room`` chooses; the ids of what was dropped."""
    ids = choose_room(sequence, num_pages, rule=rule, marks=marks, num_free=num_free)
    sequence.drop(ids, rule=rule.name)
    return ids


def frames(cache: PageCache, num_frames: int, *, num_tokens: int = 6) -> Sequence:
    """A pinned start of 3 tokens, then frames 0, 1, 2, …"""
    sequence = cache.open()
    add(cache, sequence, "system", 3)
    for index in range(num_frames):
        add(cache, sequence, "frame", num_tokens, index=index, time_s=index / 2)
    return sequence


def valid(sequence: Sequence) -> list[int]:
    """Valid tokens by page."""
    return sequence.table.valid.tolist()


def shifts(sequence: Sequence) -> list[int]:
    """Shift by page, first axis."""
    return sequence.table.rows[:, 2].tolist()
