"""What pages hold, as arrays outside of the pools."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from edgekv.config import KVDtype, KVGeometry
from edgekv.contents import are_finite, join, narrow, slot_shape, split, storage_dtype, widen
from edgekv.oracle import quantize

# What a number may be off, relative to the largest of its token and head.
TOLERANCE = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 0.5 / 127}
NUMBERS = np.random.default_rng(0).normal(size=(3, 2, 4, 16)).astype(np.float32)


@pytest.mark.parametrize("dtype", get_args(KVDtype))
def test_contents_have_the_pages_bytes_and_its_numbers(dtype: KVDtype) -> None:
    geometry = KVGeometry(1, 2, 16, 4, dtype)
    contents = narrow(NUMBERS, dtype)
    assert contents.dtype == storage_dtype(dtype)
    assert contents.shape[1:] == slot_shape(geometry)
    assert 2 * contents[0].nbytes == geometry.page_bytes
    wide = widen(contents, dtype)
    largest = np.abs(NUMBERS).max(axis=-1, keepdims=True)
    assert (np.abs(wide - NUMBERS) <= TOLERANCE[dtype] * largest * (1 + 1e-6)).all()


@pytest.mark.parametrize("dtype", get_args(KVDtype))
def test_zero_bytes_are_zeros(dtype: KVDtype) -> None:
    contents = np.zeros((5, *slot_shape(KVGeometry(1, 2, 16, 4, dtype))), storage_dtype(dtype))
    assert not widen(contents, dtype).any()
    np.testing.assert_array_equal(narrow(widen(contents, dtype), dtype), contents)


@pytest.mark.parametrize("dtype", get_args(KVDtype))
def test_what_is_not_finite_is_found(dtype: KVDtype) -> None:
    largest = 6e4 if dtype == "float16" else 3.38e38
    assert are_finite(narrow(np.array([[1.0, -largest]], np.float32), dtype), dtype)
    for number in (np.inf, -np.inf, np.nan):
        if dtype == "int8":
            contents = join(np.zeros((1, 2), np.int8), np.array([number], np.float32))
        elif dtype == "bfloat16":
            contents = np.array([[1.0, number]], np.float32).view(np.uint32) >> np.uint32(16)
            contents = contents.astype(np.uint16)
        else:
            contents = np.array([[1.0, number]], dtype)
        assert not are_finite(contents, dtype)


def test_int8_is_what_the_operator_writes() -> None:
    tiny = NUMBERS * np.float32(1e-43)  # scales are a few times the smallest number above zero
    given = np.concatenate([NUMBERS, tiny])
    numbers, scales = split(narrow(given, "int8"))
    for place in np.ndindex(given.shape[:-1]):
        wanted, scale = quantize(given[place])
        np.testing.assert_array_equal(numbers[place], wanted)
        assert scales[place] == scale
    np.testing.assert_array_equal(split(join(numbers, scales))[0], numbers)


@pytest.mark.parametrize(
    ("number", "rounded"), [(1 + 2.0**-8, 1.0), (1 + 3 * 2.0**-8, 1 + 2.0**-6), (3e38, 3e38)]
)
def test_bfloat16_rounds_to_even(number: float, rounded: float) -> None:
    wide = widen(narrow(np.array([number], np.float32), "bfloat16"), "bfloat16")
    assert wide[0] == pytest.approx(rounded, rel=0 if rounded < 2 else 2.0**-8)
