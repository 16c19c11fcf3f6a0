"""Everything that only a GPU can show, in one command of at most four minutes.

    python scripts/gpu_check.py              on a machine with an NVIDIA GPU, torch and triton
    python scripts/gpu_check.py --dry-run    the same steps without a GPU, interpreted, no figures

1. compiles the kernels for this device, as build_plugin.py does, and launches those very cubins;
2. holds them to the oracle over the whole list of cases (tests/operator/cases.py);
3. has the plugin's enqueue() driven by edgekv_plugin_check, if that was built: by nodes that write,
   and by nodes that only read, as cross-attention has them;
4. measures decoding against a copy on the device, paged against contiguous, prefill against torch's
   flash attention, in the same run.

The table comes last, then one JSON object on one line. Exit code 0; 1 if something is wrong or
cannot run here; 3 if a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")

if TYPE_CHECKING:
    import torch

    from plugins.triton.figures import Bench
    from plugins.triton.run import Launcher
    from tests.operator.cases import Case

LIMIT_S = 240.0
# figure -> (relation, value); decoding reads every key and value once, so a copy is its measure.
BOUNDS: dict[str, tuple[str, float]] = {
    "decode_32k_share_of_copy": (">=", 0.85),
    "decode_32k_paged_over_contiguous": ("<=", 1.05),
    "prefill_paged_over_contiguous": ("<=", 1.05),
    "prefill_speed_over_sdpa_flash": (">=", 0.60),
}
BFLOAT16 = (
    "mixed-9x3x64-page16-float32",
    "half-query-int8",
    "all-options",
    "long-decode-many-shifts",
    "read-only-cross",
)


@dataclass
class Report:
    """What came out, row by row."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, what: str, result: str) -> None:
        self.rows.append((what, result))
        print(f"{what}: {result}", flush=True)

    def missed(self) -> list[str]:
        """Bounds that were measured and missed."""
        holds = {">=": operator.ge, "<=": operator.le}
        return [
            name
            for name, (relation, value) in BOUNDS.items()
            if name in self.figures and not holds[relation](self.figures[name], value)
        ]


@dataclass(frozen=True)
class Setting:
    """Where things run: a GPU with compiled kernels, or the interpreter."""

    device: torch.device
    dry: bool
    launcher: Launcher | None
    bench: Bench


def chosen_cases(names: list[str] | None) -> list[Case]:
    """The whole list, or the cases named."""
    from tests.operator.cases import CASES

    if names is None:
        return CASES
    known = {case.name: case for case in CASES}
    missing = [name for name in names if name not in known]
    if missing:
        raise SystemExit(f"gpu_check.py: no case is named {missing[0]!r}")
    return [known[name] for name in names]


def passes(cases: list[Case]) -> list[tuple[str, Case, bool]]:
    """(tolerance, case, bfloat16): as listed, all in half precision, some in bfloat16."""
    from tests.kernels.call import with_dtype

    return (
        [(case.query_dtype, case, False) for case in cases]
        + [("float16", with_dtype(case, "float16"), False) for case in cases]
        + [("bfloat16", with_dtype(c, "float32"), True) for c in cases if c.name in BFLOAT16]
    )


def check_parity(report: Report, cases: list[Case], setting: Setting) -> None:
    """Every pass of every case against the oracle; the worst difference by dtype."""
    from tests.kernels.call import TOLERANCE, compare

    worst = dict.fromkeys(TOLERANCE, 0.0)
    bad: list[str] = []
    every = passes(cases)
    for dtype, case, bfloat16 in every:
        result = compare(case, setting.device, bfloat16=bfloat16, launcher=setting.launcher)
        difference = max(result.output, result.mass)
        worst[dtype] = max(worst[dtype], difference)
        if not difference <= TOLERANCE[dtype] or not result.written:
            bad.append(f"{case.name} in {dtype}: {result}")
    for dtype, difference in worst.items():
        report.figures[f"parity_{dtype}_largest_difference"] = difference
        report.add(
            f"parity, {dtype}", f"largest difference {difference:.1e}, {TOLERANCE[dtype]} allowed"
        )
    report.add("parity", f"{len(every) - len(bad)} of {len(every)} calls agree with the oracle")
    report.faults += bad


