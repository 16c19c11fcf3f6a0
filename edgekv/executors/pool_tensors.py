"""Which tensors of a graph are pools: names, shapes, dtypes.

Owns: the one list that signatures, executors and engines read. Guarantees: every tensor is an input
and an output of the graph that writes it; keys and values take turns, layer by layer, and so do
their scales behind them. Does not know memory, nor what runs the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.contents import storage_dtype

# What queries, and new keys and values, are where products are in half precision: with this the
# kernels multiply in it and lose nothing of the pages. Elsewhere they are float32.
QUERY_DTYPES: Mapping[str, str] = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "float16",
}


@dataclass(frozen=True, slots=True)
class PoolTensor:
    """A tensor that is a graph's input and output at once."""

    source: str  # name of the input
    target: str  # name of the output
    shape: tuple[int, ...]
    dtype: str  # as signatures write it
    storage: np.dtype[Any]  # of its memory

    @property
    def num_bytes(self) -> int:
        """Of all of it."""
        return int(np.prod(self.shape)) * self.storage.itemsize


def pool_tensors(
    geometry: KVGeometry, num_pages: int, *, cross: bool = False
) -> tuple[PoolTensor, ...]:
    """The pools of ``num_pages`` pages; ``cross``: those that cross-attention reads."""
    slots = (num_pages, geometry.num_kv_heads, geometry.page_size)
    kinds: list[tuple[str, str, tuple[int, ...]]] = [
        ("pool", geometry.dtype, (*slots, geometry.head_dim))
    ]
    if geometry.dtype == "int8":
        kinds.append(("scales", "float32", slots))
    return tuple(
        PoolTensor(
            names.pool(part, kind, layer, cross=cross),
            names.pool(part, f"{kind}_out", layer, cross=cross),
            shape,
            dtype,
            storage_dtype(dtype),
        )
        for kind, dtype, shape in kinds
        for layer in range(geometry.num_layers)
        for part in ("key", "value")
    )


def mass_tensor(num_pages: int) -> PoolTensor:
    """The attention that fell on each page."""
    return PoolTensor(
        names.PAGE_MASS, names.PAGE_MASS_OUT, (num_pages,), "float32", np.dtype(np.float32)
    )
