"""The TensorRT plugin walks its whole life, without TensorRT and without a GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.plugin.conftest import Build, run

NO_DRIVER = "/nowhere/libcuda.so.1"


@pytest.fixture(params=["built", "sanitized"])
def either(request: pytest.FixtureRequest) -> Build:
    """An ordinary build, and one under sanitizers."""
    result = request.getfixturevalue(request.param)
    assert isinstance(result, Build)
    return result


def verdict(result: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """The last line of a check that passed."""
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    line = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(line, dict)
    return line


def test_life_without_a_driver(either: Build) -> None:
    """Everything but the device works, and what needs one says so; nothing crashes."""
    command = [str(either.check), str(either.plugin), "none"]
    said = verdict(run(command, EDGEKV_CUDA_DRIVER=NO_DRIVER))
    assert said["ok"] is True
    assert said["driver"] == "none"


def test_life_with_the_fake_driver(either: Build) -> None:
    """Every kind of node to its end: launches, parameters, workspace, copies and faults."""
    fake = str(either.fake_driver)
    said = verdict(run([str(either.check), str(either.plugin), "fake"], EDGEKV_CUDA_DRIVER=fake))
    assert said["ok"] is True
    assert said["driver"] == "fake"


def test_whole_calls_in_numbers(built: Build) -> None:
    """Calls with random tables agree with a plain reference, kernels being emulated: written keys,
    outputs and masses, of nodes that write and of nodes that only read, in place, apart, and as a
    CUDA graph."""
    fake = str(built.fake_driver)
    result = run([str(built.check), str(built.plugin), "emulated"], EDGEKV_CUDA_DRIVER=fake)
    said = verdict(result)
    # Of the shapes that the check tries, seven are built; of each, two dtypes of queries, four of
    # pools, with and without soft cap.
    assert said["kinds"] == 7 * 16


def test_the_library_needs_nothing_of_nvidias(built: Build) -> None:
    """It loads where there is neither TensorRT nor CUDA, and shows only its two entry points."""
    needed = run(["readelf", "-d", str(built.plugin)]).stdout
    assert "NEEDED" in needed
    assert "nvinfer" not in needed
    assert "cuda" not in needed
    symbols = run(["nm", "-D", "--defined-only", str(built.plugin)]).stdout
    shown = {line.split()[-1] for line in symbols.splitlines() if " T " in line}
    assert shown == {"getCreators", "setLoggerFinder"}


def test_a_manifest_of_another_version_is_refused(fake_kernels: Path, tmp_path: Path) -> None:
    """The table is only made from kernels of this operator version."""
    manifest = json.loads((fake_kernels / "manifest.json").read_text())
    manifest["operator_version"] = 1
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    table = Path(__file__).parents[2] / "plugins/cuda/make_table.py"
    result = run(["python3", str(table), str(tmp_path / "table.cpp"), str(tmp_path)])
    assert result.returncode != 0
    assert "must be (1, 2), these are (1, 1)" in result.stderr
    assert not (tmp_path / "table.cpp").exists()


def test_a_cubin_that_is_not_the_manifests_is_refused(fake_kernels: Path, tmp_path: Path) -> None:
    """A folder with parts of two builds makes no library."""
    for file in fake_kernels.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    next(tmp_path.glob("attend*.cubin")).write_text("attend of another build")
    table = Path(__file__).parents[2] / "plugins/cuda/make_table.py"
    result = run(["python3", str(table), str(tmp_path / "table.cpp"), str(tmp_path)])
    assert result.returncode != 0
    assert "is not the file that the manifest names" in result.stderr
