"""One step as bytes: which shapes the engine gets, and where each input lies in a block.

Owns: the choice of shapes (page tables are padded to a power of two, so that few shapes occur and
each has one CUDA graph), and the layout of a step's small inputs one after another, so that they
travel together. Guarantees: the same shapes always give the same layout, hence the same addresses;
padding means nothing to the operator (page id −1). Does not know TensorRT or CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.executors.device_table import padded_columns
from edgekv.executors.tensorrt.profiles import Dims

_ALIGNMENT = 256  # what CUDA's own allocations are aligned to

# What the graph reads once, and what the operator reads again in every layer.
READ_ONCE = (names.INPUTS_EMBEDS, names.POSITION_IDS, names.LOGIT_INDICES)
READ_PER_LAYER = (
    names.QUERY_STARTS,
    names.SLOT_MAPPING,
    names.KV_LIMITS,
    names.QUERY_INDICES,
    names.MASS_WEIGHTS,  # by one layer only, and not by every model's
    names.CROSS_KV_LIMITS,  # by the layers of cross-attention, which not every model has
)
# Those of which only what has changed travels.
TABLES = (names.PAGE_TABLE, names.CROSS_PAGE_TABLE)


def tensor_bytes(shape: Dims, dtype: np.dtype[np.generic]) -> int:
    """Bytes of one tensor, rounded up to where the next may begin."""
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def step_shapes(
    arrays: Mapping[str, NDArray[np.generic]], max_columns: Mapping[str, int]
) -> dict[str, Dims]:
    """The shapes the engine gets: those of ``arrays`` but for wider page tables; ``max_columns``
    is how wide each may be."""
    shapes = {name: array.shape for name, array in arrays.items()}
    for name, most in max_columns.items():
        num_rows, columns, width = shapes[name]
        shapes[name] = (num_rows, padded_columns(columns, most), width)
    return shapes


@dataclass(frozen=True, slots=True)
class Packing:
    """Offsets of tensors that lie one after another."""

    offsets: Mapping[str, int]
    num_bytes: int


def pack(
    chosen: Iterable[str], shapes: Mapping[str, Dims], dtypes: Mapping[str, np.dtype[np.generic]]
) -> Packing:
    """Where each of ``chosen`` goes, in that order."""
    offsets, end = {}, 0
    for name in chosen:
        offsets[name] = end
        end += tensor_bytes(shapes[name], dtypes[name])
    return Packing(offsets, end)


def put(block: NDArray[np.uint8], offset: int, array: NDArray[np.generic]) -> None:
    """Write ``array`` into ``block`` at ``offset``."""
    target = block[offset : offset + array.nbytes].view(array.dtype)
    target.reshape(array.shape)[...] = array
