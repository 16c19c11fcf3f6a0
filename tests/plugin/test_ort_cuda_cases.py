"""The whole list of operator cases through the CUDA op's binding, against the oracle.

The op runs inside ONNX Runtime on the CPU, over the fake driver; its kernels are emulated by the
CPU's (plugins/tensorrt/check/emulate.h), so what is proven is the way of every input to its kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgekv import native
from tests.operator.build import build
from tests.operator.cases import CASES, Case
from tests.operator.harness import POOL_NAMES, oracle_outputs, run_ort
from tests.plugin.conftest import Build
from tests.plugin.fake_driver import FakeDriver

TOLERANCE = {"float32": 1e-5, "float16": 1e-3}


@pytest.fixture(scope="module")
def library(built: Build) -> Iterator[None]:
    """ONNX Runtime's sessions here take the CUDA op."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEKV_CUDA_DRIVER", str(built.fake_driver))
        patch.setattr(native, "ort_library_path", lambda: built.ort_cuda_on_cpu)
        driver = FakeDriver(built.fake_driver)
        driver.emulate(True)
        yield
        driver.emulate(False)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("in_place", [True, False], ids=["in-place", "apart"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, in_place: bool) -> None:
    call, expected = build(case), oracle_outputs(case)
    result = run_ort(call.attributes, call.inputs, in_place=in_place)
    np.testing.assert_allclose(
        result.output, expected.output, rtol=0, atol=TOLERANCE[case.query_dtype]
    )
    for name in POOL_NAMES:
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))
    if case.mass_weights:
        np.testing.assert_allclose(result.page_mass, expected.page_mass, rtol=2e-5, atol=2e-5)
