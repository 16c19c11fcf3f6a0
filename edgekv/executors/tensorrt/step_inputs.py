"""The small inputs of a step on their way to the GPU.

Owns: the twins through which they travel, a table on the GPU for each page table, and their sizes.
Guarantees: all memory is taken at construction; the same shapes lie at the same addresses; of page
tables only what changed travels. Whoever sends again has waited for the step before. Does not know
TensorRT, nor what a step is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.executors.cuda import Cuda
from edgekv.executors.device_table import DeviceTable
from edgekv.executors.tensorrt.bindings import (
    READ_ONCE,
    READ_PER_LAYER,
    TABLES,
    pack,
    put,
    step_shapes,
)
from edgekv.executors.tensorrt.profiles import Dims
from edgekv.executors.twin import Twin

_INT32: np.dtype[np.generic] = np.dtype(np.int32)
_DTYPES: dict[str, np.dtype[np.generic]] = {
    names.INPUTS_EMBEDS: np.dtype(np.float32),
    names.POSITION_IDS: np.dtype(np.int64),
    names.LOGIT_INDICES: np.dtype(np.int64),
    names.QUERY_STARTS: _INT32,
    names.SLOT_MAPPING: _INT32,
    names.KV_LIMITS: _INT32,
    names.QUERY_INDICES: _INT32,
    names.MASS_WEIGHTS: np.dtype(np.float32),
    names.CROSS_KV_LIMITS: _INT32,
}


class StepInputs:
    """Everything that ``step_feeds`` gives, for steps of up to the shapes ``most``."""

    def __init__(self, cuda: Cuda, most: Mapping[str, Dims], *, mapped: bool) -> None:
        self._groups: list[tuple[list[str], Twin]] = []
        self._tables: dict[str, DeviceTable] = {}
        self._max_columns = {name: most[name][1] for name in TABLES if name in most}
        try:
            for chosen, in_place in ((READ_ONCE, mapped), (READ_PER_LAYER, False)):
                there = [name for name in chosen if name in most]
                num_bytes = pack(there, most, _DTYPES).num_bytes
                self._groups.append((there, Twin(cuda, num_bytes, mapped=in_place)))
            for name in self._max_columns:
                rows, columns, width = most[name]
                self._tables[name] = DeviceTable(
                    cuda, max_rows=rows, max_columns=columns, width=width
                )
        except BaseException:
            self.free()
            raise

    def shapes(self, arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Dims]:
        """The shapes that the engine gets of a step's arrays."""
        return step_shapes(arrays, self._max_columns)

    def fixed(self) -> Iterator[tuple[str, int]]:
        """Inputs that lie at one address whatever their shapes, and their addresses."""
        for name, table in self._tables.items():
            yield name, table.address

    def moving(self, shapes: Mapping[str, Dims]) -> Iterator[tuple[str, int]]:
        """The other inputs, and their addresses with these shapes."""
        for chosen, twin in self._groups:
            for name, offset in pack(chosen, shapes, _DTYPES).offsets.items():
                yield name, twin.address + offset

    def send(self, arrays: Mapping[str, NDArray[np.generic]], shapes: Mapping[str, Dims]) -> None:
        """Queue what brings a step's arrays to where an engine reads them."""
        for chosen, twin in self._groups:
            packing = pack(chosen, shapes, _DTYPES)
            for name, offset in packing.offsets.items():
                put(twin.host, offset, arrays[name])
            twin.upload(0, packing.num_bytes)
        for name, table in self._tables.items():
            rows: NDArray[np.int32] = arrays[name]  # type: ignore[assignment]
            table.send(rows, shapes[name][1])

    def free(self) -> None:
        """Give the memory back."""
        while self._groups:
            self._groups.pop()[1].free()
        while self._tables:
            self._tables.popitem()[1].free()
