"""ONNX Runtime on the CPU.

Owns: the pools, NumPy arrays bound as graph inputs and outputs at once, so steps write in place.
Guarantees: memory is taken at construction. Does not know sequences, bundles or pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.ort_session import OrtStep, OrtVision, open_graph
from edgekv.executors.signature import Signature, check_signature, decoder_signature
from edgekv.native import ort_library_path
from edgekv.native.pages import PageCopier
from edgekv.types import StepTables

__all__ = ["OrtDecoder", "OrtVision"]

_POOL_DTYPES = {"float32": np.float32, "float16": np.float16}


def make_pool(shape: tuple[int, ...], geometry: KVGeometry) -> NDArray[np.generic]:
    """Memory for pages. Raises ExecutorError for a KV dtype this executor has no pools of."""
    if geometry.dtype not in _POOL_DTYPES:
        raise ExecutorError(f"the CPU executor has no {geometry.dtype} pools")
    pool = np.empty(shape, _POOL_DTYPES[geometry.dtype])
    pool.fill(0)  # touch every byte now, so that the budget is paid at load and not in use
    return pool


def shared_value(pool: NDArray[np.generic]) -> ort.OrtValue:
    """The same memory, as ONNX Runtime binds it."""
    value = ort.OrtValue.ortvalue_from_numpy(pool)
    if value.data_ptr() != pool.ctypes.data:
        raise ExecutorError("this onnxruntime copies arrays it should share; please report it")
    return value


class OrtDecoder:
    """decoder.onnx with pools of ``num_pages`` pages; see ``DecoderExecutor``."""

    def __init__(
        self,
        path: Path,
        geometry: KVGeometry,
        *,
        num_pages: int,
        num_threads: int = 0,
        signature: Signature | None = None,  # None = what the geometry alone asks for
        cross_pools: Mapping[str, NDArray[np.generic]] | None = None,  # by graph input
    ) -> None:
        session, found = open_graph(path, num_threads, library=ort_library_path())
        page_mass = names.PAGE_MASS in found.taken
        signature = signature or decoder_signature(geometry, page_mass=page_mass)
        check_signature(path.name, signature, found)
        self._step = OrtStep(session, num_rope_axes=geometry.num_rope_axes)
        shape = (num_pages, geometry.num_kv_heads, geometry.page_size, geometry.head_dim)
        self._pools: list[NDArray[np.generic]] = []  # key, value, key, value, … one pair per layer
        for layer in range(geometry.num_layers):
            self._bind_pool(names.key_pool(layer), names.key_pool_out(layer), shape, geometry)
            self._bind_pool(names.value_pool(layer), names.value_pool_out(layer), shape, geometry)
        self._copier: PageCopier | None = PageCopier(self._pools)
        self._mass = np.zeros(num_pages, np.float32)
        if page_mass:
            self._bind_in_place(names.PAGE_MASS, names.PAGE_MASS_OUT, self._mass)
        for name, pool in (cross_pools or {}).items():
            self._step.bind_input(name, shared_value(pool))

    def _bind_pool(
        self, source: str, target: str, shape: tuple[int, ...], geometry: KVGeometry
    ) -> None:
        pool = make_pool(shape, geometry)
        self._bind_in_place(source, target, pool)
        self._pools.append(pool)

    def _bind_in_place(self, source: str, target: str, array: NDArray[np.generic]) -> None:
        self._step.bind_in_place(source, target, shared_value(array))

    def run(
        self,
        embeds: NDArray[np.float32],
        tables: StepTables,
        logit_indices: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """One step; see ``DecoderExecutor.run``. Raises ExecutorError when the graph fails."""
        return self._step.run(embeds, tables, logit_indices)

    @property
    def shows_queries(self) -> bool:
        """Whether the graph has such an output."""
        return self._step.shows_queries

    def queries(self, embeds: NDArray[np.float32], tables: StepTables) -> NDArray[np.float32]:
        """One step for its queries (T, Hq * D); see ``DecoderExecutor.queries``."""
        return self._step.queries(embeds, tables)

    def take_mass(self, pages: NDArray[np.int32]) -> NDArray[np.float32]:
        """Attention on pages since the last call for them; they start from 0 again."""
        mass: NDArray[np.float32] = self._mass[pages]
        self._mass[pages] = 0
        return mass

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole pages in every pool."""
        if self._copier is None:
            raise ExecutorError("the decoder executor is closed")
        self._copier.copy(source, target)

    def read_pages(
        self, pages: NDArray[np.int32], layers: slice = slice(None)
    ) -> NDArray[np.generic]:
        """Contents of pages, (num_layers, 2, n, Hk, S, D)."""
        chosen = range(len(self._pools) // 2)[layers]
        pools = [self._pools[2 * layer + part] for layer in chosen for part in (0, 1)]
        stacked = np.stack([pool[pages] for pool in pools])
        return stacked.reshape(len(chosen), 2, *stacked.shape[1:])

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, D) into pages."""
        for pool, content in zip(
            self._pools, contents.reshape(-1, *contents.shape[2:]), strict=True
        ):
            pool[pages] = content

    def close(self) -> None:
        """Give pools and graph back."""
        self._step.close()
        self._pools.clear()
        self._copier = None  # it holds the pools too
