"""Which devices can run a bundle here, and for the others the reason and the remedy.

Owns: the list of device names and the choice that ``auto`` makes. Imports no graph library: it
looks for them without loading them, so that ``edgekv doctor`` works when one of them is broken.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal, get_args

from edgekv.errors import ExecutorError
from edgekv.native import ort_library_path

Device = Literal["cpu", "cuda", "tensorrt"]


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """Whether one device can run graphs here. ``reason`` is empty when it can."""

    device: Device
    available: bool
    reason: str


def device_reports() -> tuple[DeviceReport, ...]:
    """One report per device, best device first."""
    return (
        DeviceReport("tensorrt", False, "this version of edgekv has no TensorRT executor yet"),
        DeviceReport("cuda", False, "this version of edgekv has no CUDA executor yet"),
        _cpu_report(),
    )


def _cpu_report() -> DeviceReport:
    if importlib.util.find_spec("onnxruntime") is None:
        return DeviceReport("cpu", False, "onnxruntime is not installed: pip install onnxruntime")
    try:
        ort_library_path()
    except ExecutorError as error:
        return DeviceReport("cpu", False, str(error))
    return DeviceReport("cpu", True, "")


def choose_device(name: str) -> Device:
    """Resolve ``auto`` or check a named device. Raises ValueError for an unknown name and
    ExecutorError with the reason for one that cannot run here."""
    known = get_args(Device)
    if name != "auto" and name not in known:
        raise ValueError(f"device must be auto, {', '.join(known)}, got {name!r}")
    reports = device_reports()
    for report in reports:
        if name in ("auto", report.device) and report.available:
            return report.device
    wanted = [report for report in reports if name in ("auto", report.device)]
    reasons = "; ".join(f"{report.device}: {report.reason}" for report in wanted)
    raise ExecutorError(f"device {name!r} cannot run here: {reasons}")
