"""A manifest and cubins for the fake driver: every variant a build has, no machine code.

A cubin here is a text that names the kernel and its parameters, as
plugins/tensorrt/check/fake_cuda.cpp reads it; the parameters are those of plugins/triton/launch.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

QUERIES = ("float32", "float16", "bfloat16")
POOLS = (*QUERIES, "int8")

FLOATS = {"scale", "softcap"}
INTS = {
    "num_tokens", "num_rows", "num_columns", "table_stride", "num_heads", "num_kv_heads",
    "num_writers", "rotary_pairs", "interleaved", "window", "has_sinks", "has_lse", "num_splits",
}  # fmt: skip

ARGUMENTS = {
    "prepare": "key value key_pool value_pool key_scales value_scales slot_mapping page_table "
    "starts run_ends num_tokens num_rows num_columns table_stride num_kv_heads num_writers",
    "attend": "output query key_pool value_pool key_scales value_scales page_table query_starts "
    "kv_limits query_indices sinks turns freq_axes starts run_ends stats partial lse num_tokens "
    "num_rows num_columns table_stride num_heads num_kv_heads rotary_pairs interleaved window "
    "has_sinks has_lse num_splits scale softcap",
    "combine": "output sinks stats partial lse num_tokens num_heads has_sinks has_lse num_splits",
    "mass": "page_mass mass_weights query key_pool key_scales page_table query_starts kv_limits "
    "query_indices turns freq_axes starts run_ends lse num_rows num_columns table_stride num_heads "
    "num_kv_heads rotary_pairs interleaved window scale softcap",
}


def _kind(name: str) -> str:
    return "fp32" if name in FLOATS else "i32" if name in INTS else "*i8"


def _variant(folder: Path, kernel: str, **keys: Any) -> dict[str, Any]:
    names = [*ARGUMENTS[kernel].split(), "null", "null"]
    letters = {"fp32": "f", "i32": "i", "*i8": "p"}
    made_for = [f"d={keys['head_dim']}", f"s={keys['page_size']}", f"q={keys['query_dtype']}"]
    if keys["pool_dtype"]:
        made_for.append(f"p={keys['pool_dtype']}")
    text = " ".join([kernel, *made_for, *(f"{name}:{letters[_kind(name)]}" for name in names)])
    file = "-".join([kernel, *map(str, made_for)]) + ".cubin"
    (folder / file).write_text(text)
    return {
        "kernel": kernel, "config": "", "softcap": False, "block_m": 16, "block_n": 64,
        "file": file, "symbol": kernel, "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "num_warps": 4, "shared_bytes": 0, "registers": 64, "spill_bytes": 0,
        "args": [{"name": name, "type": _kind(name)} for name in names],
    } | keys  # fmt: skip


def write_fake_kernels(folder: Path, shapes: Mapping[str, Sequence[tuple[int, int]]]) -> None:
    """Fill ``folder`` with a manifest for these head and page sizes of each architecture, every
    dtype and soft cap."""
    variants = []
    nodes = [(arch, *node) for arch, found in shapes.items() for node in found]
    for (arch, head_dim, page_size), query in product(nodes, QUERIES):
        common = {"arch": arch, "head_dim": head_dim, "query_dtype": query}
        variants.append(_variant(folder, "combine", page_size=0, pool_dtype="", **common))
        for pool in POOLS:
            node = common | {"page_size": page_size, "pool_dtype": pool}
            variants.append(_variant(folder, "prepare", **node))
            for cap in (False, True):
                variants.append(_variant(folder, "mass", softcap=cap, **node))
                for config, block_m in (("decode", 16), ("prefill", 64)):
                    variants.append(
                        _variant(folder, "attend", config=config, softcap=cap, **node)
                        | {"block_m": block_m, "shared_bytes": 65536 if config == "prefill" else 0}
                    )
    manifest = {"format": 1, "operator_version": 2, "triton": "none", "variants": variants}
    (folder / "manifest.json").write_text(json.dumps(manifest))
