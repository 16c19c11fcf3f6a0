"""Calls leave no memory behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.operator.build import build
from tests.operator.cases import CASES
from tests.operator.harness import build_model, input_arrays, node_attributes, open_session, to_ort

STATUS = Path("/proc/self/status")
NUM_CALLS = 2000


def anonymous_kib() -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1])


@pytest.mark.skipif(not STATUS.exists(), reason="reads /proc")
def test_anonymous_memory_is_flat_over_calls() -> None:
    call = build(next(case for case in CASES if case.name == "long-decode-many-shifts-mass"))
    arrays = input_arrays(call.inputs)
    session = open_session(build_model(arrays, node_attributes(call.attributes)))
    binding = session.io_binding()
    values = {name: to_ort(array) for name, array in arrays.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("output", to_ort(np.zeros_like(arrays["query"])))
    for name in ("key_pool", "value_pool", "page_mass"):
        binding.bind_ortvalue_output(f"{name}_out", values[name])
    for _ in range(200):
        session.run_with_iobinding(binding)
    before = anonymous_kib()
    for _ in range(NUM_CALLS):
        session.run_with_iobinding(binding)
    # The smallest leak, one entry of the plan per call, would be some MiB.
    assert anonymous_kib() - before < 512
