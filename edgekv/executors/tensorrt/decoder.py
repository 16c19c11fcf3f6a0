"""decoder.onnx as a TensorRT engine over pools in GPU memory.

Owns: the pools it writes, the twins through which a step's inputs and results travel, and a CUDA
graph for each shape of a decode step. Guarantees: all memory is taken at construction; one step is
in flight at a time (``run`` returns its logits), so one buffer per input is enough and none is
overwritten before its upload ran. Pools that cross-attention reads belong to whoever writes them.
Does not know how engines are built or kept, sequences, or which CUDA it runs on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.errors import ExecutorError
from edgekv.executors.cuda import Cuda, Graph
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.feeds import step_feeds
from edgekv.executors.tensorrt.bindings import tensor_bytes
from edgekv.executors.tensorrt.engine import Context, Running, check
from edgekv.executors.tensorrt.profiles import Dims, Profile
from edgekv.executors.tensorrt.step_inputs import StepInputs
from edgekv.executors.twin import Twin, choose_sharing
from edgekv.types import StepTables

_FLOAT32: np.dtype[np.generic] = np.dtype(np.float32)


class TensorRTDecoder:
    """See ``DecoderExecutor``."""

    def __init__(
        self,
        running: Running,
        profiles: tuple[Profile, ...],  # decode, prefill: one for each context
        cuda: Cuda,
        pools: DevicePools,
        *,
        num_rope_axes: int,
        vocab_size: int,
        cross_pools: DevicePools | None = None,
    ) -> None:
        self._running, self._contexts, self._profiles = running, running.contexts, profiles
        self._cuda, self._pools = cuda, pools
        self._num_rope_axes, self._vocab_size = num_rope_axes, vocab_size
        self._query_size = running.query_size
        self._bound: list[dict[str, Dims] | None] = [None, None]  # shapes each context last ran
        self._graphs: dict[tuple[Dims, ...], Graph] = {}
        self._taken: list[Twin | StepInputs] = []
        self._closed = False
        most = {name: span.most for name, span in profiles[1].ranges.items()}
        self._page_mass = names.MASS_WEIGHTS in most
        self._max_rows = most[names.PAGE_TABLE][0]
        mapped = choose_sharing(cuda.info).kind == "mapped"
        num_tokens, num_logits = most[names.INPUTS_EMBEDS][0], most[names.LOGIT_INDICES][0]
        try:
            self._inputs = StepInputs(cuda, most, mapped=mapped)
            self._taken.append(self._inputs)
            self._logits = self._result((num_logits, vocab_size), mapped=mapped)
            self._queries: Twin | None = None
            if self._query_size:
                self._queries = self._result((num_tokens, self._query_size), mapped=mapped)
            for context in self._contexts:
                self._bind_fixed(context, cross_pools)
        except BaseException:
            self.close()
            raise

    def _result(self, shape: Dims, *, mapped: bool) -> Twin:
        twin = Twin(self._cuda, tensor_bytes(shape, _FLOAT32), mapped=mapped)
        self._taken.append(twin)
        return twin

    def _bind_fixed(self, context: Context, cross_pools: DevicePools | None) -> None:
        """Everything that lies at one address for good."""
        fixed = {names.LOGITS: self._logits.address, **dict(self._inputs.fixed())}
        if self._queries is not None:
            fixed[names.QUERIES] = self._queries.address
        for pool, address in [] if cross_pools is None else cross_pools.bindings():
            fixed[pool.source] = address  # read, not written
            self._check(context.set_input_shape(pool.source, pool.shape), f"shaping {pool.source}")
        for pool, address in self._pools.bindings():
            fixed[pool.source] = fixed[pool.target] = address
            self._check(context.set_input_shape(pool.source, pool.shape), f"shaping {pool.source}")
        for name, address in fixed.items():
            self._check(context.set_tensor_address(name, address), f"binding {name}")

    def _check(self, went_well: bool, what: str) -> None:
        check(self._running, went_well, what)

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
        shapes = self._inputs.shapes(arrays)
        num_tokens, num_rows = len(embeds), tables.page_table.shape[0]
        which = 0 if num_tokens == num_rows <= self._max_rows else 1
        self._profiles[which].check(shapes)
        num_bytes = result_shape[0] * result_shape[1] * _FLOAT32.itemsize
        try:
            self._inputs.send(arrays, shapes)
            if which == 0:
                self._decode(shapes)
            else:
                self._enqueue(which, shapes)
            result.download(num_bytes)
        finally:
            self._cuda.synchronise()
        numbers: NDArray[np.float32] = result.host[:num_bytes].view(np.float32).copy()
        return numbers.reshape(result_shape)

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
            for name, address in self._inputs.moving(shapes):
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

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """Contents of pages, (num_layers, 2, n, Hk, S, W), as ``edgekv.contents``."""
        return self._pools.read_pages(pages)

    def read_values(self, pages: NDArray[np.int32], layer: int) -> NDArray[np.generic]:
        """Contents of pages, the values of one layer: (n, Hk, S, W)."""
        return self._pools.read_values(pages, layer)

    def find_values(self, layer: int) -> None:
        """None: they are on the device."""

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
        while self._taken:
            self._taken.pop().free()
        self._pools.free()
        self._running.release()
