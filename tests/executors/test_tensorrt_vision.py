"""The TensorRT vision executor over a GPU made of host memory, against the CPU executor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekv.bundle import Bundle
from edgekv.errors import ExecutorError
from edgekv.executors.ort_cpu import OrtVision
from edgekv.executors.signature import vision_signature
from edgekv.executors.tensorrt.fixed import FixedEngine
from edgekv.executors.tensorrt.jobs import vision_job
from edgekv.executors.tensorrt.vision import TensorRTVision
from tests.executors.host_cuda import HostCuda, HostRunning

SIDE, TOKENS = 64, 16


@pytest.fixture(params=[False, True], ids=["discrete", "integrated"])
def cuda(request: pytest.FixtureRequest) -> HostCuda:
    return HostCuda(integrated=request.param)


@pytest.fixture
def running(bundle_path: Path, cuda: HostCuda) -> HostRunning:
    hidden = Bundle.open(bundle_path).manifest.hidden_size
    signature = vision_signature(
        height=SIDE, width=SIDE, tokens_per_image=TOKENS, hidden_size=hidden
    )
    return HostRunning(vision_job(bundle_path / "vision.onnx", signature), cuda)


@pytest.fixture
def vision(bundle_path: Path, cuda: HostCuda, running: HostRunning) -> Iterator[TensorRTVision]:
    hidden = Bundle.open(bundle_path).manifest.hidden_size
    signature = vision_signature(
        height=SIDE, width=SIDE, tokens_per_image=TOKENS, hidden_size=hidden
    )
    executor = TensorRTVision(FixedEngine(running, cuda, signature, name="vision"))
    yield executor
    executor.close()


def pictures(count: int) -> np.ndarray:
    values = np.random.default_rng(count).normal(size=(count, 3, SIDE, SIDE))
    return values.astype(np.float32)


def test_same_embeddings_as_on_the_cpu(
    vision: TensorRTVision, bundle_path: Path, cuda: HostCuda
) -> None:
    other = OrtVision(bundle_path / "vision.onnx", num_threads=1)
    for count in (1, 1, 3, 1):
        batch = pictures(count)
        wanted = np.concatenate([other.encode(batch[index : index + 1]) for index in range(count)])
        np.testing.assert_array_equal(vision.encode(batch), wanted)
    assert cuda.num_launches == 5  # all but the first went through the recorded graph


def test_another_size_is_refused(vision: TensorRTVision) -> None:
    with pytest.raises(
        ExecutorError, match=r"takes pixel_values \(1, 3, 64, 64\) float32, got \(1, 3, 32, 64\)"
    ):
        vision.encode(pictures(1)[:, :, :32])


def test_a_failed_picture_leaves_the_next_one_right(
    vision: TensorRTVision, running: HostRunning, bundle_path: Path
) -> None:
    (context,) = running.contexts
    context.fail = True
    with pytest.raises(ExecutorError, match="the vision graph failed: no reason"):
        vision.encode(pictures(1))
    context.fail = False
    wanted = OrtVision(bundle_path / "vision.onnx", num_threads=1).encode(pictures(1))
    for _ in range(3):
        np.testing.assert_array_equal(vision.encode(pictures(1)), wanted)


def test_closed(vision: TensorRTVision, cuda: HostCuda) -> None:
    vision.encode(pictures(1))
    vision.encode(pictures(1))
    vision.close()
    vision.close()
    assert (cuda.blocks, cuda.num_graphs) == ({}, 0)
    with pytest.raises(ExecutorError, match="the vision executor is closed"):
        vision.encode(pictures(1))
