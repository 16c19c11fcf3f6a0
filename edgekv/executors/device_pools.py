"""The pools of a decoder in GPU memory, and whole pages moved in and out of them.

Owns: a block for each tensor and one number a page, allocated once. Guarantees: pages that stand
one after another travel in one copy; a call returns when its copies are done; contents go in and
out as ``edgekv.contents`` says. Does not know which library runs the graph, sequences or tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.config import KVGeometry
from edgekv.contents import join, slot_shape, split, storage_dtype
from edgekv.errors import ExecutorError
from edgekv.executors.cuda import Block, Cuda
from edgekv.executors.pool_tensors import PoolTensor, mass_tensor, pool_tensors
from edgekv.uncopied import uncopied

_MASS_BYTES = 4


@uncopied("a device knows where they are")
class DevicePools:
    """Pools of ``num_pages`` pages at fixed addresses."""

    def __init__(
        self,
        cuda: Cuda,
        geometry: KVGeometry,
        num_pages: int,
        *,
        page_mass: bool = False,
        cross: bool = False,  # those that cross-attention reads
    ) -> None:
        self._cuda = cuda
        self.num_pages = num_pages
        self._tensors = pool_tensors(geometry, num_pages, cross=cross)
        self._num_parts = 2 * geometry.num_layers  # numbers of keys and of values; scales follow
        self._contents = slot_shape(geometry), storage_dtype(geometry.dtype)
        self._zeros = np.zeros(num_pages, np.float32)
        self._blocks: list[Block] = []  # one for each tensor
        self._mass: Block | None = None
        try:
            for tensor in self._tensors:
                self._blocks.append(cuda.allocate(tensor.num_bytes, "device"))
            if page_mass:
                self._mass = cuda.allocate(num_pages * _MASS_BYTES, "device")
                self._clear_mass(np.arange(num_pages, dtype=np.int32))
                cuda.synchronise()
        except BaseException:
            self.free()
            raise

    def bindings(self) -> list[tuple[PoolTensor, int]]:
        """Every tensor that a graph reads and writes here, and its address."""
        bound = [
            (tensor, block.address)
            for tensor, block in zip(self._tensors, self._blocks, strict=True)
        ]
        if self._mass is not None:
            bound.append((mass_tensor(self._zeros.size), self._mass.address))
        return bound

    def take_mass(self, pages: NDArray[np.int32]) -> NDArray[np.float32]:
        """The attention that fell on pages (n,) since the last call for them; now it is 0."""
        if self._mass is None:
            return np.zeros(pages.size, np.float32)
        mass = np.empty(self._zeros.size, np.float32)  # a few KiB: one copy, whatever the pages
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
        for place, block in enumerate(self._blocks):
            page_bytes = self._page_bytes(place)
            for start, count in _runs(np.stack([source, target])):
                self._cuda.copy(
                    block.address + int(target[start]) * page_bytes,
                    block.address + int(source[start]) * page_bytes,
                    count * page_bytes,
                )
        self._cuda.synchronise()

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """Contents of pages (n,): (num_layers, 2, n, Hk, S, W)."""
        contents = self._read_parts(list(range(self._num_parts)), pages)
        return contents.reshape(self._num_parts // 2, 2, *contents.shape[1:])

    def read_values(self, pages: NDArray[np.int32], layer: int) -> NDArray[np.generic]:
        """Contents of pages (n,), the values of one layer: (n, Hk, S, W)."""
        values: NDArray[np.generic] = self._read_parts([2 * layer + 1], pages)[0]
        return values

    def _read_parts(self, places: list[int], pages: NDArray[np.int32]) -> NDArray[Any]:
        """Contents of pages (n,) in some parts of the pools: (len(places), n, Hk, S, W)."""
        contents = self._read(places, pages)
        if len(self._tensors) > self._num_parts:
            scales = self._read([self._num_parts + place for place in places], pages)
            self._cuda.synchronise()
            contents = join(contents, scales)
        self._cuda.synchronise()
        return contents

    def _read(self, places: list[int], pages: NDArray[np.int32]) -> NDArray[Any]:
        """Queue the copies of pages (n,) of tensors of one kind: (len(places), n, …)."""
        kind = self._tensors[places[0] if places else 0]
        read = np.empty((len(places), pages.size, *kind.shape[1:]), kind.storage)
        for place, target in zip(places, read, strict=True):
            self._move(place, pages, target, read=True)
        return read

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, W) into pages (n,)."""
        slots, dtype = self._contents
        wanted = (self._num_parts // 2, 2, pages.size, *slots)
        if contents.shape != wanted or contents.dtype != dtype:
            raise ExecutorError(
                f"pages want {wanted} {dtype}, got {contents.shape} {contents.dtype}"
            )
        kinds: list[NDArray[Any]] = [contents.reshape(self._num_parts, *contents.shape[2:])]
        if len(self._tensors) > self._num_parts:
            kinds = list(split(kinds[0]))
        parts = [part for kind in map(np.ascontiguousarray, kinds) for part in kind]
        for place, part in enumerate(parts):
            self._move(place, pages, part, read=False)
        self._cuda.synchronise()

    def _move(
        self, place: int, pages: NDArray[np.int32], array: NDArray[Any], *, read: bool
    ) -> None:
        """Queue the copies of pages (n,) of one tensor into ``array`` (n, …), or out of it."""
        page_bytes, base = self._page_bytes(place), self._blocks[place].address
        for start, count in _runs(pages[None]):
            ours = base + int(pages[start]) * page_bytes
            theirs = array.ctypes.data + start * page_bytes
            target, source = (theirs, ours) if read else (ours, theirs)
            self._cuda.copy(target, source, count * page_bytes)

    def _page_bytes(self, place: int) -> int:
        return self._tensors[place].num_bytes // self._zeros.size

    def free(self) -> None:
        """Give the memory back."""
        while self._blocks:
            self._blocks.pop().free()
        if self._mass is not None:
            self._mass.free()
            self._mass = None


def _runs(rows: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """(start, count) of the columns of ``rows`` (k, n) over which every row counts up by one."""
    num_pages = rows.shape[1]
    if not num_pages:
        return
    breaks = np.flatnonzero((np.diff(rows) != 1).any(axis=0)) + 1
    edges = [0, *breaks.tolist(), num_pages]
    for start, end in itertools.pairwise(edges):
        yield start, end - start
