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
        own = np.split(pages, np.cumsum(table.num_pages)[:-1]) if len(table) else []
        segments = (table.memory, len(table))
        found, read = (
            PageRows(UNTAKEN, HEADS * DIM, num_axes=num_axes, frame_kind=FRAME_CODE)
            for _ in range(2)
        )
        found.make_from(in_memory)
        assert found.make(*segments, pages.tobytes()) is None
        frames = np.flatnonzero(table.kinds == FRAME_CODE)
        missing = read.make(*segments, pages.tobytes())
        assert (missing is None) == (frames.size == 0)
        if missing is not None:
            assert missing.places.tolist() == frames.tolist()
            assert missing.pages.tolist() == [page for k in frames for page in own[k]]
            copied = np.ascontiguousarray(wide[missing.pages].astype(np.float32))
            read.fill(*segments, missing, PageValues(copied))
            assert read.make(*segments, pages.tobytes()) is None
        for k, held in enumerate(own):
            wanted = np.full(HEADS * DIM, np.nan)
            if k in frames:
                wanted = mean(wide, held, int(table.num_tokens[k]))
                num_made += 1
            for made in (found, read):
                row = made.of(*segments, pages.tobytes())[k]
                np.testing.assert_allclose(row, wanted, rtol=1e-5, atol=1e-6)
    assert num_made > 50


def test_a_row_is_made_once() -> None:
    table, pages = drawn(3, 1)
    values = np.ones((NUM_PAGES, HEADS, PAGE_SIZE, DIM), np.float32)
    rows = PageRows(UNTAKEN, HEADS * DIM, num_axes=1, frame_kind=FRAME_CODE)
    held = PageValues(values)
    rows.make_from(held)
    found = []
    for _ in range(2):
        rows.make(table.memory, len(table), pages.tobytes())
        found.append(rows.of(table.memory, len(table), pages.tobytes()))
        values[:] = 2
    assert np.nansum(found[0]) > 0
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("seed", range(20))
def test_numbers_are_summed_up_by_segment(seed: int) -> None:
    table, pages = drawn(seed, 1)
    numbers = PageNumbers(UNTAKEN)
    numbers.add(np.arange(NUM_PAGES, dtype=np.int32), np.arange(NUM_PAGES, dtype=np.float64))
    numbers.factor = 0.5
    parts = np.split(pages, np.cumsum(table.num_pages)[:-1]) if len(table) else []
    sums = numbers.of(table.memory, len(table), pages.tobytes())
    assert sums.tolist() == [part.sum() / 2 for part in parts]


def test_of_pages_that_were_taken_anew_nothing_is_known() -> None:
    table, pages = drawn(3, 1)
    segments = (table.memory, len(table), pages.tobytes())
    taken = np.zeros(NUM_PAGES, np.int64)
    held = PageValues(np.ones((NUM_PAGES, HEADS, PAGE_SIZE, DIM), np.float32))
    rows = PageRows(taken, HEADS * DIM, num_axes=1, frame_kind=FRAME_CODE)
    numbers = PageNumbers(taken)
    rows.make_from(held)
    assert rows.make(*segments) is None
    rows.make_from(None)
    numbers.add(pages, np.ones(pages.size))
    frame = int(np.flatnonzero(table.kinds == FRAME_CODE)[0])
    at = int(table.num_pages[:frame].sum())
    taken[pages[at]] += 1
    missing = rows.make(*segments)
    assert missing is not None
    assert missing.places.tolist() == [frame]
    assert np.isnan(rows.of(*segments)[frame]).all()
    assert numbers.of(*segments)[frame] == table.num_pages[frame] - 1
    numbers.add(pages[at : at + 1], np.array([5.0]))
    assert numbers.of(*segments)[frame] == table.num_pages[frame] + 4


def test_values_of_another_form_are_refused() -> None:
    for wrong in (np.zeros((2, 1, 4, 2), np.float64), np.zeros((2, 1, 4, 4), np.float32)[..., ::2]):
        with pytest.raises(ValueError, match="C-contiguous"):
            PageValues(wrong)
    known = PageRows(UNTAKEN, 8, num_axes=1, frame_kind=FRAME_CODE)
    with pytest.raises(ValueError, match="Hk \\* D = 8 numbers a token, got 6"):
        known.make_from(PageValues(np.zeros((4, 2, 4, 3), np.float32)))
