"""Models with cross-attention on ONNX Runtime's CUDA executor, all of it but the GPU: sessions say
what they say on the CPU, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgekv
from edgekv import loading, native
from edgekv.bundle import Bundle
from edgekv.errors import ExecutorError
from edgekv.executors import choose_device, create_cross, create_decoder, create_encoder, devices
from edgekv.executors import ort_cuda as cuda_executor
from edgekv.executors.devices import DeviceReport
from edgekv.executors.ort_cross import OrtCross
from edgekv.executors.ort_session import CPU
from tests.executors.host_cuda import HostCuda
from tests.session.cross_bundle import save_cross_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return save_cross_bundle(tmp_path / "bundle", "pictures", "float16")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[HostCuda]:
    """``device="cuda"`` is ONNX Runtime's CPU provider over memory of these."""
    made: list[HostCuda] = []

    def new() -> HostCuda:
        made.append(HostCuda())
        return made[-1]

    place = cuda_executor.Place(CPU, "cpu", native.ort_library_path, new)
    monkeypatch.setattr(cuda_executor, "gpu", lambda: place)
    monkeypatch.setattr(cuda_executor, "CUDA", CPU)
    monkeypatch.setattr(loading, "choose_device", lambda name, **_: name)
    return made


def life(bundle: Path, device: str, file: Path) -> list[Any]:
    """What a session says about two pictures, before and after it was saved."""
    said: list[Any] = []
    rng = np.random.default_rng(0)
    with edgekv.load(bundle, kv_budget="64KiB", device=device, num_threads=1) as model:
        session = model.session(instructions="Look.")
        for k in range(2):
            session.push(rng.integers(0, 256, (9, 5, 3), np.uint8), float(k))
            said.append(session.logits("What is it?"))
            said.append(np.array(session.ask("And now?").token_ids))
        session.save(file)
        session.close()
        with model.restore(file) as restored:
            said.append(restored.logits("What is it?"))
    return said


def test_sessions_say_the_same_as_on_the_cpu(
    bundle: Path, gpus: list[HostCuda], tmp_path: Path
) -> None:
    ours = life(bundle, "cuda", tmp_path / "a")
    assert len(gpus) == 2  # of the decoder, and of the cross pools
    assert not any(gpu.blocks for gpu in gpus)
    for mine, other in zip(ours, life(bundle, "cpu", tmp_path / "b"), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert not np.array_equal(ours[0], ours[2])  # the pictures are seen
    np.testing.assert_array_equal(ours[2], ours[4])


def test_pools_in_another_memory_are_refused(bundle: Path) -> None:
    opened = Bundle.open(bundle)
    assert opened.cross is not None
    graph, geometry = bundle / opened.cross.graphs["float16"], opened.cross.geometry
    on_cpu = OrtCross(graph, geometry, num_pages=4)
    with pytest.raises(ExecutorError, match="cross pools of a OrtCross cannot be read here"):
        create_decoder("cuda", opened.decoder_path, opened.geometry, num_pages=4, cross=on_cpu)


def test_tensorrt_says_what_does_run(bundle: Path) -> None:
    opened = Bundle.open(bundle)
    assert opened.cross is not None
    graph, geometry = bundle / opened.cross.graphs["float16"], opened.cross.geometry
    for create in (
        lambda: create_encoder("tensorrt", opened.encoder_path),
        lambda: create_cross("tensorrt", graph, geometry, num_pages=4),
    ):
        with pytest.raises(ExecutorError, match=r"do not run on TensorRT: .* --device cuda"):
            create()


def test_auto_is_what_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = tuple(DeviceReport(name) for name in ("tensorrt", "cuda", "cpu"))
    monkeypatch.setattr(devices, "device_reports", lambda: reports)
    assert choose_device("auto") == "tensorrt"
    assert choose_device("auto", cross_attention=True) == "cuda"
    assert choose_device("tensorrt", cross_attention=True) == "tensorrt"  # refused later, by name
