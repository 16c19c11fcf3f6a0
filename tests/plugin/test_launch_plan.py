"""The C++ launcher does the sums of plugins/triton/launch.py."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from plugins.triton.kernels import KERNELS, constants_of
from plugins.triton.variants import Shape, variants
from tests.plugin.conftest import ROOT, Build
from tests.plugin.fake_kernels import ARGUMENTS

NAMES = ("prepare", "attend", "combine", "mass")
PARTS = ("starts", "run_ends", "lse", "stats", "partial")


def numbers(case: dict[str, Any]) -> list[int]:
    """A case as the line that edgekv_plan_check reads."""
    node = [case["node"][name] for name in (
        "num_heads", "num_kv_heads", "head_dim", "page_size", "read_only", "page_mass"
    )]  # fmt: skip
    blocks = [case["blocks"][name] for name in (
        "decode_m", "decode_n", "prefill_m", "prefill_n", "prepare_m", "mass_n"
    )]  # fmt: skip
    sizes, largest = (
        [case[key][name] for name in ("num_tokens", "num_rows", "num_columns")]
        for key in ("sizes", "largest")
    )
    return [int(n) for n in (*node, *sizes, *blocks, case["sms"], *largest)]


def wanted(case: dict[str, Any]) -> list[int]:
    """The line that edgekv_plan_check must print."""
    plan = case["plan"]
    launches = {launch["kernel"]: launch for launch in plan["launches"]}
    prefill = launches.get("attend", {}).get("config") == "prefill"
    grids = [n for name in NAMES for n in launches.get(name, {"grid": (0, 0, 0)})["grid"]]
    parts = [n for name in PARTS for n in plan["workspace"].get(name, (0, 0))]
    head = [int(prefill), plan["num_splits"], plan["num_writers"]]
    return [*head, *grids, *parts, plan["workspace_bytes"], case["workspace_bound"]]


def test_every_case_gives_the_plan_written_down(built: Build) -> None:
    """Grids, splits and workspace, and the bound for a profile."""
    cases = json.loads((ROOT / "plugins/triton/launch_cases.json").read_text())
    assert len(cases) > 50
    lines = "\n".join(" ".join(map(str, numbers(case))) for case in cases)
    result = subprocess.run(
        [str(built.plan_check)], input=lines, capture_output=True, text=True, check=True
    )
    found = [[int(n) for n in line.split()] for line in result.stdout.splitlines()]
    assert found == [wanted(case) for case in cases]


def test_the_fake_kernels_take_what_the_real_ones_take() -> None:
    """Parameters that the C++ tests prove are filled are those that the Triton kernels have."""
    for variant in variants(Shape(64, 16, "float16", "int8")):
        constants = constants_of(variant)
        real = [name for name in KERNELS[variant.kernel].arg_names if name not in constants]
        assert ARGUMENTS[variant.kernel].split() == real
