"""Every script says in one line what to install, where only edgekv's own dependencies are."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("torch", "transformers", "triton", "onnx", "onnx_ir", "onnxscript", "tensorrt", "gguf")
# As though the extras were not installed, whether they are or not.
WITHOUT = """
import importlib.metadata, runpy, sys
sys.modules.update(dict.fromkeys({extras!r}))
def none(name): raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.files = none
sys.argv = {argv!r}
sys.path[0] = {folder!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ARGUMENTS = {
    "build_plugin.py": ["--bundle", "models/demo", "--out", "{folder}"],
    "convert.py": ["models/demo", "--to", "tensorrt", "--output", "{folder}"],
    "draw_demo_clip.py": ["{folder}"],
    "evaluate_demo.py": ["{folder}"],
    "export.py": ["{folder}", "{folder}/out"],
    "gpu_check.py": ["--dry-run"],
    "repair_tensorrt_stubs.py": [],
    "train_demo.py": ["{folder}/out"],
}
NEEDS_NOTHING = {
    "pip_install.py",
    "test_ort_versions.py",  # makes environments of its own
}


def test_every_script_is_listed() -> None:
    assert {path.name for path in ROOT.glob("scripts/*.py")} == {*ARGUMENTS, *NEEDS_NOTHING}


@pytest.mark.parametrize("script", ARGUMENTS)
def test_what_is_missing_gets_one_line(script: str, tmp_path: Path) -> None:
    argv = [f"scripts/{script}", *(a.format(folder=tmp_path) for a in ARGUMENTS[script])]
    code = WITHOUT.format(extras=EXTRAS, argv=argv, folder=str(ROOT / "scripts"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert re.search("pip install|NVIDIA driver", done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_an_installation_says_what_it_does_where_there_is_no_terminal() -> None:
    stage = runpy.run_path(str(ROOT / "scripts" / "pip_install.py"))["stage"]
    for line, what in {
        "Obtaining file:///src/edgekv": None,
        "  Installing build dependencies: started": "fetching the build tools",
        "  Installing build dependencies: finished with status 'done'": None,
        "Collecting onnxruntime>=1.23 (from edgekv==0.1.0)": "fetching the packages it needs",
        "Processing /wheels/numpy-2.4.6-cp311.whl": "fetching the packages it needs",
        "  Downloading onnxruntime-1.32.0-cp311-cp311-manylinux_2_28_x86_64.whl (27.8 MB)": (
            "downloading onnxruntime, 27 MB"
        ),
        "  Downloading https://host/a/torch-2.13.0+cpu-cp311.whl (184.2 MB)": (
            "downloading torch, 184 MB"
        ),
        "  Downloading click-8.5.1-py3-none-any.whl (126 kB)": None,
        "  Building editable for edgekv (pyproject.toml): started": (
            "compiling, about half a minute"
        ),
        "Installing collected packages: numpy, edgekv": "unpacking the packages",
        "Requirement already satisfied: numpy": None,
    }.items():
        assert stage(line + "\n") == what, line


def test_an_installation_that_fails_says_why() -> None:
    command = [sys.executable, "scripts/pip_install.py", "--no-index", "no-such-package-at-all"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No matching distribution found for no-such-package-at-all" in done.stderr
