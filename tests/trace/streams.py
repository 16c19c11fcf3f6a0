"""Streams without a model: what a session does to its cache, frame by frame."""

from __future__ import annotations

from pathlib import Path

from edgekv.cache import PageCache, Sequence
from edgekv.cache.retention import Watermarks, retention_rule
from edgekv.config import KVGeometry
from edgekv.trace import TraceWriter
from tests.cache.helpers import add, make_room

FRAME_PAGES = 5
MARKS = Watermarks(3 + 20 * FRAME_PAGES, 3 + 16 * FRAME_PAGES)  # at most 20 frames


def make_cache(num_pages: int = 128) -> PageCache:
    return PageCache(KVGeometry(4, 2, 32, 16, "float16"), num_pages, max_positions=4096)


def stream(
    cache: PageCache, num_frames: int, *, ask_every: int = 0, start: int = 0
) -> tuple[Sequence, int]:
    """Frames of 77 tokens, two a second, into a new context; questions of 12 answer tokens. The
    context and how many questions were asked."""
    sequence, rule, num_asked = cache.open(), retention_rule("window"), 0
    add(cache, sequence, "system", 40)
    for index in range(start, start + num_frames):
        make_room(sequence, FRAME_PAGES, rule=rule, marks=MARKS, num_free=cache.counts.free)
        add(cache, sequence, "frame", 77, index=index, time_s=index / 2)
        if ask_every and index % ask_every == ask_every - 1:
            with sequence.fork(purpose="question") as fork:
                add(cache, fork, "text", 25)
                for k in range(12):
                    add(cache, fork, "answer", 1, extend=k > 0)
            num_asked += 1
    return sequence, num_asked


def write_log(path: Path, num_frames: int = 100, *, ask_every: int = 10) -> Path:
    """A log of such a stream."""
    cache = make_cache()
    writer = TraceWriter(cache, path)
    stream(cache, num_frames, ask_every=ask_every)
    writer.close()
    return path
