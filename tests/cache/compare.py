"""Whether two snapshots are the same to the last bit."""

from __future__ import annotations

from edgekv.cache import CacheSnapshot


def assert_same(before: CacheSnapshot, after: CacheSnapshot) -> None:
    """Two snapshots are equal to the last bit, the order of the free pages included."""
    assert flat(before) == flat(after), "an operation that fails changes nothing"


def assert_same_held(before: CacheSnapshot, after: CacheSnapshot) -> None:
    """All sequences hold the same, whatever is free or cached, and however much ever was."""
    assert flat(before)[6:] == flat(after)[6:]
    assert (before.allocator.refs == after.allocator.refs).all()


def flat(snapshot: CacheSnapshot) -> list[object]:
    a = snapshot.allocator
    out: list[object] = [a.counts, a.free.tobytes(), a.refs.tobytes(), a.fences.tobytes()]
    out += [a.kept.tobytes()]
    out += [[(e.key, e.parent, e.pages.tobytes()) for e in snapshot.entries]]
    for s in snapshot.sequences:
        out += [s.id, s.num_tokens, s.next_position.tobytes(), s.page_table.tobytes()]
        out += [s.segments.tobytes(), s.pending_pages.tobytes()]
        out += [s.reserved_pages.tobytes(), s.aside_pages.tobytes()]
        out += [None if s.found_by is None else s.found_by.tobytes()]
    return out
