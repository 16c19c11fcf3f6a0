"""The compiled forms of each kernel: block sizes, warps, dtypes, constants.

Owns: how a kernel is specialised for a head dimension, a page size and dtypes. What is compiled ahead
of time and what runs under the interpreter or from Python come from here alike. Knows neither how
kernels are compiled nor how they are launched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from plugins.triton.launch import Blocks, Config, Kernel

QueryDtype = Literal["float32", "float16", "bfloat16"]
PoolDtype = Literal["float32", "float16", "bfloat16", "int8"]

TRITON_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "i8"}
MAX_PAGE_SIZE = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """What a set of variants is compiled for."""

    head_dim: int
    page_size: int
    query_dtype: QueryDtype
    pool_dtype: PoolDtype
    softcap: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.head_dim <= 256:
            raise ValueError(f"head_dim must be 1 to 256, got {self.head_dim}")
        if not 1 <= self.page_size <= MAX_PAGE_SIZE:
            raise ValueError(f"page_size must be 1 to {MAX_PAGE_SIZE}, got {self.page_size}")

    @property
    def dot_dtype(self) -> QueryDtype:
        """What products are computed in: the query's dtype if pages need no wider one."""
        if self.pool_dtype in ("int8", self.query_dtype):
            return self.query_dtype
        return "float32"


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel with its constants."""

    kernel: Kernel
    config: Config | Literal[""]
    shape: Shape
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    constants: dict[str, Any] = field(hash=False)


def power_of_two(n: int) -> int:
    """The smallest one that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def blocks(shape: Shape) -> Blocks:
    """Block sizes. A step holds at least one page; float32 and wide heads take smaller steps."""
    page = power_of_two(shape.page_size)
    wide = shape.dot_dtype == "float32" or shape.head_dim > 128
    keys = max(32 if wide else 64, page)
    return Blocks(
        decode_m=16,
        decode_n=keys,
        prefill_m=32 if shape.dot_dtype == "float32" else (64 if wide else 128),
        prefill_n=keys,
        prepare_m=16,
        mass_n=keys,
    )


def variants(shape: Shape) -> tuple[Variant, ...]:
    """The five variants of a shape: prepare, attend twice, combine, mass."""
    sizes = blocks(shape)
    block_d = max(16, power_of_two(shape.head_dim))
    common: dict[str, Any] = {"HEAD_DIM": shape.head_dim, "BLOCK_D": block_d}
    paged = {**common, "PAGE_SIZE": shape.page_size, "INT8": shape.pool_dtype == "int8"}
    products = {
        **paged,
        "SOFTCAP": shape.softcap,
        "DOT": TRITON_NAMES[shape.dot_dtype],
        "PRECISION": "ieee" if shape.dot_dtype == "float32" else "tf32",
    }
    result = [
        Variant(
            "prepare", "", shape, sizes.prepare_m, 0, 4, 1,
            {**paged, "BLOCK_M": sizes.prepare_m, "BLOCK_COLUMNS": 1024},
        )
    ]  # fmt: skip
    for config in ("decode", "prefill"):
        m, n = sizes.of(config)
        stages = 2 if block_d * n > 64 * 64 or shape.dot_dtype == "float32" else 3
        result.append(
            Variant(
                "attend", config, shape, m, n, 8 if m * block_d > 64 * 128 else 4, stages,
                {**products, "BLOCK_M": m, "BLOCK_N": n, "STAGES": stages},
            )
        )  # fmt: skip
    result.append(
        Variant("combine", "", shape, 0, 0, 4, 1, {**common, "BLOCK_SPLITS": 16})
    )
    entries = power_of_two(sizes.mass_n // shape.page_size)
    result.append(
        Variant(
            "mass", "", shape, 16, sizes.mass_n, 4, 1,
            {**products, "BLOCK_M": 16, "BLOCK_N": sizes.mass_n, "PAGES_UP": entries},
        )
    )  # fmt: skip
    return tuple(result)
