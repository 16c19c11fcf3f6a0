"""A table on the GPU that is sent what changed reads as the step's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgekv.cache import Sequence
from edgekv.executors.device_table import DeviceTable, padded_columns
from tests.cache.helpers import frames, make_cache
from tests.executors.host_cuda import HostCuda, view_at

MAX_ROWS, MAX_COLUMNS, WIDTH = 4, 32, 3
ENTRY_BYTES = 4 * WIDTH


class Rig:
    """A device table and what has reached it."""

    def __init__(self) -> None:
        self.cuda = HostCuda()
        self.table = DeviceTable(self.cuda, max_rows=MAX_ROWS, max_columns=MAX_COLUMNS, width=WIDTH)

    def send(self, table: NDArray[np.int32], columns: int) -> list[int]:
        """Entries of each copy that was needed."""
        self.cuda.copied.clear()
        self.table.send(table, columns)
        self.cuda.synchronise()
        got = view_at(self.table.address, (len(table), columns, WIDTH), "int32")
        filled = table.shape[1]
        np.testing.assert_array_equal(got[:, :filled], table)
        assert (got[:, filled:, 0] == -1).all()
        return [num_bytes // ENTRY_BYTES for num_bytes in self.cuda.copied]


@given(st.data())
def test_whatever_tables_follow_each_other(data: st.DataObject) -> None:
    rig = Rig()
    for _ in range(data.draw(st.integers(1, 6), "steps")):
        rows, columns = data.draw(st.integers(1, MAX_ROWS)), data.draw(st.integers(1, MAX_COLUMNS))
        filled = data.draw(st.integers(1, columns))
        seed = data.draw(st.integers(0, 3))
        table = np.random.default_rng(seed).integers(0, 3, (rows, filled, WIDTH), np.int32)
        rig.send(table, columns)
        assert rig.send(table, columns) == []


def test_only_dirty_entries_travel() -> None:
    """Of sequences of a cache: decode steps, a fork beside its parent, a drop, two rows."""
    cache, rig = make_cache(96), Rig()
    sequence = frames(cache, 8)

    def decode(*sequences: Sequence) -> list[int]:
        appends = [
            one.append("answer", 1, extend=one.segments[-1].kind == "answer") for one in sequences
        ]
        with cache.begin_step(appends) as step:
            table = step.tables.page_table
            sent = rig.send(table, padded_columns(table.shape[1], MAX_COLUMNS))
            step.commit()
        return sent

    assert decode(sequence) == [MAX_ROWS * MAX_COLUMNS]  # nobody knows what lies there
    assert [decode(sequence) for _ in range(3)] == [[1]] * 3
    with sequence.fork() as fork:
        assert decode(fork) == [1]  # its own copy of the last page
        assert decode(sequence) == [1]
        assert decode(sequence, fork) == [1, fork.num_pages]  # a second row: never sent before
        assert decode(sequence, fork) == [1, 1]
    num_pages = sequence.num_pages
    sequence.drop([sequence.segments[5].id])
    assert decode(sequence) == [num_pages - 9]  # from where it stood to what was the end


def test_after_a_copy_that_failed_everything_travels() -> None:
    rig = Rig()
    table = np.ones((1, 20, WIDTH), np.int32)
    rig.send(table, 32)
    table[0, 3, 1] = 2

    def fail(*_: int) -> None:
        raise RuntimeError("no copy")

    copy, rig.cuda.copy = rig.cuda.copy, fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no copy"):
        rig.table.send(table, 32)
    rig.cuda.copy = copy  # type: ignore[method-assign]
    assert rig.send(table, 32) == [MAX_ROWS * MAX_COLUMNS]


@pytest.mark.parametrize(
    ("num_columns", "padded"), [(1, 16), (16, 16), (17, 32), (100, 128), (300, 300)]
)
def test_few_widths_occur(num_columns: int, padded: int) -> None:
    assert padded_columns(num_columns, 200) == padded
