"""Weight formats: the numbers that were meant, and the nodes that ONNX Runtime fuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekv import native
from edgekv.export.build import TracedDecoder, save_decoders
from edgekv.export.weights import quantize_int4, store_weights
from tests.export.conftest import Exported
from tests.export.models import HIDDEN
from tests.export.paged import PagedDecoder, Row

MODEL, LENGTH = "llama", 17
pytestmark = pytest.mark.xdist_group(MODEL)


@pytest.fixture
def traced(exported: Callable[[str], Exported]) -> TracedDecoder:
    return exported(MODEL).traced


@pytest.fixture(scope="module")
def folders(
    exported: Callable[[str], Exported], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The same decoder in every weight format; each starts from the fp32 one."""
    root = tmp_path_factory.mktemp("weights")
    traced, found = exported(MODEL).traced, {"fp32": exported(MODEL).folder}
    for kind in ("fp16", "int4"):
        found[kind] = root / kind
        found[kind].mkdir()
        graph = ir.load(found["fp32"] / "decoder.onnx")
        save_decoders(found[kind], replace(traced, graph=graph), kind)
    return found


@pytest.fixture(scope="module")
def embeds() -> np.ndarray[Any, Any]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(LENGTH, HIDDEN, generator=generator).numpy()


def logits(folder: Path, traced: TracedDecoder, embeds: Any) -> np.ndarray[Any, Any]:
    return PagedDecoder(folder / "decoder.onnx", traced.geometry).step([(Row(), embeds)])


def with_rounded_weights(folder: Path, kind: str, target: Path) -> Path:
    """An fp32 graph whose weights are those of ``kind``, dequantised by NumPy, in ``target``."""
    graph = ir.load(folder / "decoder.onnx")
    for name, value in list(graph.graph.initializers.items()):
        assert value.const_value is not None
        array = value.const_value.numpy()
        if array.ndim != 2 or array.size < 1024:
            continue
        if kind == "fp16":
            rounded = array.astype(np.float16).astype(np.float32)
        else:
            levels, scales = quantize_int4(array, 32)
            rounded = levels * np.repeat(scales, 32, axis=0)
        value.const_value = ir.tensor(rounded.astype(np.float32), name=name)
    ir.save(graph, target / "decoder.onnx", external_data="decoder.onnx.data")
    return target


@pytest.mark.parametrize(("kind", "tolerance"), [("fp16", 1e-4), ("int4", 4e-2)])
def test_numbers_are_those_of_the_rounded_weights(
    folders: dict[str, Path],
    traced: TracedDecoder,
    embeds: Any,
    kind: str,
    tolerance: float,
    tmp_path: Path,
) -> None:
    """int4 products round their activations to int8 (accuracy level 4), hence the tolerance."""
    reference = logits(with_rounded_weights(folders["fp32"], kind, tmp_path), traced, embeds)
    got = logits(folders[kind], traced, embeds)
    assert np.abs(got - reference).max() <= tolerance * np.abs(reference).max()


@pytest.mark.parametrize("kind", ["fp16", "int4"])
def test_numbers_are_near_the_full_ones(
    folders: dict[str, Path], traced: TracedDecoder, embeds: Any, kind: str
) -> None:
    full, got = logits(folders["fp32"], traced, embeds), logits(folders[kind], traced, embeds)
    distance = np.linalg.norm(got - full) / np.linalg.norm(full)
    assert 0 < distance < {"fp16": 2e-3, "int4": 0.25}[kind]


def test_files_shrink(folders: dict[str, Path]) -> None:
    size = {kind: (path / "decoder.onnx.data").stat().st_size for kind, path in folders.items()}
    assert size["fp16"] < 0.55 * size["fp32"]
    assert size["int4"] < 0.25 * size["fp32"]


def test_every_int4_product_is_fused(folders: dict[str, Path], tmp_path: Path) -> None:
    path = folders["int4"] / "decoder.onnx"
    before = Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)
    assert before["DequantizeLinear"] == before["MatMul"] == 2 * 7 + 1  # the head included
    assert before["Gemm"] == 0
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    options.register_custom_ops_library(str(native.ort_library_path()))
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    optimised = onnx.load(tmp_path / "optimised.onnx", load_external_data=False)
    after = Counter(node.op_type for node in optimised.graph.node)
    assert after["MatMulNBits"] == 15
    assert after["DequantizeLinear"] == after["MatMul"] == 0


def test_weights_are_written_once_for_all_pools(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        assert sorted(path.name for path in folder.iterdir()) == [
            "decoder.bfloat16-kv.onnx",
            "decoder.float16-kv.onnx",
            "decoder.int8-kv.onnx",
            "decoder.onnx",
            "decoder.onnx.data",
        ]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    block=st.sampled_from([16, 32]),
    blocks=st.integers(1, 4),
    columns=st.integers(1, 9),
    scale=st.sampled_from([1e-6, 0.02, 1.0, 300.0]),
)
def test_int4_error_is_within_half_a_step(
    seed: int, block: int, blocks: int, columns: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    weight = (rng.standard_normal((block * blocks, columns)) * scale).astype(np.float32)
    levels, scales = quantize_int4(weight, block)
    assert levels.shape == weight.shape
    assert scales.shape == (blocks, columns)
    assert levels.min() >= -8
    assert levels.max() <= 7
    error = np.square(levels * np.repeat(scales, block, 0) - weight).sum()
    steps = np.abs(weight).reshape(blocks, block, columns).max(1) / 8
    # Rounding alone costs at most half a step per weight; the clip at +7 at most one whole step.
    assert error <= np.repeat(np.square(steps), block, 0).sum()


def test_int4_keeps_zero_blocks_and_exact_grids() -> None:
    grid = np.tile(np.arange(-8, 8, dtype=np.float32), 2)[:, None] * np.float32(0.5)
    levels, scales = quantize_int4(np.hstack([grid, np.zeros_like(grid)]), 32)
    back = levels * np.repeat(scales, 32, 0)
    assert np.array_equal(back[:, :1], grid)
    assert not back[:, 1].any()


def test_rows_that_no_block_divides_stay_fp16() -> None:
    rows = ir.tensor(np.ones((40, 64), np.float32), name="w")
    weight = ir.Value(
        name="w", type=ir.TensorType(rows.dtype), shape=ir.Shape((40, 64)), const_value=rows
    )
    source = ir.Value(name="x", type=weight.type, shape=ir.Shape(("T", 40)))
    product = ir.node("MatMul", [source, weight])
    graph = ir.Graph([source], product.outputs, nodes=[product], initializers=[weight])
    store_weights(ir.Model(graph, ir_version=10), "int4")
    assert [node.op_type for node in graph] == ["Cast", "MatMul"]
