"""``scripts/convert.py`` where there is no TensorRT."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgekv.executors import device_reports

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
