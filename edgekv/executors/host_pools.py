"""Pools in the memory of the CPU, and whole pages moved in and out of them.

Owns: the arrays, taken and touched once. Guarantees: contents go in and out as ``edgekv.contents``
says, bit by bit. Does not know which library runs over them, sequences or tables.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.config import KVGeometry
from edgekv.contents import join, split
from edgekv.errors import ExecutorError
from edgekv.executors.pool_tensors import pool_tensors
from edgekv.native.columns import PageValues
from edgekv.native.pages import PageCopier
from edgekv.uncopied import uncopied


@uncopied("native calls know where they are")
class HostPools:
    """Pools of ``num_pages`` pages; ``cross``: those that cross-attention reads."""

    def __init__(self, geometry: KVGeometry, num_pages: int, *, cross: bool = False) -> None:
        self.tensors = pool_tensors(geometry, num_pages, cross=cross)
        self.arrays: list[NDArray[Any]] = []  # one for each tensor
        for tensor in self.tensors:
            array = np.empty(tensor.shape, tensor.storage)
            array.fill(0)  # touch every byte now: the budget is paid at load and not in use
            self.arrays.append(array)
        self._num_parts = 2 * geometry.num_layers  # numbers of keys and of values; scales follow
        alike = groupby(self.arrays, lambda array: array.shape)
        self._values: dict[int, PageValues] = {}  # of a layer, once asked for
        self._copiers = [PageCopier(list(arrays)) for _, arrays in alike]

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole pages (n,) -> (n,) in every pool."""
        self._check_open()
        for copier in self._copiers:
            copier.copy(source, target)

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[Any]:
        """Contents of pages (n,): (num_layers, 2, n, Hk, S, W)."""
        self._check_open()
        parts = np.stack([self._read(place, pages) for place in range(self._num_parts)])
        return parts.reshape(self._num_parts // 2, 2, *parts.shape[1:])

    def read_values(self, pages: NDArray[np.int32], layer: int) -> NDArray[Any]:
        """Contents of pages (n,), the values of one layer: (n, Hk, S, W)."""
        self._check_open()
        return self._read(2 * layer + 1, pages)

    def find_values(self, layer: int) -> PageValues:
        """Where the values of one layer are."""
        self._check_open()
        if layer not in self._values:
            place = 2 * layer + 1
            scaled = len(self.arrays) > self._num_parts
            scales = self.arrays[self._num_parts + place] if scaled else None
            self._values[layer] = PageValues(self.arrays[place], scales)
        return self._values[layer]

    def _read(self, place: int, pages: NDArray[np.int32]) -> NDArray[Any]:
        numbers: NDArray[Any] = self.arrays[place][pages]
        if len(self.arrays) > self._num_parts:
            numbers = join(numbers, self.arrays[self._num_parts + place][pages])
        return numbers

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[Any]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, W) into pages (n,)."""
        self._check_open()
        parts = contents.reshape(-1, *contents.shape[2:])
        scales: NDArray[np.float32] | None = None
        if len(self.arrays) > self._num_parts:
            parts, scales = split(parts)
        for place, numbers in enumerate(parts):
            self.arrays[place][pages] = numbers
            if scales is not None:
                self.arrays[self._num_parts + place][pages] = scales[place]

    def free(self) -> None:
        """Let go of the memory."""
        self.arrays.clear()
        self._copiers.clear()
        self._values.clear()

    def _check_open(self) -> None:
        if not self.arrays:
            raise ExecutorError("the executor is closed")
