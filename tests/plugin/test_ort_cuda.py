"""The operator for ONNX Runtime's CUDA provider, as far as it goes without a GPU.

The library for the CUDA provider registers and builds nothing on a runtime without one. The same
code built for the CPU provider runs inside ONNX Runtime over the fake driver: tensors are bound,
checked, copied and handed to launches; only the kernels themselves do nothing.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnxruntime.capi import _pybind_state

from tests.operator.harness import ORT_ERRORS, build_model, run_session, to_ort
from tests.plugin.conftest import Build
from tests.plugin.fake_driver import FakeDriver

T, B, M, P, S, HEADS, KV_HEADS, D = 3, 2, 40, 7, 16, 6, 2, 64
ATTRIBUTES: dict[str, object] = {
    "schema_version": 2,
    "num_heads": HEADS,
    "num_kv_heads": KV_HEADS,
    "head_dim": D,
    "scale": 0.125,
    "inv_freq": [1.0, 0.5],
}
QUERIES = (np.float32, np.float16, np.uint16)  # uint16: bfloat16 as its bits
POOLS = (*QUERIES, np.int8)
FAULTS = (*ORT_ERRORS, RuntimeError)  # the latter when a bound call fails
Arrays = dict[str, np.ndarray]


def arrays_of(
    query: Any = np.float16, pool: Any = np.float16, *, writes: bool = True, **given: bool
) -> Arrays:
    """A call's arrays, without meaning but for their shapes and dtypes."""
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {"query": ((T, HEADS * D), query)}
    if writes:
        shapes |= dict.fromkeys(("key", "value"), ((T, KV_HEADS * D), query))
    shapes |= dict.fromkeys(("key_pool", "value_pool"), ((P, KV_HEADS, S, D), pool))
    shapes |= {"page_table": ((B, M, 3), np.int32), "query_starts": ((B + 1,), np.int32)}
    for name in ("slot_mapping", "kv_limits", "query_indices"):
        shapes[name] = ((T,), np.int32)
    if given.get("sinks"):
        shapes["sinks"] = ((HEADS,), np.float32)
    if pool == np.int8:
        shapes |= dict.fromkeys(("key_scales", "value_scales"), ((P, KV_HEADS, S), np.float32))
    if given.get("mass"):
        shapes |= {"page_mass": ((P,), np.float32), "mass_weights": ((B,), np.float32)}
    rng = np.random.default_rng(3)
    return {n: rng.integers(1, 100, size).astype(dtype) for n, (size, dtype) in shapes.items()}


def open_session(library: Path, arrays: Arrays, **changed: object) -> ort.InferenceSession:
    """A session over one node, on the CPU provider."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library))
    model = build_model(arrays, ATTRIBUTES | changed)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def driver(built: Build) -> Iterator[FakeDriver]:
    """The fake driver, which the library opens when its first node runs."""
    os.environ["EDGEKV_CUDA_DRIVER"] = str(built.fake_driver)
    yield FakeDriver(built.fake_driver)
    del os.environ["EDGEKV_CUDA_DRIVER"]


def test_the_cuda_library_registers_where_there_is_no_cuda(built: Build) -> None:
    """Registration needs no GPU; a session says that no provider here has the operator."""
    with pytest.raises((*FAULTS, _pybind_state.NotImplemented)) as caught:
        open_session(built.ort_cuda, arrays_of())
    assert "PagedAttention" in str(caught.value)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("pool", POOLS)
def test_tensors_reach_the_launches(
    built: Build, driver: FakeDriver, query: Any, pool: Any
) -> None:
    """Every tensor of every kind of node arrives at the kernels under its name, in place."""
    for writes, sinks, mass in product((True, False), repeat=3):
        arrays = arrays_of(query, pool, writes=writes, sinks=sinks, mass=mass)
        session = open_session(built.ort_cuda_on_cpu, arrays)
        values = {name: to_ort(array) for name, array in arrays.items()}
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        output = to_ort(arrays["query"].copy())
        for name in (o.name for o in session.get_outputs()):
            kept = output if name == "output" else values[name.removesuffix("_out")]
            binding.bind_ortvalue_output(name, kept)
        driver.reset()
        session.run_with_iobinding(binding)
        kernels = [launch.kernel for launch in driver.launches]
        assert kernels == ["prepare", "attend", "combine", *(["mass"] if mass else [])]
        assert driver.num_copies == 0
        for launch in driver.launches:
            for name, value in values.items():
                if name in launch.parameters:
                    assert launch.parameters[name] == value.data_ptr(), (launch.kernel, name)
            for name in {"key", "value", "sinks", "key_scales", "page_mass"} - set(values):
                assert launch.parameters.get(name, 0) == 0
            if "output" in launch.parameters:
                assert launch.parameters["output"] == output.data_ptr()
        driver.reset()
        session.run_with_iobinding(binding)
        assert driver.num_waiting == 0  # so that the second call may be captured


@pytest.mark.parametrize("pool", POOLS)
def test_outputs_bound_apart_start_as_copies(built: Build, driver: FakeDriver, pool: Any) -> None:
    """Pools, scales and masses are copied before anything is launched."""
    arrays = arrays_of(np.float32, pool, mass=True)
    session = open_session(built.ort_cuda_on_cpu, arrays)
    driver.reset()
    results = run_session(session, arrays, in_place=False)
    names = [name for name in results if name != "output"]
    assert driver.num_copies == len(names)
    for name in names:
        np.testing.assert_array_equal(results[name], arrays[name.removesuffix("_out")])


def test_faults_are_one_line(built: Build, driver: FakeDriver) -> None:
    """Shapes, dtypes and attributes are refused by name, and nothing is launched."""
    library = built.ort_cuda_on_cpu
    driver.reset()
    bad = arrays_of()
    bad["kv_limits"] = bad["kv_limits"][:2]
    with pytest.raises(FAULTS, match=r"kv_limits has shape \(2\), must be \(3\)"):
        run_session(open_session(library, bad), bad, in_place=True)
    bad = arrays_of()
    bad["page_table"] = bad["page_table"][0]
    with pytest.raises(FAULTS, match="page_table has 2 dimensions, must have 3"):
        run_session(open_session(library, bad), bad, in_place=True)
    bad = arrays_of(mass=True)
    del bad["mass_weights"]
    with pytest.raises(FAULTS, match="page_mass and mass_weights must be given together"):
        run_session(open_session(library, bad), bad, in_place=True)
    with pytest.raises(FAULTS, match="schema_version = 1, this library implements 2"):
        open_session(library, arrays_of(), schema_version=1)
    with pytest.raises(FAULTS, match="num_kv_heads = 4 does not divide num_heads = 6"):
        open_session(library, arrays_of(), num_kv_heads=4)
    good = arrays_of()
    for name in ("query", "key", "value", "key_pool", "value_pool"):
        good[name] = np.repeat(good[name], 3, axis=-1)
    with pytest.raises(FAULTS, match="no kernel prepare for sm_87, head_dim 192, page size 16"):
        run_session(open_session(library, good, head_dim=192), good, in_place=True)
    assert driver.launches == []


def test_a_closed_session_gives_everything_back(built: Build, driver: FakeDriver) -> None:
    """Modules, constants and the stream's workspace go with the last session that used them."""
    arrays = arrays_of()
    session = open_session(built.ort_cuda_on_cpu, arrays)
    run_session(session, arrays, in_place=True)
    assert min(driver.live) > 0
    del session
    gc.collect()
    assert driver.live == (0, 0)
