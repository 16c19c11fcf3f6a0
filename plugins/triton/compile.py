"""Ahead-of-time compilation: a variant and an architecture become a cubin. Needs no GPU.

Owns: the signature of each kernel's parameters, and what must be known of a cubin to launch it.
Knows nothing of files; must run without ``TRITON_INTERPRET``.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from plugins.triton.kernels import COMPILER_OPTIONS, KERNELS, constants_of
from plugins.triton.variants import TRITON_NAMES, Variant

# A pointer's element, by parameter; every other parameter is an i32 but the two floats.
QUERY_LIKE = ("output", "query", "key", "value")
POOLS = ("key_pool", "value_pool")
FLOATS = (
    "key_scales", "value_scales", "sinks", "stats", "partial", "lse", "page_mass", "mass_weights",
)  # fmt: skip
INTS = (
    "slot_mapping", "page_table", "query_starts", "kv_limits", "query_indices", "freq_axes",
    "starts", "run_ends",
)  # fmt: skip
SCALARS = ("scale", "softcap")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled kernel."""

    variant: Variant
    arch: str  # "sm_87"
    symbol: str
    args: tuple[tuple[str, str], ...]  # (name, type) in launch order, two nulls last
    registers: int
    shared_bytes: int  # dynamic, to be given at launch
    spill_bytes: int  # of local memory per thread
    data: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """Of the cubin's bytes."""
        return hashlib.sha256(self.data).hexdigest()


def parameter_type(name: str, variant: Variant) -> str:
    """Triton's name for the type of a parameter."""
    if name in QUERY_LIKE:
        return "*" + TRITON_NAMES[variant.shape.query_dtype]
    if name in POOLS:
        return "*" + TRITON_NAMES[variant.shape.pool_dtype]
    if name in FLOATS:
        return "*fp32"
    if name in INTS:
        return "*i32"
    if name == "turns":
        return "*i64"
    return "fp32" if name in SCALARS else "i32"


def compile_variant(
    variant: Variant, arch: str, *, ptxas: Path | None = None, ptx_version: int | None = None
) -> Cubin:
    """The variant for ``arch``. Old drivers need an older ptxas, and the PTX version it reads."""
    kernel = KERNELS[variant.kernel]
    constants = constants_of(variant)
    signature = {
        name: "constexpr" if name in constants else parameter_type(name, variant)
        for name in kernel.arg_names
    }
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    options: dict[str, object] = {"num_warps": variant.num_warps, **COMPILER_OPTIONS}
    if ptx_version is not None:
        options["ptx_version"] = ptx_version
    with _Ptxas(ptxas):
        compiled = triton.compile(
            ASTSource(kernel, signature, constants, aligned),
            target=GPUTarget("cuda", capability(arch), 32),
            options=options,
        )
    metadata = compiled.metadata
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise RuntimeError(f"{variant.kernel} needs scratch memory, which no launcher gives it")
    args = [(n, kind) for n, kind in signature.items() if kind != "constexpr"]
    registers, spill = resources(compiled.asm["cubin"])
    return Cubin(
        variant, arch, metadata.name, (*args, ("null", "*i8"), ("null", "*i8")),
        registers, metadata.shared, spill, compiled.asm["cubin"],
    )  # fmt: skip


def capability(arch: str) -> int:
    """87 of "sm_87"."""
    match = re.fullmatch(r"sm_(\d{2,3})", arch)
    if match is None:
        raise ValueError(f"an architecture looks like sm_87, got {arch!r}")
    return int(match[1])


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory of a thread; without arrays, those are spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if match is None:
        raise RuntimeError(f"cuobjdump reports no registers: {text!r}")
    return int(match[1]), int(match[2])


class _Ptxas:
    """Has Triton use this ptxas for every architecture, for a while."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.saved: dict[str, str | None] = {}

    def __enter__(self) -> None:
        if self.path is None:
            return
        for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
            self.saved[name] = os.environ.get(name)
            os.environ[name] = str(self.path)

    def __exit__(self, *_: object) -> None:
        for name, value in self.saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
