"""Inputs of cross-attention without a model: what sessions do to both caches."""

from __future__ import annotations

from pathlib import Path

from edgekv.cache import CrossCache, CrossInput, PageCache
from edgekv.config import KVGeometry
from edgekv.trace import TraceWriter
from tests.cache.helpers import add

CROSS = KVGeometry(2, 1, 4, 4, "float32", num_rope_axes=0)
OWN = KVGeometry(2, 1, 4, 4, "float32")


def make_caches(num_pages: int = 8) -> tuple[PageCache, CrossCache]:
    cross = CrossCache(CROSS, num_pages)
    return PageCache(OWN, 32, cross=cross), cross


def show(cross: CrossCache, key: bytes, num_states: int) -> CrossInput:
    """Found, or else written."""
    if (found := cross.find(key)) is not None:
        return found
    source = cross.reserve(key, num_states)
    cross.publish(source)
    return source


def write_inputs(path: Path, num_pages: int = 8) -> CrossCache:
    """Inputs come, are found while they are held and while not, leave for others, or come to
    nothing."""
    cache, cross = make_caches(num_pages)
    log = TraceWriter(cache, path)
    with cache.open() as sequence:
        for name in (b"a", b"b", b"a", b"c", b"b", b"d", b"d"):
            source = show(cross, name, 10)
            sequence.look_at(source)
            source.release()
            add(cache, sequence, "text", 3)
        cross.reserve(b"e", 5).release()
        with sequence.fork() as fork:
            fork.append("text", 3).abort()
    log.close()
    return cross
