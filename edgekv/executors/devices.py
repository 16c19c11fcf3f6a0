"""Which devices can run a bundle here, and for the others the reasons and the remedies.

Owns: the list of device names and the choice that ``auto`` makes. Imports no graph library: it
looks for them without loading them, so that ``edgekv doctor`` works when one of them is broken.
"""

from __future__ import annotations

import ctypes
import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from edgekv.errors import ExecutorError
from edgekv.native import ort_cuda_library_path, ort_library_path, tensorrt_plugin_path

Device = Literal["cpu", "cuda", "tensorrt"]


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """Whether one device can run graphs here. ``problems``, one line each, is empty when it can."""

    device: Device
    problems: tuple[str, ...] = ()

    @property
    def available(self) -> bool:
        """Whether nothing is missing."""
        return not self.problems


def device_reports() -> tuple[DeviceReport, ...]:
    """One report per device, best device first."""
    gpu = _gpu_problem()
    return (
        DeviceReport("tensorrt", _lines(gpu, _tensorrt_problem(), _cuda_bindings_problem(),
                                        _library_problem(tensorrt_plugin_path))),
        DeviceReport("cuda", _lines(gpu, _ort_cuda_problem(), _cuda_bindings_problem(),
                                    _library_problem(ort_cuda_library_path))),
        DeviceReport("cpu", _lines(_ort_problem(), _library_problem(ort_library_path))),
    )  # fmt: skip


def _lines(*problems: str | None) -> tuple[str, ...]:
    return tuple(problem for problem in problems if problem)


def _gpu_problem() -> str | None:
    """The driver is what knows; a device file may be there without it, in a container say."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return f"no NVIDIA driver (libcuda.so.1): {_driver_advice()}"
    count = ctypes.c_int(0)
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code or not count.value:
        return f"the NVIDIA driver finds no GPU (CUDA error {code}): is this container given one?"
    return None


def _driver_advice() -> str:
    if Path("/etc/nv_tegra_release").exists() or "tegra" in platform.release():
        return "in a container, start it with --runtime nvidia"
    return "this needs a machine with an NVIDIA GPU and its driver"


def _tensorrt_problem() -> str | None:
    spec = importlib.util.find_spec("tensorrt")
    if spec is not None and spec.origin is not None:  # type stubs alone have none
        return None
    if Path("/etc/nv_tegra_release").exists():
        return (
            "TensorRT's Python package is not visible: sudo apt install python3-libnvinfer, and a "
            "virtual environment made with --system-site-packages"
        )
    return "TensorRT is not installed: pip install 'edgekv[tensorrt]'"


def _cuda_bindings_problem() -> str | None:
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"):
        return None
    return f"cuda-bindings is not installed: pip install {_bindings_wanted()}"


def _bindings_wanted() -> str:
    """cuda-bindings of the driver's CUDA: those of a newer one do not load on it."""
    version = ctypes.c_int(0)
    try:
        code = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return "cuda-bindings"
    return "'cuda-bindings<13'" if not code and 0 < version.value < 13_000 else "cuda-bindings"


def _ort_problem() -> str | None:
    if importlib.util.find_spec("onnxruntime") is None:
        return "onnxruntime is not installed: pip install onnxruntime"
    return None


def _ort_cuda_problem() -> str | None:
    """onnxruntime-gpu installs the same package with one library more."""
    spec = importlib.util.find_spec("onnxruntime")
    for folder in spec.submodule_search_locations or [] if spec is not None else []:
        if list(Path(folder, "capi").glob("*onnxruntime_providers_cuda*")):
            return None
    return (
        "this onnxruntime has no CUDA provider: pip uninstall onnxruntime; "
        "pip install 'edgekv[gpu]'"
    )


def _library_problem(find: Callable[[], Path]) -> str | None:
    try:
        find()
    except ExecutorError as error:
        return str(error)
    return None


def choose_device(name: str) -> Device:
    """Resolve ``auto`` or check a named device. Raises ValueError for an unknown name and
    ExecutorError with the reasons for one that cannot run here."""
    known = get_args(Device)
    if name != "auto" and name not in known:
        raise ValueError(f"device must be auto, {', '.join(known)}, got {name!r}")
    reports = device_reports()
    for report in reports:
        if name in ("auto", report.device) and report.available:
            return report.device
    wanted = [report for report in reports if name in ("auto", report.device)]
    reasons = "; ".join(f"{report.device}: {'; '.join(report.problems)}" for report in wanted)
    raise ExecutorError(f"device {name!r} cannot run here: {reasons}")
