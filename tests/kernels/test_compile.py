"""Every kernel compiles ahead of time for every architecture we name, without a GPU."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHES = ("sm_87", "sm_90", "sm_110", "sm_120")
# Shared memory a block may have: compute capability table of the CUDA programming guide.
SHARED_BYTES = {"sm_87": 163 << 10, "sm_90": 227 << 10, "sm_110": 227 << 10, "sm_120": 99 << 10}
ELF_MACHINE_CUDA = 190


def build(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "scripts/build_plugin.py", *map(str, arguments)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def manifest_of(folder: Path) -> list[dict]:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == 1
    return manifest["variants"]


def test_four_architectures(tmp_path: Path) -> None:
    result = build(
        "--head-dim", "64,128", "--pool-dtype", "float16", "--out", tmp_path, "--jobs", "2"
    )
    print(result.stdout)  # registers, shared memory and spills of each cubin
    assert result.returncode == 0, result.stderr
    variants = manifest_of(tmp_path)
    for arch, head_dim in product(ARCHES, (64, 128)):
        mine = [v for v in variants if (v["arch"], v["head_dim"]) == (arch, head_dim)]
        assert sorted((v["kernel"], v["config"]) for v in mine) == [
            ("attend", "decode"), ("attend", "prefill"), ("combine", ""), ("mass", ""),
            ("prepare", ""),
        ]  # fmt: skip
        for variant in mine:
            check_cubin(tmp_path, variant)
            assert variant["shared_bytes"] <= SHARED_BYTES[arch]
        (decode,) = [v for v in mine if v["config"] == "decode"]
        assert decode["spill_bytes"] == 0, decode


def check_cubin(folder: Path, variant: dict) -> None:
    data = (folder / variant["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == variant["sha256"]
    assert data[:4] == b"\x7fELF"
    assert int.from_bytes(data[18:20], "little") == ELF_MACHINE_CUDA
    assert variant["symbol"].encode() in data
    names = [argument["name"] for argument in variant["args"]]
    assert names[-2:] == ["null", "null"]
    assert 0 < variant["registers"] <= 255


def test_a_bundles_shapes(tmp_path: Path) -> None:
    chosen = ("--pool-dtype", "int8", "--query-dtype", "float16")
    demo = ("--bundle", "models/demo", "--out", tmp_path, "--jobs", "1")
    result = build("--arch", "sm_87", *demo, *chosen)
    assert result.returncode == 0, result.stderr
    (decode,) = [v for v in manifest_of(tmp_path) if v["config"] == "decode"]
    shape = [decode[key] for key in ("head_dim", "page_size", "pool_dtype", "query_dtype")]
    assert shape == [32, 16, "int8", "float16"]


LIST_SHAPES = """
import sys
sys.path.insert(0, "scripts")
from build_plugin import bundle_shapes
from pathlib import Path
for shape in bundle_shapes(Path("models/demo"), None, None):
    print(shape.pool_dtype, shape.query_dtype)
"""


def test_every_pool_has_kernels_for_what_executors_send() -> None:
    command = [sys.executable, "-c", LIST_SHAPES]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(listed.stdout.splitlines()) == {
        "float32 float32",
        "float16 float32", "float16 float16",
        "bfloat16 float32", "bfloat16 bfloat16",
        "int8 float32", "int8 float16",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arch", "sm_86"), "--arch: sm_86 is not one of sm_87, sm_90, sm_110, sm_120"),
        (("--head-dim", "512"), "head_dim must be 1 to 256, got 512"),
        (("--page-size", "0"), "page_size must be 1 to 128, got 0"),
        (("--pool-dtype", "fp8"), "pool dtype must be one of"),
        (("--bundle", "models/demo", "--pool-dtype", "fp8"), "has no decoder with fp8 pools"),
        (("--ptxas", "nowhere"), "--ptxas: nowhere is not a file"),
    ],
)
def test_wrong_usage_is_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = build(*arguments, "--out", tmp_path / "out")
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
