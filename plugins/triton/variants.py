"""The compiled forms of each kernel: block sizes, warps, dtypes, constants.

Owns: how a kernel is specialised for a head dimension, a page size and dtypes. What is compiled
ahead of time and what runs under the interpreter or from Python come from here alike. Knows
neither how kernels are compiled nor how they are launched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from plugins.triton.launch import CONFIGS, Blocks, Config, Kernel

QueryDtype = Literal["float32", "float16", "bfloat16"]
PoolDtype = Literal["float32", "float16", "bfloat16", "int8"]
Constant = int | bool | str

TRITON_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "i8"}
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
MAX_HEAD_DIM = 256
MAX_PAGE_SIZE = 128
STAGED_BYTES = 64 * 1024  # shared memory for pages on their way; 99 KiB is the least a target has


@dataclass(frozen=True, slots=True)
class Shape:
    """What a set of variants is compiled for."""

    head_dim: int
    page_size: int
    query_dtype: QueryDtype
    pool_dtype: PoolDtype
    softcap: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.head_dim <= MAX_HEAD_DIM:
            raise ValueError(f"head_dim must be 1 to {MAX_HEAD_DIM}, got {self.head_dim}")
        if not 1 <= self.page_size <= MAX_PAGE_SIZE:
            raise ValueError(f"page_size must be 1 to {MAX_PAGE_SIZE}, got {self.page_size}")
        for name, dtypes in (("query", QueryDtype), ("pool", PoolDtype)):
            given = getattr(self, f"{name}_dtype")
            if given not in get_args(dtypes):
                raise ValueError(f"{name} dtype must be one of {get_args(dtypes)}, got {given!r}")

    @property
    def dot_dtype(self) -> QueryDtype:
        """What products are computed in: the query's dtype, if that loses nothing of the pages."""
        if self.pool_dtype in ("int8", self.query_dtype):
            return self.query_dtype
        return "float32"

    @property
    def block_d(self) -> int:
        """head_dim as the kernels hold it: a power of two, at least a product's least side."""
        return max(16, power_of_two(self.head_dim))


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel with its constants, by the names of its parameters."""

    kernel: Kernel
    config: Config | Literal[""]
    shape: Shape
    block_m: int
    block_n: int
    num_warps: int
    constants: Mapping[str, Constant]


def power_of_two(n: int) -> int:
    """The smallest one that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def blocks(shape: Shape) -> Blocks:
    """Block sizes: float32 and wide heads take smaller steps; ``mass`` needs whole pages in one."""
    exact = shape.dot_dtype == "float32"
    wide = exact or shape.head_dim > 128
    keys = 32 if wide else 64
    return Blocks(
        decode_m=16,
        decode_n=keys,
        prefill_m=32 if wide else (64 if shape.head_dim > 64 else 128),
        prefill_n=keys,
        prepare_m=16,
        mass_n=max(keys, power_of_two(shape.page_size)),
    )


def variants(shape: Shape, sizes: Blocks | None = None) -> tuple[Variant, ...]:
    """The five variants of a shape: prepare, attend twice, combine, mass."""
    sizes = sizes or blocks(shape)
    common: dict[str, Constant] = {"HEAD_DIM": shape.head_dim, "BLOCK_D": shape.block_d}
    paged = {**common, "PAGE_SIZE": shape.page_size, "INT8": shape.pool_dtype == "int8"}
    products = {
        **paged,
        "SOFTCAP": shape.softcap,
        "DOT": TRITON_NAMES[shape.dot_dtype],
        "PRECISION": "ieee" if shape.dot_dtype == "float32" else "tf32",
    }
    writing = {**paged, "BLOCK_M": sizes.prepare_m, "BLOCK_COLUMNS": 1024}
    result = [Variant("prepare", "", shape, sizes.prepare_m, 0, 4, writing)]
    for config in CONFIGS:
        m, n = sizes.of(config)
        # Of a pipeline's stages three go to looking pages up; what is left holds keys and values.
        buffered = 4 * n * shape.block_d * BYTES[shape.pool_dtype] <= STAGED_BYTES
        constants = {**products, "BLOCK_M": m, "BLOCK_N": n, "STAGES": 5 if buffered else 3}
        warps = 8 if m * shape.block_d >= 128 * 64 else 4
        result.append(Variant("attend", config, shape, m, n, warps, constants))
    result.append(Variant("combine", "", shape, 0, 0, 4, {**common, "BLOCK_SPLITS": 16}))
    pages = power_of_two(sizes.mass_n // shape.page_size)
    summing = {**products, "BLOCK_M": 16, "BLOCK_N": sizes.mass_n, "PAGES_UP": pages}
    result.append(Variant("mass", "", shape, 16, sizes.mass_n, 4, summing))
    return tuple(result)
