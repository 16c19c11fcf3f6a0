"""The pools of a decoder in GPU memory, and whole pages moved in and out of them.

Owns: one key and one value block per layer and one number a page, allocated once. Guarantees: pages
that stand one after another travel in one copy; a call returns when its copies are done. Does not
know which library runs the graph, sequences or tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.cuda import Block, Cuda

_MASS_BYTES = 4
POOL_DTYPES = {"float32": np.float32, "float16": np.float16}


@dataclass(frozen=True, slots=True)
class PoolBinding:
    """A tensor that is a graph's input and output at once."""

    source: str  # name of the input
    target: str  # name of the output
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    address: int


class DevicePools:
    """Pools of ``num_pages`` pages at fixed addresses."""

    def __init__(
        self, cuda: Cuda, geometry: KVGeometry, num_pages: int, *, page_mass: bool
    ) -> None:
        if geometry.dtype not in POOL_DTYPES:
            raise ExecutorError(f"no executor for the GPU has {geometry.dtype} pools")
        self._cuda = cuda
        self.shape = (num_pages, geometry.num_kv_heads, geometry.page_size, geometry.head_dim)
        self.dtype = np.dtype(POOL_DTYPES[geometry.dtype])
        self._page_bytes = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        self._zeros = np.zeros(num_pages, np.float32)
        self._blocks: list[Block] = []  # key, value, key, value, … one pair per layer
        self._mass: Block | None = None
        try:
            for _ in range(2 * geometry.num_layers):
                self._blocks.append(cuda.allocate(num_pages * self._page_bytes, "device"))
            if page_mass:
                self._mass = cuda.allocate(num_pages * _MASS_BYTES, "device")
                self._clear_mass(np.arange(num_pages, dtype=np.int32))
                cuda.synchronise()
        except BaseException:
            self.free()
            raise

    def bindings(self) -> list[PoolBinding]:
        """Every tensor that a graph reads and writes here."""
        bound = []
        for index, block in enumerate(self._blocks):
            layer, is_value = divmod(index, 2)
            source = (names.value_pool if is_value else names.key_pool)(layer)
            target = (names.value_pool_out if is_value else names.key_pool_out)(layer)
            bound.append(PoolBinding(source, target, self.shape, self.dtype, block.address))
        if self._mass is not None:
            bound.append(
                PoolBinding(
                    names.PAGE_MASS,
                    names.PAGE_MASS_OUT,
                    self.shape[:1],
                    np.dtype(np.float32),
                    self._mass.address,
                )
            )
        return bound

    def take_mass(self, pages: NDArray[np.int32]) -> NDArray[np.float32]:
        """The attention that fell on pages (n,) since the last call for them; now it is 0."""
        if self._mass is None:
            return np.zeros(pages.size, np.float32)
        mass = np.empty(self.shape[0], np.float32)  # a few KiB: one copy, whatever the pages
        self._cuda.copy(mass.ctypes.data, self._mass.address, mass.nbytes)
        self._clear_mass(pages)
        self._cuda.synchronise()
        return mass[pages]

    def _clear_mass(self, pages: NDArray[np.int32]) -> None:
        assert self._mass is not None
        for start, count in _runs(pages[None]):
            target = self._mass.address + int(pages[start]) * _MASS_BYTES
            self._cuda.copy(target, self._zeros.ctypes.data, count * _MASS_BYTES)

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy pages (n,) to pages (n,), none of which is a source too, in every pool."""
        for block in self._blocks:
            for start, count in _runs(np.stack([source, target])):
                self._cuda.copy(
                    self._at(block, target[start]),
                    self._at(block, source[start]),
                    count * self._page_bytes,
                )
        self._cuda.synchronise()

    def read_pages(
        self, pages: NDArray[np.int32], layers: slice = slice(None)
    ) -> NDArray[np.generic]:
        """Contents of pages (n,): (num_layers, 2, n, Hk, S, D)."""
        chosen = range(len(self._blocks) // 2)[layers]
        contents = np.empty((len(chosen), 2, pages.size, *self.shape[1:]), self.dtype)
        for index, layer in enumerate(chosen):
            for part in (0, 1):
                target = contents[index, part].ctypes.data
                for start, count in _runs(pages[None]):
                    self._cuda.copy(
                        target + start * self._page_bytes,
                        self._at(self._blocks[2 * layer + part], pages[start]),
                        count * self._page_bytes,
                    )
        self._cuda.synchronise()
        return contents

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, D) into pages (n,)."""
        wanted = (len(self._blocks) // 2, 2, pages.size, *self.shape[1:])
        if contents.shape != wanted or contents.dtype != self.dtype:
            raise ExecutorError(
                f"pages want {wanted} {self.dtype}, got {contents.shape} {contents.dtype}"
            )
        flat = np.ascontiguousarray(contents).reshape(len(self._blocks), pages.size, -1)
        for block, content in zip(self._blocks, flat, strict=True):
            for start, count in _runs(pages[None]):
                self._cuda.copy(
                    self._at(block, pages[start]),
                    content[start:].ctypes.data,
                    count * self._page_bytes,
                )
        self._cuda.synchronise()

    def free(self) -> None:
        """Give the memory back."""
        while self._blocks:
            self._blocks.pop().free()
        if self._mass is not None:
            self._mass.free()
            self._mass = None

    def _at(self, block: Block, page: np.int32) -> int:
        return block.address + int(page) * self._page_bytes


def _runs(rows: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """(start, count) of the columns of ``rows`` (k, n) over which every row counts up by one."""
    num_pages = rows.shape[1]
    if not num_pages:
        return
    breaks = np.flatnonzero((np.diff(rows) != 1).any(axis=0)) + 1
    edges = [0, *breaks.tolist(), num_pages]
    for start, end in itertools.pairwise(edges):
        yield start, end - start
