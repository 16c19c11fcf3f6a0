"""What is known of pages, put together by segment, against NumPy."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from edgekv.cache import SegmentTable
from edgekv.cache.segments import FRAME_CODE, segment_dtype
from edgekv.config import KVDtype
from edgekv.contents import narrow, split, widen
from edgekv.native.columns import PageNumbers, PageRows, PageValues

HEADS, PAGE_SIZE, DIM, NUM_PAGES = 3, 4, 5, 60
UNTAKEN = np.zeros(NUM_PAGES, np.int64)


def drawn(seed: int, num_axes: int) -> tuple[SegmentTable, np.ndarray]:
    """Segments of all kinds and their pages (n,), which lie anywhere."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(int(rng.integers(0, 12)), segment_dtype(num_axes))
    rows["num_tokens"] = rng.integers(1, 5 * PAGE_SIZE, rows.size)
    rows["num_pages"] = -(-rows["num_tokens"] // PAGE_SIZE)
    rows["span"] = rng.integers(1, 9, rows["span"].shape)
    rows["kind"] = rng.integers(0, 3, rows.size)
    return SegmentTable.of(rows), rng.permutation(NUM_PAGES)[: rows["num_pages"].sum()].astype("i4")


def mean(values: np.ndarray, pages: np.ndarray, num_tokens: int) -> np.ndarray:
    """(HEADS * DIM,) over tokens that fill ``pages`` of (NUM_PAGES, HEADS, PAGE_SIZE, DIM)."""
    tokens = np.moveaxis(values[pages], 1, 2).reshape(-1, HEADS * DIM)
    average: np.ndarray = tokens[:num_tokens].astype(np.float64).mean(axis=0)
    return average


@pytest.mark.parametrize("dtype", get_args(KVDtype))
@pytest.mark.parametrize("num_axes", [1, 3])
def test_rows_are_means_of_frames_whatever_the_pool_holds(dtype: KVDtype, num_axes: int) -> None:
    rng = np.random.default_rng(5)
    contents: Any = narrow(rng.normal(0, 2, (NUM_PAGES, HEADS, PAGE_SIZE, DIM)), dtype)
    wide = widen(contents, dtype)
    numbers, scales = contents, None
    if dtype == "int8":
        numbers, scales = (np.ascontiguousarray(part) for part in split(contents))
    in_memory, num_made = PageValues(numbers, scales), 0
    for seed in range(40):
        table, pages = drawn(seed, num_axes)
        at = np.split(pages, np.cumsum(table.num_pages)[:-1]) if len(table) else []
        found, read = (
            PageRows(UNTAKEN, HEADS * DIM, num_axes=num_axes, frame_kind=FRAME_CODE)
            for _ in range(2)
        )
        rows, missing = found.of(table.memory, len(table), pages, in_memory)
        assert missing is None
        _, missing = read.of(table.memory, len(table), pages, None)
        frames = np.flatnonzero(table.kinds == FRAME_CODE)
        assert (missing is None) == (frames.size == 0)
        if missing is not None:
            assert missing.places.tolist() == frames.tolist()
            assert missing.pages.tolist() == [page for k in frames for page in at[k]]
            copied = PageValues(np.ascontiguousarray(wide[missing.pages].astype(np.float32)))
            read.make(table.memory, len(table), missing, copied)
        again, missing = read.of(table.memory, len(table), pages, None)
        assert missing is None
        for k, own in enumerate(at):
            wanted = np.full(HEADS * DIM, np.nan)
            if k in frames:
                wanted = mean(wide, own, int(table.num_tokens[k]))
                num_made += 1
            for made in (rows, again):
                np.testing.assert_allclose(made[k], wanted, rtol=1e-5, atol=1e-6)
    assert num_made > 50


def test_a_row_is_made_once() -> None:
    table, pages = drawn(3, 1)
    values = np.ones((NUM_PAGES, HEADS, PAGE_SIZE, DIM), np.float32)
    known = PageRows(UNTAKEN, HEADS * DIM, num_axes=1, frame_kind=FRAME_CODE)
    first = known.of(table.memory, len(table), pages, PageValues(values))[0]
    assert np.nansum(first) > 0
    values[:] = 2
    second = known.of(table.memory, len(table), pages, PageValues(values))[0]
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("seed", range(20))
def test_numbers_are_summed_up_by_segment(seed: int) -> None:
    table, pages = drawn(seed, 1)
    known = PageNumbers(np.zeros(NUM_PAGES, np.int64))
    known.add(np.arange(NUM_PAGES, dtype=np.int32), np.arange(NUM_PAGES, dtype=np.float64))
    parts = np.split(pages, np.cumsum(table.num_pages)[:-1]) if len(table) else []
    sums = known.of(table.memory, len(table), pages, 0.5)
    assert sums.tolist() == [part.sum() / 2 for part in parts]


def test_of_pages_that_were_taken_anew_nothing_is_known() -> None:
    table, pages = drawn(3, 1)
    taken = np.zeros(NUM_PAGES, np.int64)
    values = np.ones((NUM_PAGES, HEADS, PAGE_SIZE, DIM), np.float32)
    rows = PageRows(taken, HEADS * DIM, num_axes=1, frame_kind=FRAME_CODE)
    numbers = PageNumbers(taken)
    rows.of(table.memory, len(table), pages, PageValues(values))
    numbers.add(pages, np.ones(pages.size))
    frame = int(np.flatnonzero(table.kinds == FRAME_CODE)[0])
    at = int(table.num_pages[:frame].sum())
    taken[pages[at]] += 1
    found, missing = rows.of(table.memory, len(table), pages, None)
    assert missing is not None
    assert missing.places.tolist() == [frame]
    assert np.isnan(found[frame]).all()
    assert numbers.of(table.memory, len(table), pages, 1.0)[frame] == table.num_pages[frame] - 1
    numbers.add(pages[at : at + 1], np.array([5.0]))
    assert numbers.of(table.memory, len(table), pages, 1.0)[frame] == table.num_pages[frame] + 4


def test_values_of_another_form_are_refused() -> None:
    for wrong in (np.zeros((2, 1, 4, 2), np.float64), np.zeros((2, 1, 4, 4), np.float32)[..., ::2]):
        with pytest.raises(ValueError, match="C-contiguous"):
            PageValues(wrong)
    known = PageRows(UNTAKEN, 8, num_axes=1, frame_kind=FRAME_CODE)
    with pytest.raises(ValueError, match="Hk \\* D = 8 numbers a token, got 6"):
        known.of(b"", 0, np.empty(0, np.int32), PageValues(np.zeros((4, 2, 4, 3), np.float32)))
