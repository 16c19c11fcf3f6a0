"""``scripts/gpu_check.py``: every step but the GPU itself."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from plugins.triton.compile import Cubin
from plugins.triton.cubin import pack
from plugins.triton.variants import Shape, variants

ROOT = Path(__file__).parents[2]


def gpu_check(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/gpu_check.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_dry_run_goes_through_every_step_and_claims_no_speed(tmp_path: Path) -> None:
    program, library = tmp_path / "program", tmp_path / "library"
    program.write_text("")
    library.write_text("")
    names = "decode,half-query-int8,prefill-mass"
    result = gpu_check(
        "--dry-run", "--cases", names, "--plugin-check", program, "--plugin", library
    )
    assert result.returncode == 0, result.stderr
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["ok"]
    assert last["dry_run"]
    assert set(last["figures"]) == {
        f"parity_{dtype}_largest_difference" for dtype in ("float32", "float16", "bfloat16")
    }
    assert "7 of 7 calls agree with the oracle" in result.stdout
    assert "not run: it needs a GPU" in result.stdout
    assert "not measured: a dry run" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    result = gpu_check()
    assert result.returncode == 1
    assert result.stderr == "gpu_check.py: torch finds no CUDA device (--dry-run needs none)\n"


def test_an_unknown_case_is_refused() -> None:
    result = gpu_check("--dry-run", "--cases", "decode,nothing-like-it")
    assert result.returncode == 1
    assert "no case is named 'nothing-like-it'" in result.stderr


def test_arguments_are_packed_in_the_order_of_the_cubin() -> None:
    variant = variants(Shape(64, 16, "float16", "float16"))[0]
    args = (("query", "*fp16"), ("num_rows", "i32"), ("scale", "fp32"), ("null", "*i8"))
    cubin = Cubin(variant, "sm_87", "attend", args, 32, 0, 0, b"")
    query = torch.zeros(4, dtype=torch.float16)
    packed = pack(cubin, {"scale": 0.5, "num_rows": 3, "query": query, "unused": 1})
    assert [type(one) for one in packed] == [
        ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_void_p,
    ]  # fmt: skip
    assert [one.value for one in packed] == [query.data_ptr(), 3, 0.5, None]
