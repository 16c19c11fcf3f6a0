"""The cross cache: one copy of each input, never evicted in use, counts that sum to the pool."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgekv.cache import CrossCache, CrossInput, InputChange, PageCache, content_key
from edgekv.config import KVGeometry
from edgekv.errors import CacheError, OutOfPagesError

GEOMETRY = KVGeometry(
    num_layers=2, num_kv_heads=1, head_dim=4, page_size=4, dtype="float32", num_rope_axes=0
)
OWN = KVGeometry(num_layers=2, num_kv_heads=1, head_dim=4, page_size=4, dtype="float32")


def put(cache: CrossCache, key: bytes, num_states: int) -> CrossInput:
    source = cache.reserve(key, num_states)
    cache.publish(source)
    return source


def pages(cache: CrossCache) -> tuple[int, int, int]:
    counts = cache.counts
    assert counts.live + counts.cached + counts.free == counts.num_pages
    return counts.live, counts.cached, counts.free


def test_an_input_is_written_once_and_found_by_all() -> None:
    cache = CrossCache(GEOMETRY, 8)
    assert cache.find(b"a") is None
    source = put(cache, b"a", 6)
    assert source.table[:, 1].tolist() == [4, 2]
    assert cache.find(b"a") is source
    assert pages(cache) == (2, 0, 6)
    source.release()
    source.release()
    assert pages(cache) == (0, 2, 6)
    assert cache.find(b"a") is source
    assert pages(cache) == (2, 0, 6)
    counts = cache.counts
    assert (counts.num_hits, counts.num_misses, counts.num_inputs) == (2, 1, 1)


def test_slots_lie_in_the_pages_and_leave_the_rest_out() -> None:
    source = CrossCache(GEOMETRY, 8).reserve(b"a", 6)
    slots = source.slots(9)
    assert slots.dtype == np.int32
    assert slots[6:].tolist() == [-1] * 3
    assert (slots[:6] // 4).tolist() == np.repeat(source.pages, 4)[:6].tolist()
    assert (slots[:6] % 4).tolist() == [0, 1, 2, 3, 0, 1]


def test_nobody_finds_what_is_not_written_yet() -> None:
    cache = CrossCache(GEOMETRY, 8)
    source = cache.reserve(b"a", 4)
    assert cache.find(b"a") is None
    source.release()
    assert pages(cache) == (0, 0, 8)
    with pytest.raises(CacheError, match="held by nobody"):
        cache.publish(source)


def test_the_least_recently_used_leaves_first() -> None:
    cache = CrossCache(GEOMETRY, 3)
    for key in (b"a", b"b", b"c"):
        put(cache, key, 4).release()
    held = cache.find(b"a")
    assert held is not None
    held.release()  # used last now
    put(cache, b"d", 4)
    assert cache.find(b"b") is None
    assert cache.find(b"a") is held
    assert cache.counts.num_evicted == 1


def test_what_is_in_use_is_never_evicted() -> None:
    cache = CrossCache(GEOMETRY, 4)
    held = put(cache, b"a", 8)
    put(cache, b"b", 8).release()
    with pytest.raises(OutOfPagesError, match="need 3 pages, 2 free"):
        cache.reserve(b"c", 9)
    assert pages(cache) == (2, 2, 0)
    assert cache.find(b"b") is not None
    with pytest.raises(OutOfPagesError, match="need 1 pages, 0 free"):
        cache.check_room(1)
    assert cache.find(b"a") is held


def test_one_content_is_published_once() -> None:
    cache = CrossCache(GEOMETRY, 4)
    put(cache, b"a", 4)
    second = cache.reserve(b"a", 4)
    with pytest.raises(CacheError, match="already"):
        cache.publish(second)
    second.release()
    assert pages(cache) == (1, 0, 3)


def test_an_evicted_input_cannot_be_used_again() -> None:
    cache = CrossCache(GEOMETRY, 1)
    gone = put(cache, b"a", 4)
    gone.release()
    with pytest.raises(CacheError, match="held by nobody"):
        gone.release()
    put(cache, b"b", 4)
    with pytest.raises(CacheError, match="has left"):
        gone.retain()


def test_an_input_that_came_to_nothing_does_not_disturb_another_of_its_content() -> None:
    cache = CrossCache(GEOMETRY, 4)
    first, second = cache.reserve(b"a", 4), cache.reserve(b"a", 4)
    cache.publish(second)
    first.release()
    second.release()
    with pytest.raises(CacheError, match="has left"):
        first.retain()
    assert cache.find(b"a") is second
    assert cache.inputs == (second,)


class Told:
    """What an observer was told."""

    def __init__(self, cache: CrossCache) -> None:
        self.news: list[tuple[InputChange, bytes]] = []
        cache.observe(self)

    def input_changed(self, how: InputChange, source: CrossInput) -> None:
        self.news.append((how, source.key))


def test_whoever_observes_is_told_of_every_change() -> None:
    cache = CrossCache(GEOMETRY, 2)
    told = Told(cache)
    source = cache.reserve(b"a", 4)
    assert cache.is_writing
    cache.publish(source)
    assert not cache.is_writing
    cache.find(b"a")
    source.retain()
    for _ in range(3):
        source.release()
    cache.find(b"a")
    source.release()
    cache.reserve(b"b", 8).release()
    assert not cache.is_writing
    assert told.news == [
        ("reserved", b"a"),
        ("published", b"a"),
        ("found", b"a"),
        ("let go", b"a"),
        ("found", b"a"),
        ("let go", b"a"),
        ("given up", b"a"),
        ("reserved", b"b"),
        ("withdrawn", b"b"),
    ]
    cache.observe(None)
    put(cache, b"c", 4)
    assert len(told.news) == 9


def test_sequences_forks_and_steps_hold_what_they_see() -> None:
    cross = CrossCache(GEOMETRY, 4)
    cache = PageCache(OWN, 16, cross=cross)
    parent = cache.open()
    source = put(cross, b"a", 6)
    parent.look_at(source)
    source.release()
    fork = parent.fork()
    parent.close()
    assert pages(cross) == (2, 0, 2)
    step = cache.begin_step([fork.append("text", 3)])
    fork.close()  # while the device still reads
    assert pages(cross) == (2, 0, 2)
    step.abort()
    assert pages(cross) == (0, 2, 2)


def test_tables_of_rows_that_see_different_inputs_and_none() -> None:
    cross = CrossCache(GEOMETRY, 8)
    cache = PageCache(OWN, 16, cross=cross)
    long, short = put(cross, b"a", 9), put(cross, b"b", 3)
    rows = [cache.open() for _ in range(3)]
    rows[0].look_at(long)
    rows[2].look_at(short)
    counts = (2, 1, 3)
    step = cache.begin_step([row.append("text", n) for row, n in zip(rows, counts, strict=True)])
    tables = step.tables.cross
    assert tables is not None
    assert tables.kv_limits.tolist() == [9, 9, 0, 3, 3, 3]
    assert tables.page_table[0].tolist() == long.table.tolist()
    assert tables.page_table[1].tolist() == [[-1, 0]] * 3
    assert tables.page_table[2].tolist() == [*short.table.tolist(), [-1, 0], [-1, 0]]
    for array in (tables.page_table, tables.kv_limits):
        assert array.dtype == np.int32
        assert not array.flags.writeable
    step.commit()
    rows[0].look_at(short)  # what comes next sees another
    after = cache.begin_step([rows[0].append("text", 1)]).tables.cross
    assert after is not None
    assert after.kv_limits.tolist() == [3]


def test_a_model_without_cross_attention_looks_at_nothing() -> None:
    source = put(CrossCache(GEOMETRY, 1), b"a", 1)
    cache = PageCache(OWN, 4)
    sequence = cache.open()
    with pytest.raises(CacheError, match="no cross-attention"):
        sequence.look_at(source)
    assert source.num_holders == 1
    assert cache.begin_step([sequence.append("text", 1)]).tables.cross is None


def test_the_key_is_all_of_the_content() -> None:
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 200
    blue = red[..., ::-1]
    last = red.copy()
    last[-1, -1, -1] = 1
    keys = [
        content_key("m", red),
        content_key("m", np.ascontiguousarray(blue)),
        content_key("m", last),
        content_key("other", red),
        content_key("m", red.reshape(2, 8, 3)),
        content_key("m", red.view(np.int8)),
    ]
    assert len(set(keys)) == len(keys)
    assert content_key("m", blue) == keys[1]  # however it lies in memory
    assert content_key("m", red.copy()) == keys[0]


@pytest.mark.parametrize("num_states", [0, -1])
def test_an_input_has_states(num_states: int) -> None:
    with pytest.raises(ValueError, match="at least 1 encoder state"):
        CrossCache(GEOMETRY, 1).reserve(b"a", num_states)


class CrossMachine(RuleBasedStateMachine):
    """Against a list of who holds what and an ordered dictionary of what is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = CrossCache(GEOMETRY, 7)
        self.held: list[tuple[bytes, CrossInput]] = []
        self.kept: OrderedDict[bytes, int] = OrderedDict()  # key -> pages, oldest use first
        self.contents: dict[int, bytes] = {}  # page -> whose keys were written there last

    @rule(name=st.integers(0, 5), num_states=st.integers(1, 16))
    def ask(self, name: int, num_states: int) -> None:
        key = bytes([name])
        known = key in self.kept or any(key == other for other, _ in self.held)
        found = self.cache.find(key)
        assert (found is not None) == known
        if found is None:
            wanted = -(-num_states // 4)
            live = {id(source): len(source.pages) for _, source in self.held}
            if wanted > 7 - sum(live.values()):
                with pytest.raises(OutOfPagesError):
                    self.cache.reserve(key, num_states)
                return
            while wanted > 7 - sum(live.values()) - sum(self.kept.values()):
                self.kept.popitem(last=False)
            found = put(self.cache, key, num_states)
            self.contents.update(dict.fromkeys(found.pages.tolist(), key))
        self.kept.pop(key, None)
        self.held.append((key, found))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.held) - 1))
        key, source = self.held.pop(place)
        source.release()
        if not any(key == other for other, _ in self.held):
            self.kept[key] = len(source.pages)

    @invariant()
    def pages_hold_what_their_holders_think(self) -> None:
        for key, source in self.held:
            assert all(self.contents[page] == key for page in source.pages.tolist())

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        live = {key: len(source.pages) for key, source in self.held}
        assert pages(self.cache)[:2] == (sum(live.values()), sum(self.kept.values()))
        assert self.cache.counts.num_inputs == len(live) + len(self.kept)


TestCrossMachine = CrossMachine.TestCase
