"""ONNX Runtime on the CPU: the only module that imports onnxruntime.

Owns: the pools (NumPy arrays bound as graph inputs and outputs at once, so steps write in place)
and two inference sessions. Guarantees: memory is taken at construction; steps of up to the largest
token count seen so far take no more. Does not know sequences, bundles or pictures.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.signature import Signature, Tensors, check_signature, decoder_signature
from edgekv.native import ort_library_path
from edgekv.types import StepTables

_POOL_DTYPES = {"float32": np.float32, "float16": np.float16}
_DTYPE_NAMES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


def _session(
    path: Path, num_threads: int, *, custom_ops: bool
) -> tuple[ort.InferenceSession, Signature]:
    """The graph at ``path``, and what it takes and gives."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 4  # what goes wrong is raised, in one line
    # Memory patterns are cached per input shape, and every question has another length.
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
    try:
        if custom_ops:
            options.register_custom_ops_library(str(ort_library_path()))
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except ExecutorError:
        raise
    except Exception as error:  # onnxruntime raises a dozen unrelated types here
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ExecutorError(f"onnxruntime cannot load {path.name}: {reason}") from error
    return session, Signature(_tensors(session.get_inputs()), _tensors(session.get_outputs()))


def _tensors(arguments: list[ort.NodeArg]) -> Tensors:
    return {
        argument.name: (
            _DTYPE_NAMES.get(argument.type, argument.type),
            tuple(size if isinstance(size, int) else None for size in argument.shape),
        )
        for argument in arguments
    }


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
    ) -> None:
        if geometry.dtype not in _POOL_DTYPES:
            raise ExecutorError(f"the CPU executor has no {geometry.dtype} pools")
        self._session: ort.InferenceSession | None
        self._session, found = _session(path, num_threads, custom_ops=True)
        self._weighs = names.PAGE_MASS in found.taken
        signature = signature or decoder_signature(geometry, page_mass=self._weighs)
        check_signature(path.name, signature, found)
        shape = (num_pages, geometry.num_kv_heads, geometry.page_size, geometry.head_dim)
        self._pools: list[NDArray[np.generic]] = []  # key, value, key, value, … one pair per layer
        self._binding = self._session.io_binding()
        self._query_binding = self._session.io_binding()  # one that also asks for queries
        self._shows_queries = names.QUERIES in {o.name for o in self._session.get_outputs()}
        self._num_rope_axes = geometry.num_rope_axes
        for layer in range(geometry.num_layers):
            self._bind_pool(names.key_pool(layer), names.key_pool_out(layer), shape, geometry)
            self._bind_pool(names.value_pool(layer), names.value_pool_out(layer), shape, geometry)
        self._mass = np.zeros(num_pages, np.float32)
        if self._weighs:
            self._bind_in_place(names.PAGE_MASS, names.PAGE_MASS_OUT, self._mass)
        self._binding.bind_output(names.LOGITS, "cpu")

    def _bind_pool(
        self, source: str, target: str, shape: tuple[int, ...], geometry: KVGeometry
    ) -> None:
        pool = np.empty(shape, _POOL_DTYPES[geometry.dtype])
        pool.fill(0)  # touch every byte now, so that the budget is paid at load and not in use
        self._bind_in_place(source, target, pool)
        self._pools.append(pool)

    def _bind_in_place(self, source: str, target: str, array: NDArray[np.generic]) -> None:
        value = ort.OrtValue.ortvalue_from_numpy(array)
        if value.data_ptr() != array.ctypes.data:
            raise ExecutorError("this onnxruntime copies arrays it should share; please report it")
        for binding in (self._binding, self._query_binding):
            binding.bind_ortvalue_input(source, value)
            binding.bind_ortvalue_output(target, value)

    def run(
        self,
        embeds: NDArray[np.float32],
        tables: StepTables,
        logit_indices: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """One step; see ``DecoderExecutor.run``. Raises ExecutorError when the graph fails."""
        return self._run(self._binding, embeds, tables, logit_indices)

    def queries(
        self, embeds: NDArray[np.float32], tables: StepTables
    ) -> NDArray[np.float32]:  # (T, Hq * D)
        """One step for its queries; see ``DecoderExecutor.queries``."""
        if not self._shows_queries:
            raise ExecutorError("this decoder shows no queries; export the model again")
        # Bound anew, since a bound output keeps the shape of the step before.
        self._query_binding.bind_output(names.QUERIES, "cpu")
        return self._run(self._query_binding, embeds, tables, np.empty(0, np.int64))

    def _run(
        self,
        binding: ort.IOBinding,
        embeds: NDArray[np.float32],
        tables: StepTables,
        logit_indices: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """One step; a copy of the output that was bound last."""
        if self._session is None:
            raise ExecutorError("the decoder executor is closed")
        positions = tables.position_ids if self._num_rope_axes > 1 else tables.position_ids[0]
        feeds: dict[str, NDArray[np.generic]] = {
            names.INPUTS_EMBEDS: embeds,
            names.POSITION_IDS: positions,
            names.LOGIT_INDICES: logit_indices,
            names.PAGE_TABLE: tables.page_table,
            names.QUERY_STARTS: tables.query_starts,
            names.SLOT_MAPPING: tables.slot_mapping,
            names.KV_LIMITS: tables.kv_limits,
            names.QUERY_INDICES: tables.query_indices,
        }
        if self._weighs:
            weights = tables.mass_weights
            if weights is None:
                weights = np.zeros(len(tables.page_table), np.float32)
            feeds[names.MASS_WEIGHTS] = weights
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime raises a dozen unrelated types here
            raise ExecutorError(f"decoder step failed: {str(error).splitlines()[0]}") from error
        # A copy: the output's memory is ONNX Runtime's and holds the next step's logits soon.
        return np.array(binding.get_outputs()[-1].numpy())

    def take_mass(self, pages: NDArray[np.int32]) -> NDArray[np.float32]:
        """Attention on pages since the last call for them; they start from 0 again."""
        mass: NDArray[np.float32] = self._mass[pages]
        self._mass[pages] = 0
        return mass

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole pages in every pool."""
        for pool in self._pools:
            pool[target] = pool[source]

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
        self._session = None
        for binding in (self._binding, self._query_binding):
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()
        self._pools.clear()


class OrtVision:
    """vision.onnx; see ``VisionExecutor``."""

    def __init__(
        self, path: Path, *, num_threads: int = 0, signature: Signature | None = None
    ) -> None:
        self._session: ort.InferenceSession | None
        self._session, found = _session(path, num_threads, custom_ops=False)
        if signature is not None:
            check_signature(path.name, signature, found)

    def encode(self, pixel_values: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, 3, height, width) -> (n, tokens_per_image, hidden)."""
        if self._session is None:
            raise ExecutorError("the vision executor is closed")
        try:
            outputs = self._session.run([names.IMAGE_EMBEDS], {names.PIXEL_VALUES: pixel_values})
        except Exception as error:  # onnxruntime raises a dozen unrelated types here
            raise ExecutorError(f"vision graph failed: {str(error).splitlines()[0]}") from error
        embeds: NDArray[np.float32] = outputs[0]
        return embeds

    def close(self) -> None:
        """Give the graph back."""
        self._session = None
