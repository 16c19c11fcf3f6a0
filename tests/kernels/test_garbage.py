"""What must not spread: numbers that are not finite, and what a workspace held before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.kernels.call import SMALL, make_operator, make_tensors, run
from tests.operator.build import Call, build
from tests.operator.cases import CASES

# A row of scores may be all NaN on purpose; NumPy says so when the interpreter takes its maximum.
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")


def call_named(name: str) -> Call:
    return build(next(case for case in CASES if case.name == name))


@pytest.mark.parametrize("sizes", [None, SMALL], ids=["whole", "parts"])
@pytest.mark.parametrize("rubbish", [np.nan, np.inf, -np.inf])
def test_a_value_some_tokens_do_not_see_never_reaches_them(rubbish: float, sizes: object) -> None:
    call = call_named("prefill")
    poisoned = replace(call.inputs, key=call.inputs.key.copy(), value=call.inputs.value.copy())
    poisoned.key[-1], poisoned.value[-1] = np.inf, rubbish  # only the last token sees itself
    clean = run(call.attributes, call.inputs, sms=16, sizes=sizes).output
    result = run(call.attributes, poisoned, sms=16, sizes=sizes).output
    torch.testing.assert_close(result[:-1], clean[:-1], rtol=0, atol=1e-6)
    assert not torch.isfinite(result[-1]).any()


def test_an_infinite_value_gives_what_the_sum_gives() -> None:
    call = call_named("prefill")
    poisoned = replace(call.inputs, value=call.inputs.value.copy())
    poisoned.value[20, 3] = np.inf
    result = run(call.attributes, poisoned).output
    assert torch.isfinite(result[:20]).all()
    assert (result[20:, 3] == np.inf).all()
    assert torch.isfinite(result[20:, 4:32]).all()


def test_nan_in_a_query_shows_in_its_output_only() -> None:
    call = call_named("mixed-9x3x64-page16-float16")
    query = call.inputs.query.copy()
    query[0, 3] = np.nan
    result = run(call.attributes, replace(call.inputs, query=query)).output
    assert torch.isnan(result[0, :64]).all()
    assert torch.isfinite(result[0, 64:]).all()
    assert torch.isfinite(result[1:]).all()


def test_a_scale_that_is_nan_shows_only_where_its_token_is_seen() -> None:
    call = call_named("mixed-9x3x64-page16-int8")
    value = call.inputs.value.copy()
    value[-2, 0] = np.nan  # of the second row's last but one token
    result = run(call.attributes, replace(call.inputs, value=value)).output
    first_head = slice(0, 3 * 64)
    assert torch.isnan(result[-2:, first_head]).all()
    assert torch.isfinite(result[:-2]).all()
    assert torch.isfinite(result[-2:, 3 * 64 :]).all()


@pytest.mark.parametrize("name", ["long-decode", "sees-nothing", "all-options", "empty-row"])
def test_a_used_workspace_changes_nothing_and_nothing_beyond_it_is_written(name: str) -> None:
    call = call_named(name)
    expected = run(call.attributes, call.inputs, sms=16, sizes=SMALL)
    tensors = make_tensors(call.inputs, torch.device("cpu"))
    operator = make_operator(call.attributes, tensors, sms=16, sizes=SMALL)
    size = operator.plan_for(tensors).workspace_bytes
    memory = torch.full((size + 512,), 0xFF, dtype=torch.uint8)  # as float32 and float16: NaN
    operator(tensors, memory[:size])
    torch.testing.assert_close(tensors.output, expected.output, rtol=0, atol=0)
    assert (memory[size:] == 0xFF).all()
