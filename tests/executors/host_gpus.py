"""GPUs made of host memory, which ``edgekv.load`` takes for those of this machine: ONNX Runtime's
CPU provider plays TensorRT, and its own CUDA provider."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from edgekv import loading, native
from edgekv.executors import ort_cuda as cuda_executor
from edgekv.executors.cuda import Cuda
from edgekv.executors.ort_session import CPU
from edgekv.executors.tensorrt import open as tensorrt_executor
from edgekv.executors.tensorrt.jobs import EngineJob
from tests.executors.host_cuda import HostCuda, HostRunning


@dataclass
class HostGpus:
    """A GPU for each executor that was made, in order, and engines by their graph's name."""

    made: list[HostCuda] = field(default_factory=list)
    engines: dict[str, HostRunning] = field(default_factory=dict)


def use_host_gpus(monkeypatch: pytest.MonkeyPatch, *, integrated: bool = False) -> HostGpus:
    """From now on ``device="cuda"`` and ``device="tensorrt"`` run on these."""
    gpus = HostGpus()

    def new() -> HostCuda:
        gpus.made.append(HostCuda(integrated=integrated))
        return gpus.made[-1]

    def run(job: EngineJob, _: object, cuda: Cuda) -> HostRunning:
        assert isinstance(cuda, HostCuda)
        gpus.engines[job.graph.name] = HostRunning(job, cuda)
        return gpus.engines[job.graph.name]

    ort_place = cuda_executor.Place(CPU, "cpu", native.ort_library_path, new)
    monkeypatch.setattr(cuda_executor, "gpu", lambda: ort_place)
    monkeypatch.setattr(cuda_executor, "CUDA", CPU)
    monkeypatch.setattr(tensorrt_executor, "gpu", lambda: tensorrt_executor.Place(new, run))
    monkeypatch.setattr(loading, "choose_device", lambda name: name)
    return gpus
