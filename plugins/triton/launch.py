"""Which kernels run for a call, over how many blocks, in which workspace.

Owns: the arithmetic of ``launch.md``, in Python. Guarantees: everything follows from numbers the
host knows; nothing is read from the device, nothing is allocated. Knows neither Triton nor CUDA;
the C++ launchers do the same sums and are held to ``launch_cases.json``, as this module is.

Symbols as in docs/paged_attention.md: T tokens, B rows, M page-table columns, S page size, Hq
query heads, Hk KV heads, D head dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Config = Literal["decode", "prefill"]
Kernel = Literal["prepare", "attend", "combine", "mass"]

ALIGNMENT = 256  # bytes, of every workspace part
PROGRAMS_PER_SM = {"decode": 2, "prefill": 1}  # blocks in flight that a split aims at
CONFIGS: tuple[Config, ...] = ("decode", "prefill")


@dataclass(frozen=True, slots=True)
class Node:
    """What a node fixes."""

    num_heads: int  # Hq
    num_kv_heads: int  # Hk
    head_dim: int  # D
    page_size: int  # S
    read_only: bool = False  # no key and value
    page_mass: bool = False

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the host knows of a call."""

    num_tokens: int  # T
    num_rows: int  # B
    num_columns: int  # M


@dataclass(frozen=True, slots=True)
class Blocks:
    """Query rows (block_m) and keys (block_n) of a step, of the compiled variants."""

    decode_m: int
    decode_n: int
    prefill_m: int
    prefill_n: int
    prepare_m: int
    mass_n: int

    def of(self, config: Config) -> tuple[int, int]:
        """(block_m, block_n) of an attend variant."""
        if config == "decode":
            return self.decode_m, self.decode_n
        return self.prefill_m, self.prefill_n


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch; ``config`` is empty but for attend."""

    kernel: Kernel
    config: Config | Literal[""]
    grid: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches of a call, in order, and its workspace: part name -> (offset, bytes)."""

    launches: tuple[Launch, ...]
    num_splits: int
    num_writers: int
    workspace: dict[str, tuple[int, int]]
    workspace_bytes: int


def up(a: int, b: int) -> int:
    """a / b, rounded up."""
    return (a + b - 1) // b


def choose_config(node: Node, sizes: Sizes) -> Config:
    """Prefill once rows have more than 32 query rows (tokens x heads of a group) on average."""
    return "prefill" if sizes.num_tokens * node.group > 32 * sizes.num_rows else "decode"


def count_splits(node: Node, sizes: Sizes, blocks: Blocks, sms: int) -> int:
    """Parts a row's pages are cut into, so that a small batch still fills the device."""
    config = choose_config(node, sizes)
    block_m, block_n = blocks.of(config)
    rows = sizes.num_tokens * node.group
    num_blocks = rows // block_m + sizes.num_rows
    working = min(num_blocks, sizes.num_tokens * up(node.group, block_m))
    programs = PROGRAMS_PER_SM[config] * sms
    longest = sizes.num_columns * node.page_size // (2 * block_n)
    return max(1, min(programs // (working * node.num_kv_heads), longest))


def plan(node: Node, sizes: Sizes, blocks: Blocks, sms: int) -> Plan:
    """The launches and the workspace of a call."""
    T, B, M = sizes.num_tokens, sizes.num_rows, sizes.num_columns
    if T == 0 or B == 0:
        return Plan((), 1, 0, {}, 0)
    config = choose_config(node, sizes)
    splits = count_splits(node, sizes, blocks, sms)
    writers = 0 if node.read_only else up(T, blocks.prepare_m) * node.num_kv_heads
    num_blocks = T * node.group // blocks.of(config)[0] + B
    launches = [
        Launch("prepare", "", (writers + B, 1, 1)),
        Launch("attend", config, (num_blocks, node.num_kv_heads, splits)),
    ]
    if splits > 1:
        launches.append(Launch("combine", "", (T, node.num_heads, 1)))
    if node.page_mass and M > 0:
        launches.append(Launch("mass", "", (up(M, blocks.mass_n // node.page_size), B, 1)))
    workspace, total = _lay_out(node, sizes, splits * T * node.num_heads if splits > 1 else 0)
    return Plan(tuple(launches), splits, writers, workspace, total)


def workspace_bound(node: Node, largest: Sizes, blocks: Blocks, sms: int) -> int:
    """Bytes that are enough for every call no larger than ``largest`` in any size."""
    rows = max(PROGRAMS_PER_SM[config] * sms * blocks.of(config)[0] for config in CONFIGS)
    return _lay_out(node, largest, rows)[1]


def _lay_out(node: Node, sizes: Sizes, partial_rows: int) -> tuple[dict[str, tuple[int, int]], int]:
    T, B, M = sizes.num_tokens, sizes.num_rows, sizes.num_columns
    parts = {
        "starts": 4 * B * (M + 1),
        "run_ends": 4 * B * M,
        "lse": 4 * T * node.num_heads if node.page_mass else 0,
        "stats": 8 * partial_rows,
        "partial": 4 * partial_rows * node.head_dim,
    }
    offset, result = 0, {}
    for name, size in parts.items():
        result[name] = (offset, size)
        offset += up(size, ALIGNMENT) * ALIGNMENT
    return result, offset


def turns(inv_freq: tuple[float, ...]) -> list[int]:
    """``inv_freq / 2 pi`` modulo 1 as 64-bit binary fractions, in int64."""
    result = []
    for frequency in inv_freq:
        x = frequency / (2 * math.pi)
        bits = int((x - math.floor(x)) * 2.0**64)
        result.append(bits - 2**64 if bits >= 2**63 else bits)
    return result
