"""The TensorRT plugin and the ONNX Runtime op, built with a folder of cubins into the package.

Owns: the call of CMake, where TensorRT's headers are looked for, and which library goes where.
Guarantees: ``edgekv.native`` finds what was built; a library whose needs are missing is left out
with a reason, never silently. Knows nothing of how kernels are compiled.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "edgekv" / "native"
HEADER = "NvInferRuntime.h"
USUAL_FOLDERS = ("/usr/include/aarch64-linux-gnu", "/usr/include/x86_64-linux-gnu")


@dataclass(frozen=True, slots=True)
class Libraries:
    """What was built, and for what was not, why."""

    built: tuple[Path, ...]
    left_out: tuple[str, ...]


def find_headers(given: Path | None) -> Path | None:
    """The folder with TensorRT's headers: as given, the system's, or PyPI's ``kernel-lens``."""
    folders = [given] if given is not None else [Path(folder) for folder in USUAL_FOLDERS]
    spec = importlib.util.find_spec("kernel_lens") if given is None else None
    if spec is not None:
        folders += [Path(p) / "include/tensorrt" for p in spec.submodule_search_locations or ()]
    return next((folder for folder in folders if (folder / HEADER).is_file()), None)


def build_libraries(
    cubins: Path, headers: Path | None, *, build: Path | None = None, native: Path = NATIVE
) -> Libraries:
    """Build with the kernels in ``cubins`` and copy to ``native``.

    Raises RuntimeError with the compiler's last lines, OSError when there is no CMake.
    """
    build = build or ROOT / "build" / "gpu"
    found = find_headers(headers)
    wanted = {"edgekv_ort_cuda": "plugins/ort_cuda"}
    left_out: tuple[str, ...] = ()
    if found is None:
        where = headers or "the usual folders"
        left_out = (f"edgekv_tensorrt: no {HEADER} in {where}, name its folder with --headers",)
    else:
        wanted["edgekv_tensorrt"] = "plugins/tensorrt"
    options = [
        "-DCMAKE_BUILD_TYPE=Release", f"-DEDGEKV_KERNELS_DIR={cubins.resolve()}",
        "-DEDGEKV_ORT_CUDA=ON", f"-DEDGEKV_TENSORRT={'OFF' if found is None else 'ON'}",
        f"-DEDGEKV_TENSORRT_INCLUDE_DIR={found or ''}",
    ]  # fmt: skip
    _run("cmake", "-S", str(ROOT), "-B", str(build), *options)
    _run("cmake", "--build", str(build), "--parallel", "--target", *wanted)
    native.mkdir(parents=True, exist_ok=True)
    built = []
    for name, folder in wanted.items():
        target = native / f"lib{name}.so"
        temporary = target.with_suffix(".tmp")
        shutil.copy2(build / folder / target.name, temporary)
        temporary.replace(target)  # a process that has the old one open keeps it
        built.append(target)
    return Libraries(tuple(built), left_out)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()[-15:]
        raise RuntimeError("\n".join([f"{' '.join(command[:2])} failed:", *lines]))
