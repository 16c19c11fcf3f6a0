"""The oracle against dense attention, and the rules of the document it must keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv import oracle
from edgekv.oracle import Attributes
from tests.operator import dense
from tests.operator.build import build
from tests.operator.cases import CASES, Case
from tests.operator.harness import INPUT_NAMES, oracle_outputs

TOLERANCE = {"float32": 2e-6, "float16": 1e-3}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_oracle_equals_dense_attention(case: Case) -> None:
    call = build(case)
    result = oracle_outputs(case).output
    assert result.dtype == call.inputs.query.dtype
    expected = dense.attend_all(call)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(result, expected, rtol=0, atol=TOLERANCE[case.query_dtype])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_oracle_writes_new_tokens_and_nothing_else(case: Case) -> None:
    call, result = build(case), oracle_outputs(case)
    np.testing.assert_array_equal(result.key_pool, call.stored_keys)
    np.testing.assert_array_equal(result.value_pool, call.stored_values)


@pytest.mark.parametrize("case", [case for case in CASES if case.mass_weights], ids=str)
def test_oracle_adds_up_the_mass_of_dense_attention(case: Case) -> None:
    result = oracle_outputs(case).page_mass
    np.testing.assert_allclose(result, dense.mass(build(case)), rtol=1e-5, atol=1e-5)


def test_oracle_leaves_its_inputs_alone() -> None:
    call = build(next(case for case in CASES if case.name == "mixed-8x1x80-page8-int8-mass"))
    arrays = {name: getattr(call.inputs, name) for name in INPUT_NAMES}
    before = {name: array.copy() for name, array in arrays.items() if array is not None}
    oracle.paged_attention(call.attributes, call.inputs)
    for name, array in before.items():
        np.testing.assert_array_equal(array, arrays[name])


@given(st.integers(-5000, 5000), st.integers(-5000, 5000), st.booleans())
def test_rotations_add_up(a: int, b: int, interleaved: bool) -> None:
    attributes = Attributes(1, 1, 8, 1.0, inv_freq=(1.0, 0.25), rotary_interleaved=interleaved)
    vector = np.arange(1, 9, dtype=np.float32)

    def turned(by: int, what: np.ndarray) -> np.ndarray:
        return oracle.rotate(what, np.array([by], np.int32), attributes)

    np.testing.assert_allclose(turned(a, turned(b, vector)), turned(a + b, vector), atol=1e-5)


@pytest.mark.parametrize(
    ("vector", "scale"),
    [([0.0, 0.0], 0.0), ([np.nan, 1.0], np.nan), ([np.inf, 1.0], np.nan), ([-254.0, 1.0], 2.0)],
)
def test_int8_scales(vector: list[float], scale: float) -> None:
    numbers, found = oracle.quantize(np.array(vector, np.float32))
    np.testing.assert_equal(found, np.float32(scale))
    assert np.abs(numbers.astype(int)).max() <= 127


def test_int8_ties_go_to_even() -> None:
    numbers, scale = oracle.quantize(np.array([127.0, 0.5, 1.5, -0.5, -2.5], np.float32))
    assert scale == 1.0
    assert numbers.tolist() == [127, 0, 2, 0, -2]
