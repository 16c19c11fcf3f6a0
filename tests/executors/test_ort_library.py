"""ONNX Runtime leaves no trace of what was run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import edgekv
with edgekv.load(edgekv.demo_bundle_path(), num_threads=1) as model, model.session() as session:
    session.ask("What do you see?", edgekv.SamplingOptions(max_new_tokens=1))
"""


@pytest.mark.parametrize("writable", [True, False])
def test_a_model_that_runs_writes_nothing_at_home(tmp_path: Path, writable: bool) -> None:
    home = tmp_path if writable else Path("/dev/null/home")
    ours = ("ORT_", "XDG_")
    clean = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env={**clean, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.rglob("*")) == []
