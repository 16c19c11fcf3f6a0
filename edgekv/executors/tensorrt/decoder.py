"""decoder.onnx as a TensorRT engine over pools in GPU memory.

Owns: the pools, one execution context per profile, the twins through which a step's inputs travel,
and a CUDA graph for each shape of a decode step. Guarantees: all memory is taken at construction;
one step is in flight at a time (``run`` returns its logits), so one buffer per input is enough and
none is overwritten before its upload ran; of the page table only what changed travels. Does not
know how engines are built or kept, sequences, or which CUDA it runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.errors import ExecutorError
from edgekv.executors.cuda import Cuda, Graph
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.device_table import DeviceTable
from edgekv.executors.feeds import step_feeds
from edgekv.executors.tensorrt.bindings import (
    READ_ONCE,
    READ_PER_LAYER,
    pack,
    put,
    step_shapes,
    tensor_bytes,
)
from edgekv.executors.tensorrt.profiles import Dims, Profile
from edgekv.executors.twin import Twin, choose_sharing
from edgekv.types import StepTables

_FLOAT32: np.dtype[np.generic] = np.dtype(np.float32)
_DTYPES: dict[str, np.dtype[np.generic]] = {
    names.INPUTS_EMBEDS: np.dtype(np.float32),
    names.POSITION_IDS: np.dtype(np.int64),
    names.LOGIT_INDICES: np.dtype(np.int64),
    names.PAGE_TABLE: np.dtype(np.int32),
    names.QUERY_STARTS: np.dtype(np.int32),
    names.SLOT_MAPPING: np.dtype(np.int32),
    names.KV_LIMITS: np.dtype(np.int32),
    names.QUERY_INDICES: np.dtype(np.int32),
    names.MASS_WEIGHTS: np.dtype(np.float32),
}


class Context(Protocol):
    """The part of TensorRT's execution context that a step needs; exists so that steps are tested
    without a GPU. Each call says whether it went well."""

    def set_input_shape(self, name: str, shape: Dims, /) -> bool: ...

    def set_tensor_address(self, name: str, address: int, /) -> bool: ...

    def execute_async_v3(self, stream: int, /) -> bool: ...


class TensorRTDecoder:
    """See ``DecoderExecutor``."""

    def __init__(
        self,
        contexts: tuple[Context, Context],  # decode, prefill
        profiles: tuple[Profile, Profile],
        cuda: Cuda,
        pools: DevicePools,
        *,
        num_rope_axes: int,
        vocab_size: int,
        query_size: int,  # Hq * D of the layer whose queries the engine shows, 0 = it shows none
        take_error: Callable[[], str],
        release: Callable[[], None],
    ) -> None:
        self._contexts, self._profiles = contexts, profiles
        self._cuda, self._pools = cuda, pools
        self._num_rope_axes, self._vocab_size = num_rope_axes, vocab_size
        self._query_size = query_size
        self._take_error, self._release = take_error, release
        self._bound: list[Mapping[str, Dims] | None] = [None, None]  # shapes each context last ran
        self._graphs: dict[tuple[Dims, ...], Graph] = {}
        self._twins: list[Twin | DeviceTable] = []
        self._closed = False
        most = {name: span.most for name, span in profiles[1].ranges.items()}
        self._page_mass = names.MASS_WEIGHTS in most
        self._max_rows, self._max_columns, width = most[names.PAGE_TABLE]
        mapped = choose_sharing(cuda.info).kind == "mapped"
        num_tokens, num_logits = most[names.INPUTS_EMBEDS][0], most[names.LOGIT_INDICES][0]
        try:
            again = [name for name in READ_PER_LAYER if name in most]
            self._groups = (
                (READ_ONCE, self._twin(pack(READ_ONCE, most, _DTYPES).num_bytes, mapped=mapped)),
                (again, self._twin(pack(again, most, _DTYPES).num_bytes, mapped=False)),
            )
            self._table = DeviceTable(
                cuda, max_rows=self._max_rows, max_columns=self._max_columns, width=width
            )
            self._twins.append(self._table)
            logits_bytes = tensor_bytes((num_logits, vocab_size), _FLOAT32)
            self._logits = self._twin(logits_bytes, mapped=mapped)
            self._queries: Twin | None = None
            if query_size:
                queries_bytes = tensor_bytes((num_tokens, query_size), _FLOAT32)
                self._queries = self._twin(queries_bytes, mapped=mapped)
            for context in contexts:
                self._bind_fixed(context)
        except BaseException:
            self.close()
            raise

    def _twin(self, num_bytes: int, *, mapped: bool) -> Twin:
        twin = Twin(self._cuda, num_bytes, mapped=mapped)
        self._twins.append(twin)
        return twin

    def _bind_fixed(self, context: Context) -> None:
        """Everything that lies at one address for good."""
        fixed = {names.PAGE_TABLE: self._table.address, names.LOGITS: self._logits.address}
        if self._queries is not None:
            fixed[names.QUERIES] = self._queries.address
        for pool, address in self._pools.bindings():
            fixed[pool.source] = fixed[pool.target] = address
            self._check(context.set_input_shape(pool.source, pool.shape), f"shaping {pool.source}")
        for name, address in fixed.items():
            self._check(context.set_tensor_address(name, address), f"binding {name}")

    def _check(self, went_well: bool, what: str) -> None:
        if not went_well:
            raise ExecutorError(f"TensorRT: {what} failed: {self._take_error()}")

    def run(
        self,
        embeds: NDArray[np.float32],
        tables: StepTables,
        logit_indices: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """One step; see ``DecoderExecutor.run``. Raises ExecutorError when the engine fails."""
        shape = (len(logit_indices), self._vocab_size)
        return self._step(embeds, tables, logit_indices, self._logits, shape)

    @property
    def shows_queries(self) -> bool:
        """Whether the engine has such an output."""
        return self._queries is not None

    def queries(self, embeds: NDArray[np.float32], tables: StepTables) -> NDArray[np.float32]:
        """One step for its queries (T, Hq * D); see ``DecoderExecutor.queries``."""
        if self._queries is None:
            raise ExecutorError("this decoder shows no queries; export the model again")
        last = np.array([len(embeds) - 1])  # an engine gives at least one row of logits
        return self._step(embeds, tables, last, self._queries, (len(embeds), self._query_size))

    def _step(
        self,
        embeds: NDArray[np.float32],
        tables: StepTables,
        logit_indices: NDArray[np.int64],
        result: Twin,
        result_shape: tuple[int, int],
    ) -> NDArray[np.float32]:
        """One step, of which ``result`` holds float32 numbers of ``result_shape``."""
        if self._closed:
            raise ExecutorError("the decoder executor is closed")
        arrays = step_feeds(
            embeds,
            tables,
            logit_indices,
            num_rope_axes=self._num_rope_axes,
            page_mass=self._page_mass,
        )
        shapes = step_shapes(arrays, self._max_columns)
        num_tokens, num_rows = len(embeds), tables.page_table.shape[0]
        which = 0 if num_tokens == num_rows <= self._max_rows else 1
        self._profiles[which].check(shapes)
        num_bytes = result_shape[0] * result_shape[1] * _FLOAT32.itemsize
        try:
            self._upload(arrays, shapes)
            if which == 0:
                self._decode(shapes)
            else:
                self._enqueue(which, shapes)
            result.download(num_bytes)
        finally:
            self._cuda.synchronise()
        numbers: NDArray[np.float32] = result.host[:num_bytes].view(np.float32).copy()
        return numbers.reshape(result_shape)

    def _upload(
        self, arrays: Mapping[str, NDArray[np.generic]], shapes: Mapping[str, Dims]
    ) -> None:
        """Put a step's inputs where the engine reads them."""
        for chosen, twin in self._groups:
            packing = pack(chosen, shapes, _DTYPES)
            for name, offset in packing.offsets.items():
                put(twin.host, offset, arrays[name])
            twin.upload(0, packing.num_bytes)
        table: NDArray[np.int32] = arrays[names.PAGE_TABLE]  # type: ignore[assignment]
        self._table.send(table, shapes[names.PAGE_TABLE][1])

    def _decode(self, shapes: dict[str, Dims]) -> None:
        """Launch the graph of these shapes. TensorRT wants a plain run of them before it records;
        so does a shape that occurs once only."""
        key = tuple(shapes.values())
        graph = self._graphs.get(key)
        if graph is None and self._bound[0] == shapes:
            graph = self._cuda.capture(lambda: self._execute(0))
            self._graphs[key] = graph
        if graph is not None:
            graph.launch()
        else:
            self._enqueue(0, shapes)

    def _enqueue(self, which: int, shapes: dict[str, Dims]) -> None:
        if self._bound[which] != shapes:
            self._bound[which] = None
            context = self._contexts[which]
            for chosen, twin in self._groups:
                for name, offset in pack(chosen, shapes, _DTYPES).offsets.items():
                    address = twin.address + offset
                    self._check(context.set_tensor_address(name, address), f"binding {name}")
            for name, shape in shapes.items():
                self._check(context.set_input_shape(name, shape), f"shaping {name}")
        self._execute(which)
        self._bound[which] = shapes

    def _execute(self, which: int) -> None:
        went_well = self._contexts[which].execute_async_v3(self._cuda.stream)
        self._check(went_well, "a decoder step")

    def take_mass(self, pages: NDArray[np.int32]) -> NDArray[np.float32]:
        """Attention on pages since the last call for them; they start from 0 again."""
        return self._pools.take_mass(pages)

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole pages in every pool."""
        self._pools.copy_pages(source, target)

    def read_pages(
        self, pages: NDArray[np.int32], layers: slice = slice(None)
    ) -> NDArray[np.generic]:
        """Contents of pages, (num_layers, 2, n, Hk, S, W), as ``edgekv.contents``."""
        return self._pools.read_pages(pages, layers)

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put contents (num_layers, 2, n, Hk, S, W), as ``edgekv.contents`` into pages."""
        self._pools.write_pages(pages, contents)

    def close(self) -> None:
        """Give graphs, buffers, pools and the engine back."""
        if self._closed:
            return
        self._closed = True
        while self._graphs:
            self._graphs.popitem()[1].free()
        while self._twins:
            self._twins.pop().free()
        self._pools.free()
        self._release()
