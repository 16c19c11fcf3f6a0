"""Every kernel against the oracle, over the whole list of cases, under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.call import SMALL, check, compare, make_operator, make_tensors, with_dtype
from tests.operator.build import build
from tests.operator.cases import CASES, Case, case_named


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_equal_the_oracle(case: Case) -> None:
    check(compare(case), case, "float32")


# A case with page_mass is its plain form and one launch more; parts are joined before that.
IN_PARTS = [
    case
    for case in CASES
    if not case.mass_weights or case.name in ("long-decode-many-shifts-mass", "all-options-mass")
]


@pytest.mark.parametrize("case", IN_PARTS, ids=str)
def test_kernels_in_half_precision_and_in_parts(case: Case) -> None:
    case = with_dtype(case, "float16")
    difference = compare(case, sms=16, sizes=SMALL)
    check(difference, case)


def test_those_small_steps_do_cut_rows_into_parts() -> None:
    for name in ("chunk-after-context", "mixed-4x2x40-page16-float32", "long-decode"):
        call = build(case_named(name))
        tensors = make_tensors(call.inputs, torch.device("cpu"))
        operator = make_operator(call.attributes, tensors, sms=16, sizes=SMALL)
        assert operator.plan_for(tensors).num_splits > 1


@pytest.mark.parametrize("name", ["mixed-9x3x64-page16-float32", "half-query-int8", "prefill"])
def test_kernels_in_bfloat16(name: str) -> None:
    case = with_dtype(case_named(name), "float32")
    check(compare(case, bfloat16=True), case, "bfloat16")