def check_plugin(report: Report, program: Path | None, library: Path | None, dry: bool) -> None:
    """Runs the host program that plays TensorRT's part; its last line is a JSON object."""
    program = program or next(iter(sorted(ROOT.glob("build/**/edgekv_plugin_check"))), None)
    library = library or next(iter(sorted(ROOT.glob("build/**/libedgekv_tensorrt.so"))), None)
    if program is None or library is None:
        report.add("plugin, enqueue()", "not built (plugins/tensorrt/README.md says how)")
        return
    if dry:
        report.add("plugin, enqueue()", "not run: it needs a GPU")
        return
    command = [str(program), str(library), "device"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode != 0:
        report.faults.append(f"plugin: exit code {done.returncode}: {last or done.stderr.strip()}")
    report.add("plugin, enqueue()", last or "no output")


def measure(report: Report, setting: Setting) -> None:
    """Speed of decoding and prefill beside their baselines. A dry run keeps no figure."""
    from plugins.triton.figures import measured

    figures = measured(setting.bench, setting.launcher)
    if setting.dry:
        report.add("speed", "not measured: a dry run")
        return
    report.figures |= figures
    for name, value in figures.items():
        relation, bound = BOUNDS.get(name, ("", 0.0))
        report.add(name, f"{value:.4g}" + (f"   (bound: {relation} {bound})" if relation else ""))


def gpu_setting(report: Report, cases: list[Case]) -> Setting:
    """This machine's GPU, with every kernel compiled that the run will launch."""
    import torch

    from plugins.triton.cubin import CubinLauncher, compile_all
    from plugins.triton.figures import Bench
    from plugins.triton.variants import Shape, variants

    device = torch.device("cuda")
    major, minor = torch.cuda.get_device_capability(device)
    shapes = {
        Shape(
            case.head_dim,
            case.page_size,
            "bfloat16" if bfloat16 else case.query_dtype,
            "bfloat16" if bfloat16 and case.pool_dtype != "int8" else case.pool_dtype,
            case.softcap != 0,
        ): None
        for _, case, bfloat16 in passes(cases)
    }
    bench = Bench(device)
    shapes |= dict.fromkeys(bench.shapes)
    wanted = [variant for shape in shapes for variant in variants(shape)]
    begin = time.monotonic()
    cubins = compile_all(
        wanted, f"sm_{major}{minor}", lambda done, n: print(f"\rcompiled {done}/{n}", end="")
    )
    print()
    spilled = [c for c in cubins.values() if c.spill_bytes and c.variant.config == "decode"]
    report.add(
        "kernels",
        f"{len(cubins)} compiled for sm_{major}{minor} in {time.monotonic() - begin:.0f} s, "
        f"{len(spilled)} for decoding spill",
    )
    return Setting(device, False, CubinLauncher(cubins), bench)


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures were measured on."""
    import torch
    import triton

    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {"device": name, "torch": torch.__version__, "triton": triton.__version__}


def finish(report: Report, setting: Setting, seconds: float) -> int:
    """The table, the JSON line, the exit code."""
    if seconds > LIMIT_S and not setting.dry:
        report.faults.append(f"took {seconds:.0f} s, {LIMIT_S:.0f} allowed")
    for fault in report.faults:
        print(f"WRONG: {fault}")
    missed = report.missed()
    width = max(len(what) for what, _ in report.rows)
    print("\n" + "\n".join(f"{what:<{width}}  {result}" for what, result in report.rows))
    print(f"{'time':<{width}}  {seconds:.0f} s")
    result = {
        "bench": "gpu_check",
        "machine": machine(setting.device),
        "figures": report.figures,
        "baseline": {"copy": "torch copy_ on the device", "sdpa": "torch flash attention"},
        "bounds": BOUNDS,
        "dry_run": setting.dry,
        "faults": len(report.faults),
        "ok": not report.faults and not missed,
    }
    print(json.dumps(result))
    return 1 if report.faults else (3 if missed else 0)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--dry-run", action="store_true", help="without a GPU: every step, no figures")
    add("--cases", type=lambda text: text.split(","), help="only these cases")
    add("--plugin-check", type=Path, help="default: edgekv_plugin_check under build/")
    add("--plugin", type=Path, help="default: libedgekv_tensorrt.so under build/")
    options = parser.parse_args(arguments)
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    begin = time.monotonic()
    try:
        import numpy as np
        import torch
        import triton  # noqa: F401  (the kernels' modules import it)
    except ImportError as error:
        missing = f"{error.name} is not installed: pip install torch triton"
        print(f"gpu_check.py: {missing}", file=sys.stderr)
        return 1

    if not options.dry_run and not torch.cuda.is_available():
        print("gpu_check.py: torch finds no CUDA device (--dry-run needs none)", file=sys.stderr)
        return 1
    report, cases = Report(), chosen_cases(options.cases)
    if options.dry_run:
        from plugins.triton.figures import tiny

        setting = Setting(torch.device("cpu"), True, None, tiny(torch.device("cpu")))
    else:
        setting = gpu_setting(report, cases)
    with np.errstate(all="ignore"):  # pools hold NaN on purpose
        check_parity(report, cases, setting)
        check_plugin(report, options.plugin_check, options.plugin, setting.dry)
        measure(report, setting)
    return finish(report, setting, time.monotonic() - begin)


if __name__ == "__main__":
    sys.exit(main())
