"""GPUs made of host memory, which ``edgekv.load`` takes for those of this machine."""

from __future__ import annotations

import pytest

from edgekv import loading, native
from edgekv.executors import ort_cuda as cuda_executor
from edgekv.executors.cuda import Cuda
from edgekv.executors.ort_session import CPU
from edgekv.executors.tensorrt import open as tensorrt_executor
from edgekv.executors.tensorrt.jobs import EngineJob
from tests.executors.host_cuda import HostCuda, HostRunning


@pytest.fixture
def engines() -> dict[str, HostRunning]:
    """Engines that ran, by their graph's name."""
    return {}


@pytest.fixture(params=[False, True], ids=["discrete", "integrated"])
def gpus(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    engines: dict[str, HostRunning],
) -> list[HostCuda]:
    """GPUs made of host memory, with ONNX Runtime's CPU provider in place of its CUDA provider, and
    of TensorRT."""
    made: list[HostCuda] = []

    def new() -> HostCuda:
        made.append(HostCuda(integrated=request.param))
        return made[-1]

    def run(job: EngineJob, _: object, cuda: Cuda) -> HostRunning:
        assert isinstance(cuda, HostCuda)
        engines[job.graph.name] = HostRunning(job, cuda)
        return engines[job.graph.name]

    ort_place = cuda_executor.Place(CPU, "cpu", native.ort_library_path, new)
    monkeypatch.setattr(cuda_executor, "gpu", lambda: ort_place)
    monkeypatch.setattr(cuda_executor, "CUDA", CPU)
    monkeypatch.setattr(tensorrt_executor, "gpu", lambda: tensorrt_executor.Place(new, run))
    monkeypatch.setattr(loading, "choose_device", lambda name: name)
    return made
