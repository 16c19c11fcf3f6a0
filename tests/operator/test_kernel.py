"""Every instruction set of the CPU kernel against the oracle, through ONNX Runtime."""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.operator.build import build
from tests.operator.cases import CASES, Case, case_named
from tests.operator.harness import (
    ORT_ERRORS,
    POOL_NAMES,
    build_model,
    input_arrays,
    node_attributes,
    open_session,
    oracle_outputs,
    run_ort,
    run_session,
)

ISAS = ("neon",) if platform.machine() in ("aarch64", "arm64") else ("baseline", "avx2", "avx512")
TOLERANCE = {"float32": 1e-5, "float16": 1e-3}


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sets the instruction set, or skips where this processor lacks it."""
    monkeypatch.setenv("EDGEKV_CPU_ISA", request.param)
    call = build(case_named("first-token"))
    model = build_model(input_arrays(call.inputs), node_attributes(call.attributes))
    try:
        open_session(model)
    except ORT_ERRORS as error:
        if "this processor lacks" not in str(error):
            raise
        pytest.skip(f"this processor lacks {request.param}")
    return str(request.param)


def check_against_oracle(case: Case, *, in_place: bool) -> None:
    call, expected = build(case), oracle_outputs(case)
    result = run_ort(call.attributes, call.inputs, in_place=in_place)
    np.testing.assert_allclose(
        result.output, expected.output, rtol=0, atol=TOLERANCE[case.query_dtype]
    )
    for name in POOL_NAMES:
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))
    if case.mass_weights:
        # A share is off by a few units in the last place, and a page collects thousands of them.
        np.testing.assert_allclose(result.page_mass, expected.page_mass, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.usefixtures("isa")
def test_kernel_equals_oracle(case: Case) -> None:
    check_against_oracle(case, in_place=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_equals_oracle_with_copied_pools(case: Case) -> None:
    check_against_oracle(case, in_place=False)


def test_default_is_the_best_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    call = build(case_named("many-query-blocks"))
    monkeypatch.delenv("EDGEKV_CPU_ISA", raising=False)
    default = run_ort(call.attributes, call.inputs).output
    supported = []
    for name in ISAS:
        monkeypatch.setenv("EDGEKV_CPU_ISA", name)
        try:
            supported.append(run_ort(call.attributes, call.inputs).output)
        except ORT_ERRORS as error:
            if "this processor lacks" not in str(error):
                raise
    np.testing.assert_array_equal(default, supported[-1])


def test_in_place_writes_the_callers_memory_and_copied_does_not() -> None:
    call = build(case_named("prefill"))
    model = build_model(input_arrays(call.inputs), node_attributes(call.attributes))
    session = open_session(model)
    for in_place in (True, False):
        arrays = input_arrays(call.inputs)
        run_session(session, arrays, in_place=in_place)
        after = call.stored_keys if in_place else call.inputs.key_pool
        np.testing.assert_array_equal(arrays["key_pool"], after)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("case", [case for case in CASES if case.mass_weights], ids=str)
def test_mass_changes_no_other_bit(case: Case) -> None:
    call = build(case)
    with_mass = run_ort(call.attributes, call.inputs)
    without = run_ort(call.attributes, replace(call.inputs, page_mass=None, mass_weights=None))
    for name in ("output", *POOL_NAMES):
        np.testing.assert_array_equal(getattr(with_mass, name), getattr(without, name))


def test_the_mass_of_rows_without_weight_is_left_alone_to_the_bit() -> None:
    call = build(case_named("softcap-mass"))
    result = run_ort(call.attributes, call.inputs)
    np.testing.assert_array_equal(result.page_mass, call.inputs.page_mass)


def test_mass_is_written_where_the_caller_put_it_and_copied_otherwise() -> None:
    call = build(case_named("prefill-mass"))
    model = build_model(input_arrays(call.inputs), node_attributes(call.attributes))
    session = open_session(model)
    for in_place in (True, False):
        arrays = input_arrays(call.inputs)
        result = run_session(session, arrays, in_place=in_place)
        unchanged = np.array_equal(arrays["page_mass"], call.inputs.page_mass)
        assert unchanged is not in_place
        np.testing.assert_allclose(
            result["page_mass_out"], oracle_outputs(call.case).page_mass, rtol=2e-5, atol=2e-5
        )


@pytest.mark.usefixtures("isa")
def test_garbage_reaches_no_mass_but_that_of_pages_it_is_seen_on() -> None:
    call = build(case_named("prefill-mass"))
    poisoned = replace(call.inputs, key=call.inputs.key.copy())
    poisoned.key[-1] = np.nan  # only the last token sees itself, and gives all pages NaN
    blind = replace(poisoned, kv_limits=np.minimum(call.inputs.kv_limits, 36))
    assert np.isnan(run_ort(call.attributes, poisoned).page_mass).any()
    assert np.isfinite(run_ort(call.attributes, blind).page_mass).all()


@pytest.mark.usefixtures("isa")
def test_a_value_some_tokens_do_not_see_never_reaches_them() -> None:
    call = build(case_named("prefill"))
    poisoned = replace(call.inputs, key=call.inputs.key.copy(), value=call.inputs.value.copy())
    poisoned.key[-1], poisoned.value[-1] = np.inf, np.nan  # only the last token sees itself
    clean = run_ort(call.attributes, call.inputs).output
    result = run_ort(call.attributes, poisoned).output
    np.testing.assert_array_equal(result[:-1], clean[:-1])
    assert np.isnan(result[-1]).all()


@pytest.mark.usefixtures("isa")
def test_nan_in_a_query_shows_in_its_output_only() -> None:
    call = build(case_named("mixed-9x3x64-page16-float16"))
    query = call.inputs.query.copy()
    query[0, 3] = np.nan
    result = run_ort(call.attributes, replace(call.inputs, query=query)).output
    assert np.isnan(result[0, :64]).all()
    assert np.isfinite(result[0, 64:]).all()
    assert np.isfinite(result[1:]).all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ["mixed-9x3x64-page16-float16", "empty-row", "window"])
def test_a_row_alone_gives_the_same_bits_as_batched(name: str) -> None:
    call = build(case_named(name))
    inputs, starts = call.inputs, call.inputs.query_starts
    batched = run_ort(call.attributes, inputs).output
    for row in range(len(starts) - 1):
        mine = slice(starts[row], starts[row + 1])
        alone = replace(
            inputs,
            page_table=inputs.page_table[row : row + 1],
            query_starts=np.array([0, mine.stop - mine.start], np.int32),
            **{
                field: getattr(inputs, field)[mine]
                for field in (
                    "query", "key", "value", "slot_mapping", "kv_limits", "query_indices",
                )
            },
        )  # fmt: skip
        np.testing.assert_array_equal(run_ort(call.attributes, alone).output, batched[mine])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ["mixed-9x3x64-page16-float16-mass", "empty-row-mass"])
def test_the_mass_of_a_row_is_the_same_bits_whoever_is_beside_it(name: str) -> None:
    call = build(case_named(name))
    weights = call.inputs.mass_weights
    batched = replace(call.inputs, page_mass=np.zeros_like(call.inputs.page_mass))
    mass = run_ort(call.attributes, batched).page_mass
    for row, weight in enumerate(weights):
        only = np.zeros_like(weights)
        only[row] = weight
        alone = run_ort(call.attributes, replace(batched, mass_weights=only)).page_mass
        table = call.inputs.page_table
        mine = np.setdiff1d(table[row, :, 0], np.delete(table, row, axis=0)[..., 0])
        np.testing.assert_array_equal(alone[mine[mine >= 0]], mass[mine[mine >= 0]])


def test_the_number_of_threads_changes_no_bit() -> None:
    call = build(case_named("long-decode-many-shifts-mass"))
    arrays = input_arrays(call.inputs)
    model = build_model(arrays, node_attributes(call.attributes))
    results = [
        run_session(open_session(model, threads), arrays, in_place=False) for threads in (1, 2, 4)
    ]
    for name in ("output", "page_mass_out"):
        np.testing.assert_array_equal(results[0][name], results[1][name])
        np.testing.assert_array_equal(results[0][name], results[2][name])


def test_one_session_may_be_run_by_several_threads() -> None:
    cases = [case_named(name) for name in ("window", "window-one", "sinks", "decode", "prefill")]
    calls = [build(case) for case in cases] * 8
    sessions = {
        call.case: open_session(
            build_model(input_arrays(call.inputs), node_attributes(call.attributes))
        )
        for call in calls
    }

    def run(index: int) -> np.ndarray:
        call = calls[index]
        return run_session(sessions[call.case], input_arrays(call.inputs), in_place=True)["output"]

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(run, range(len(calls))))
    for call, result in zip(calls, results, strict=True):
        np.testing.assert_allclose(result, oracle_outputs(call.case).output, rtol=0, atol=1e-5)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ["mixed-4x2x40-page16-float32", "prefill", "decode"])
def test_bfloat16_pools(name: str) -> None:
    call = build(case_named(name))
    bits = {name: to_bfloat16(getattr(call.inputs, name)) for name in ("key_pool", "value_pool")}
    rounded = {
        name: from_bfloat16(to_bfloat16(getattr(call.inputs, name)))
        for name in ("key", "value", "key_pool", "value_pool")
    }
    result = run_ort(call.attributes, replace(call.inputs, **bits))
    expected = run_ort(call.attributes, replace(call.inputs, **rounded))
    np.testing.assert_array_equal(result.output, expected.output)
    written = from_bfloat16(result.key_pool)
    np.testing.assert_array_equal(written, expected.key_pool)
