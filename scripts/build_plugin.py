"""Compiles the GPU kernels ahead of time into cubins with a manifest. Needs no GPU.

    python scripts/build_plugin.py --arch sm_87,sm_120 --bundle models/demo
    python scripts/build_plugin.py --arch sm_87 --head-dim 64,128 --pool-dtype float16,int8

For every combination of architecture, head dimension, page size and dtypes, the five kernels that
plugins/triton/launch.md describes; ``manifest.json`` says what a launcher must know of each. With
--bundle, head dimension, page size, pool dtypes and soft cap are the bundle's (--pool-dtype chooses
among its dtypes: each has kernels of its own), and queries are what TensorRT and ONNX Runtime send
(--query-dtype float16: TensorRT's only, float32: ONNX Runtime's only). Triton keeps what it
has compiled, so a second build is quick.

With --install the libraries that launch them, too: the TensorRT plugin (where TensorRT's headers
are) and the ONNX Runtime op, into edgekv/native, where edgekv looks for them.

A device whose driver is older than Triton's own ptxas needs another one, for example for JetPack 6:

    pip install --target build/nvcc 'nvidia-cuda-nvcc-cu12==12.6.*'
    python scripts/build_plugin.py --arch sm_87 --head-dim 64 --ptx-version 85 \\
        --ptxas build/nvcc/nvidia/cuda_nvcc/bin/ptxas
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.pop("TRITON_INTERPRET", None)  # would turn the kernels into Python functions
os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")  # four times the size otherwise

from edgekv.errors import EdgeKVError  # noqa: E402
from plugins.triton.variants import Shape, Variant, variants  # noqa: E402  (after the path is set)

if TYPE_CHECKING:
    from plugins.triton.compile import Cubin

ARCHES = ("sm_87", "sm_90", "sm_110", "sm_120")  # Orin, Hopper, Thor, GeForce and RTX Blackwell
FORMAT = 1


@dataclass(frozen=True)
class Job:
    """One cubin to be made."""

    variant: Variant
    arch: str
    ptxas: Path | None
    ptx_version: int | None

    @property
    def file(self) -> str:
        """Name of the cubin; says everything that distinguishes it."""
        shape = self.variant.shape
        parts = [self.variant.kernel, self.variant.config, f"d{shape.head_dim}", shape.query_dtype]
        if self.variant.kernel != "combine":
            parts += [f"s{shape.page_size}", shape.pool_dtype]
        if self.variant.constants.get("SOFTCAP"):
            parts.append("softcap")
        return "-".join([part for part in parts if part] + [self.arch]) + ".cubin"


def bundle_shapes(
    folder: Path, query_dtypes: list[str] | None, pool_dtypes: list[str] | None
) -> list[Shape]:
    """What the nodes of a bundle's decoders are, once each; of all KV dtypes, or of some. Queries
    are float32 in the graph, as ONNX Runtime runs it, and half in TensorRT's engines.
    Raises ValueError for one that the bundle has no decoder for."""
    import onnx  # here: without --bundle it is not needed

    from edgekv import names
    from edgekv.bundle import Bundle
    from edgekv.executors.pool_tensors import QUERY_DTYPES

    manifest = Bundle.open(folder).manifest
    found: dict[Shape, None] = {}
    if unknown := sorted(set(pool_dtypes or ()) - set(manifest.decoders)):
        raise ValueError(f"--pool-dtype: {folder} has no decoder with {unknown[0]} pools")
    for pool_dtype, file in manifest.decoders.items():
        if pool_dtypes is not None and pool_dtype not in pool_dtypes:
            continue
        model = onnx.load(folder / file, load_external_data=False)
        for node in model.graph.node:
            if (node.domain, node.op_type) != (names.OP_DOMAIN, names.OP_NAME):
                continue
            given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            for query_dtype in query_dtypes or ("float32", QUERY_DTYPES[pool_dtype]):
                shape = Shape(
                    given["head_dim"],
                    manifest.geometry.page_size,
                    query_dtype,  # type: ignore[arg-type]  # Shape checks it
                    pool_dtype,  # type: ignore[arg-type]
                    given.get("softcap", 0.0) != 0.0,
                )
                found[shape] = None
    return list(found)


def make_jobs(
    shapes: list[Shape], arches: list[str], ptxas: Path | None, ptx_version: int | None
) -> list[Job]:
    """One job a cubin; combine and prepare serve several shapes and are built once."""
    jobs = {
        job.file: job
        for arch in arches
        for shape in shapes
        for variant in variants(shape)
        for job in [Job(variant, arch, ptxas, ptx_version)]
    }
    return list(jobs.values())


def compile_job(job: Job) -> Cubin:
    """In a process of its own: Triton compiles one kernel at a time."""
    from plugins.triton.compile import compile_variant

    return compile_variant(job.variant, job.arch, ptxas=job.ptxas, ptx_version=job.ptx_version)


def entry(job: Job, cubin: Cubin) -> dict[str, object]:
    """What the manifest says of a cubin."""
    variant, shape = job.variant, job.variant.shape
    shared = variant.kernel == "combine"
    return {
        "kernel": variant.kernel,
        "config": variant.config,
        "head_dim": shape.head_dim,
        "page_size": 0 if shared else shape.page_size,
        "query_dtype": shape.query_dtype,
        "pool_dtype": "" if shared else shape.pool_dtype,
        "softcap": bool(variant.constants.get("SOFTCAP", False)),
        "block_m": variant.block_m,
        "block_n": variant.block_n,
        "arch": job.arch,
        "file": job.file,
        "symbol": cubin.symbol,
        "sha256": cubin.sha256,
        "num_warps": variant.num_warps,
        "shared_bytes": cubin.shared_bytes,
        "registers": cubin.registers,
        "spill_bytes": cubin.spill_bytes,
        "args": [{"name": name, "type": kind} for name, kind in cubin.args],
    }


def build(jobs: list[Job], out: Path, num_processes: int) -> list[dict[str, object]]:
    """Compiles everything into ``out``; the manifest is written last, whole."""
    import triton
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from edgekv.names import OP_VERSION

    out.mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").unlink(missing_ok=True)
    entries: dict[str, dict[str, object]] = {}
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    context = multiprocessing.get_context("spawn")
    with (
        Progress(*columns) as progress,
        ProcessPoolExecutor(num_processes, mp_context=context) as pool,
    ):
        task = progress.add_task("", total=len(jobs))
        running = {pool.submit(compile_job, job): job for job in jobs}
        for done in as_completed(running):
            job, cubin = running[done], done.result()
            (out / job.file).write_bytes(cubin.data)
            entries[job.file] = entry(job, cubin)
            progress.advance(task)
            progress.console.print(
                f"{job.file}: {cubin.registers} registers, {cubin.shared_bytes} bytes shared, "
                f"{cubin.spill_bytes} spilled",
                highlight=False,
                soft_wrap=True,
            )
    ordered = [entries[job.file] for job in jobs]
    manifest = {
        "format": FORMAT, "operator_version": OP_VERSION, "triton": triton.__version__,
        "variants": ordered,
    }  # fmt: skip
    temporary = out / "manifest.json.tmp"
    temporary.write_text(json.dumps(manifest, indent=1) + "\n")
    temporary.replace(out / "manifest.json")
    return ordered


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""

    def words(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--arch", type=words, default=list(ARCHES), help="default: %(default)s")
    add("--bundle", type=Path, help="take shapes from this bundle")
    add("--head-dim", type=numbers, default=[64, 128])
    add("--page-size", type=numbers, default=[16])
    add("--query-dtype", type=words, help="default: what executors send the bundle's, or float16")
    add("--pool-dtype", type=words, help="default: all of the bundle's, or float16,int8")
    add("--softcap", action="store_true", help="kernels with a soft cap (a bundle knows its own)")
    add("--ptxas", type=Path, help="another ptxas than Triton's")
    add("--ptx-version", type=int, help="the newest PTX that ptxas reads, 85 for CUDA 12.6")
    add("--out", type=Path, default=ROOT / "build" / "cubins")
    add("--install", action="store_true", help="build the libraries that launch them as well")
    add("--headers", type=Path, help="folder of NvInferRuntime.h, where it is in no usual place")
    add("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


def install(cubins: Path, headers: Path | None) -> int:
    """Builds the libraries with these cubins, into the package."""
    from plugins.cuda.build_libraries import build_libraries

    try:
        libraries = build_libraries(cubins, headers)
    except (RuntimeError, OSError) as error:
        print(f"build_plugin.py: {error}", file=sys.stderr)
        return 1
    for path in libraries.built:
        print(path)
    for reason in libraries.left_out:
        print(f"not built: {reason}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    options = parse(arguments)
    needed = ["triton"] if options.bundle is None else ["triton", "onnx"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        names = " ".join(missing)
        print(f"build_plugin.py: {names} not installed: pip install {names}", file=sys.stderr)
        return 1
    try:
        if options.bundle is not None:
            shapes = bundle_shapes(options.bundle, options.query_dtype, options.pool_dtype)
        else:
            product = itertools.product(
                options.head_dim,
                options.page_size,
                options.query_dtype or ["float16"],
                options.pool_dtype or ["float16", "int8"],
            )
            shapes = [Shape(*one, options.softcap) for one in product]
        if options.ptxas is not None and not options.ptxas.is_file():
            raise ValueError(f"--ptxas: {options.ptxas} is not a file")
        unknown = [arch for arch in options.arch if arch not in ARCHES]
        if unknown:
            raise ValueError(f"--arch: {unknown[0]} is not one of {', '.join(ARCHES)}")
    except (ValueError, EdgeKVError) as error:
        print(f"build_plugin.py: {error}", file=sys.stderr)
        return 2
    jobs = make_jobs(shapes, options.arch, options.ptxas, options.ptx_version)
    try:
        entries = build(jobs, options.out, max(1, min(options.jobs, len(jobs))))
    except OSError as error:
        print(f"build_plugin.py: {error}", file=sys.stderr)
        return 1
    spilled = [e["file"] for e in entries if e["spill_bytes"]]
    print(f"{len(entries)} cubins in {options.out}; {len(spilled)} spill registers")
    return install(options.out, options.headers) if options.install else 0


if __name__ == "__main__":
    sys.exit(main())
