"""What doctor and ``--device`` say about what is missing."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from edgekv import native
from edgekv.errors import ExecutorError
from edgekv.executors import choose_device, device_reports, devices


class Driver:
    """A libcuda of CUDA ``version`` / 1000 that finds ``num_gpus``."""

    def __init__(self, num_gpus: int, code: int = 0, version: int = 13_000) -> None:
        self._num_gpus, self._code, self._version = num_gpus, code, version

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802 - CUDA's name
        version._obj.value = self._version
        return 0

    def cuInit(self, _: int) -> int:  # noqa: N802 - CUDA's name
        return self._code

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802 - CUDA's name
        count._obj.value = self._num_gpus
        return 0


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine where nothing is missing; the folder holds its native libraries."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(1))
    capi = tmp_path / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    (capi / "libonnxruntime_providers_cuda.so").touch()

    def find(name: str) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.ModuleSpec(name, None, origin=name, is_package=True)
        spec.submodule_search_locations = [str(tmp_path / name)]
        return spec

    monkeypatch.setattr(importlib.util, "find_spec", find)
    libraries = tmp_path / "native"
    libraries.mkdir()
    for name in ("edgekv_ort", "edgekv_ort_cuda", "edgekv_tensorrt"):
        (libraries / f"lib{name}.so").touch()
    monkeypatch.setattr(native, "__path__", [str(libraries)])
    monkeypatch.setattr("importlib.metadata.files", lambda _: [])
    return tmp_path


def problems(device: str) -> tuple[str, ...]:
    return next(report.problems for report in device_reports() if report.device == device)


@pytest.mark.parametrize(
    ("version", "wanted"), [(12_060, "'cuda-bindings<13'"), (13_000, "cuda-bindings")]
)
@pytest.mark.usefixtures("gpu_machine")
def test_bindings_of_the_drivers_own_cuda_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, version: int, wanted: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(1, version=version))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name.startswith("cuda") else find(name)
    )
    assert problems("tensorrt") == (f"cuda-bindings is not installed: pip install {wanted}",)


@pytest.mark.usefixtures("gpu_machine")
def test_the_best_device_is_taken() -> None:
    assert [report.available for report in device_reports()] == [True, True, True]
    assert choose_device("auto") == "tensorrt"
    assert choose_device("cuda") == "cuda"


def test_one_line_for_each_thing_that_is_missing(
    gpu_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    (gpu_machine / "native" / "libedgekv_tensorrt.so").unlink()

    def no_driver(_: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    lines = problems("tensorrt")
    assert [line.split(":")[0] for line in lines] == [
        "no NVIDIA driver (libcuda.so.1)",
        "TensorRT is not installed",
        "cuda-bindings is not installed",
        "libedgekv_tensorrt.so is not built",
    ]
    assert "pip install 'edgekv[tensorrt]'" in lines[1]
    assert "run scripts/build_plugin.py --bundle BUNDLE --install" in lines[3]
    with pytest.raises(ExecutorError) as caught:
        choose_device("tensorrt")
    assert all(line in str(caught.value) for line in lines)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("gpu_machine")
def test_type_stubs_are_no_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    """They install a folder of that name, which Python takes for a namespace."""
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None)
    )
    assert problems("tensorrt")[0].startswith("TensorRT is not installed")


def test_a_plain_onnxruntime_has_no_cuda(gpu_machine: Path) -> None:
    (gpu_machine / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so").unlink()
    assert problems("cuda") == (
        "this onnxruntime has no CUDA provider: pip uninstall onnxruntime; "
        "pip install 'edgekv[gpu]'",
    )


@pytest.mark.usefixtures("gpu_machine")
@pytest.mark.parametrize(("driver", "code"), [(Driver(0), 0), (Driver(1, 100), 100)])
def test_a_driver_without_a_gpu(monkeypatch: pytest.MonkeyPatch, driver: Driver, code: int) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    assert problems("cuda") == (
        f"the NVIDIA driver finds no GPU (CUDA error {code}): is this container given one?",
    )
    assert choose_device("auto") == "cpu"


def test_looking_loads_no_graph_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    loaded: list[str] = []
    real = builtins.__import__

    def watched(name: str, *rest: Any, **options: Any) -> Any:
        loaded.append(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", watched)
    devices.device_reports()
    assert not {name.split(".")[0] for name in loaded} & {"tensorrt", "onnxruntime"}
