"""``scripts/convert.py`` where there is no TensorRT, and with graphs in place of engines."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from edgekv import executors
from edgekv.executors import device_reports
from tests.executors.host_gpus import HostGpus
from tests.session.cross_bundle import save_cross_bundle

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "convert.py"
REPORT = next(report for report in device_reports() if report.device == "tensorrt")


def convert(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(REPORT.available, reason="TensorRT is here")
def test_it_says_what_doctor_says(bundle_path: Path, tmp_path: Path) -> None:
    done = convert(bundle_path, "--to", "tensorrt", "-o", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert all(problem in line for problem in REPORT.problems)
    assert not list(tmp_path.iterdir())


def test_bad_usage(bundle_path: Path, tmp_path: Path) -> None:
    assert convert(bundle_path).returncode == 2
    profile = tmp_path / "device.toml"
    profile.write_text("[load]\nkv_bugdet = '1MiB'")
    done = convert(bundle_path, "--to", "tensorrt", "--profile", profile)
    assert done.returncode == 1
    assert "not 'kv_bugdet'" in done.stderr


@pytest.mark.parametrize("gpus", [True], indirect=True)
@pytest.mark.parametrize("kind", ["demo", "pictures", "sounds"])
def test_every_engine_is_tried(
    bundle_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: HostGpus,
    kind: str,
) -> None:
    bundle, graphs = bundle_path, {"decoder.onnx", "vision.onnx"}
    if kind != "demo":
        bundle = save_cross_bundle(tmp_path / "bundle", kind, "float16")  # type: ignore[arg-type]
        graphs = {"decoder.float16.onnx", "encoder.onnx", "cross.float16.onnx"}
    monkeypatch.setattr(executors, "choose_device", lambda name: name)
    main = runpy.run_path(str(SCRIPT))["main"]
    main.main([str(bundle), "--to", "tensorrt", "--kv-budget", "2MiB"], standalone_mode=False)
    assert gpus.engines.keys() == graphs
    for engine in gpus.engines.values():
        assert sum(context.num_plain_runs for context in engine.contexts)
