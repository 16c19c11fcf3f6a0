"""A device that keeps page-table rows and is sent what changed reads what the host says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgekv.cache import PageCache, Sequence
from edgekv.errors import EdgeKVError
from edgekv.executors.rows import DeviceRows
from edgekv.types import StepTables
from tests.cache.helpers import frames, make_cache

NUM_PLACES, MAX_PAGES = 3, 24


class Device:
    """Rows that are only ever written as told."""

    def __init__(self) -> None:
        self.rows = DeviceRows(NUM_PLACES)
        self.memory = np.full((NUM_PLACES, MAX_PAGES, 3), -1, np.int32)
        self.num_sent = 0  # entries

    def run(self, tables: StepTables) -> None:
        num_columns = tables.page_table.shape[1]
        for row, place, start, stop in self.rows.uploads(tables):
            self.memory[place, start:stop] = tables.page_table[row, start:stop]
            self.num_sent += stop - start
            self.check(tables.page_table[row], self.memory[place, :num_columns])

    def check(self, wanted: NDArray[np.int32], got: NDArray[np.int32]) -> None:
        used = wanted[:, 0] >= 0
        np.testing.assert_array_equal(got[:, 0], wanted[:, 0])
        np.testing.assert_array_equal(got[used], wanted[used])


def test_a_decode_step_sends_one_entry_and_a_drop_what_stood_behind_it() -> None:
    cache, device = make_cache(64), Device()
    sequence = frames(cache, 8)

    def decode() -> int:
        before = device.num_sent
        append = sequence.append("answer", 1, extend=sequence.segments[-1].kind == "answer")
        with cache.begin_step([append]) as step:
            device.run(step.tables)
            step.commit()
        return device.num_sent - before

    assert decode() == sequence.num_pages == 18
    assert [decode() for _ in range(6)] == [1] * 6
    sequence.drop([sequence.segments[5].id])
    assert decode() == sequence.num_pages - 9
    with sequence.fork() as fork:
        assert decode() == 1
        sequence, fork = fork, sequence
        assert decode() == sequence.num_pages


def test_a_step_that_failed_may_have_been_sent_or_not() -> None:
    for sent in (False, True):
        cache, device = make_cache(), Device()
        sequence = cache.open()
        for num_tokens in (6, 3, 1):
            with cache.begin_step([sequence.append("text", num_tokens)]) as step:
                device.run(step.tables)
                step.commit()
            with cache.begin_step([sequence.append("text", 2, extend=True)]) as step:
                if sent:
                    device.run(step.tables)
        sequence.commit(sequence.append("text", 1, extend=True))  # without a step at all
        with cache.begin_step([sequence.append("text", 1)]) as step:
            device.run(step.tables)


def test_a_row_that_became_shorter_ends_where_it_ends_beside_a_longer_one() -> None:
    cache, device = make_cache(), Device()
    long, short = frames(cache, 6), frames(cache, 5)

    def together() -> None:
        with cache.begin_step([long.append("text", 1), short.append("text", 1)]) as step:
            device.run(step.tables)
            step.commit()

    together()
    short.truncate(9)
    together()


Operation = tuple[str, int, int]
OPERATIONS = (
    "open",
    "step",
    "step",
    "step",
    "two",
    "fail",
    "unsent",
    "drop",
    "cut",
    "fork",
    "close",
)
Life = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 99), st.integers(0, 99)), max_size=50
)


@given(Life)
def test_any_life(operations: list[Operation]) -> None:
    cache, device = make_cache(60, max_pages=MAX_PAGES), Device()
    sequences: list[Sequence] = []
    for name, a, b in operations:
        if name == "open" or not sequences:
            sequences.append(cache.open())
            continue
        sequence = sequences[a % len(sequences)]
        if name == "fork":
            sequences.append(sequence.fork())
        elif name == "close":
            sequence.close()
            sequences.remove(sequence)
        elif name == "cut":
            sequence.truncate(sequence.num_tokens - min(b % 9, sequence.num_tokens))
        elif name == "drop" and sequence.num_segments:
            sequence.drop([sequence.segments[b % sequence.num_segments].id])
        elif name != "drop":
            others = [other for other in sequences if other is not sequence][: b % 3]
            _step(cache, device, name, [sequence, *others] if name == "two" else [sequence], b)


def _step(
    cache: PageCache, device: Device, name: str, sequences: list[Sequence], number: int
) -> None:
    appends = []
    try:
        for sequence in sequences:
            extend = bool(sequence.num_segments) and number % 3 > 0
            appends.append(sequence.append("text", 1 + number % 11, extend=extend))
    except EdgeKVError:
        for append in appends:
            append.abort()
        return
    with cache.begin_step(appends) as step:
        if name != "unsent":
            device.run(step.tables)
        if name not in ("unsent", "fail"):
            step.commit()
