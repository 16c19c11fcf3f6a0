"""What both ONNX Runtime executors do: open a graph, check it, run steps and pictures.

Owns: session options, the binding of a step, and one-line errors. Guarantees: a graph runs on the
provider that was asked for or not at all; steps of up to the largest token count seen so far take
no more memory. Does not know where pools lie, nor what pages are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.errors import ExecutorError
from edgekv.executors.feeds import step_feeds
from edgekv.executors.ort_library import ort
from edgekv.executors.signature import Signature, Tensors, check_signature
from edgekv.types import StepTables

Providers = Mapping[str, Mapping[str, str]]  # name -> options, in order of preference
CPU: Providers = {"CPUExecutionProvider": {}}

_DTYPE_NAMES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(int8)": "int8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}

# What the C API calls them: NumPy has no bfloat16.
_ELEMENT_TYPES = {"float32": 1, "int8": 3, "float16": 10, "bfloat16": 16}


def element_type(dtype: str) -> int:
    """ONNX's number of a pool's dtype."""
    return _ELEMENT_TYPES[dtype]


def open_graph(
    path: Path, num_threads: int, *, providers: Providers = CPU, library: Path | None = None
) -> tuple[ort.InferenceSession, Signature]:
    """The graph at ``path`` with the operators of ``library``, and what it takes and gives."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 4  # what goes wrong is raised, in one line
    # Memory patterns are cached per input shape, and every question has another length.
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
    try:
        if library is not None:
            options.register_custom_ops_library(str(library))
        wanted = [(name, dict(settings)) for name, settings in providers.items()]
        session = ort.InferenceSession(str(path), options, providers=wanted)
    except Exception as error:  # onnxruntime raises a dozen unrelated types here
        raise ExecutorError(f"onnxruntime cannot load {path.name}: {_reason(error)}") from error
    first = next(iter(providers))
    if session.get_providers()[0] != first:  # it only warns, and goes on with the next one
        raise ExecutorError(
            f"onnxruntime cannot use {first} here: are its CUDA and cuDNN libraries installed?"
        )
    return session, Signature(_tensors(session.get_inputs()), _tensors(session.get_outputs()))


def _tensors(arguments: list[ort.NodeArg]) -> Tensors:
    return {
        argument.name: (
            _DTYPE_NAMES.get(argument.type, argument.type),
            tuple(size if isinstance(size, int) else None for size in argument.shape),
        )
        for argument in arguments
    }


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class OrtStep:
    """A decoder graph whose pools are bound by its owner."""

    def __init__(
        self,
        session: ort.InferenceSession,
        *,
        num_rope_axes: int,
        placed: Collection[str] = (),  # inputs that its owner binds before each step
    ) -> None:
        self._session: ort.InferenceSession | None = session
        self._binding = session.io_binding()
        self._query_binding = session.io_binding()  # one that asks for queries, not for logits
        self.shows_queries = any(one.name == names.QUERIES for one in session.get_outputs())
        self._num_rope_axes = num_rope_axes
        self._placed = frozenset(placed)
        self._page_mass = any(one.name == names.PAGE_MASS for one in session.get_inputs())
        self._num_logits = -1  # rows of the logits that are bound

    @property
    def bindings(self) -> tuple[ort.IOBinding, ...]:
        """Where inputs and outputs that stay are bound, in each alike."""
        return self._binding, self._query_binding

    def bind_input(self, name: str, value: ort.OrtValue) -> None:
        """Let every step read ``value``."""
        for binding in self.bindings:
            binding.bind_ortvalue_input(name, value)

    def bind_in_place(self, source: str, target: str, value: ort.OrtValue) -> None:
        """Let every step read and write ``value``, the graph's input and output of these names."""
        self.bind_input(source, value)
        for binding in self.bindings:
            binding.bind_ortvalue_output(target, value)

    def run(
        self,
        embeds: NDArray[np.float32],
        tables: StepTables,
        logit_indices: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """One step; see ``DecoderExecutor.run``. Raises ExecutorError when the graph fails."""
        if len(logit_indices) != self._num_logits:  # bound once it has been run, with its shape
            self._binding.bind_output(names.LOGITS, "cpu")
            self._num_logits = len(logit_indices)
        return self._run(self._binding, embeds, tables, logit_indices)

    def queries(self, embeds: NDArray[np.float32], tables: StepTables) -> NDArray[np.float32]:
        """One step for its queries (T, Hq * D); see ``DecoderExecutor.queries``."""
        if not self.shows_queries:
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
        feeds = step_feeds(
            embeds,
            tables,
            logit_indices,
            num_rope_axes=self._num_rope_axes,
            page_mass=self._page_mass,
        )
        for name, array in feeds.items():
            if name not in self._placed:
                binding.bind_cpu_input(name, np.ascontiguousarray(array))
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime raises a dozen unrelated types here
            raise ExecutorError(f"decoder step failed: {_reason(error)}") from error
        # A copy: the output's memory is ONNX Runtime's and holds the next step's soon.
        return np.array(binding.get_outputs()[-1].numpy())

    def close(self) -> None:
        """Give the graph back."""
        self._session = None
        for binding in self.bindings:
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()


class OrtVision:
    """vision.onnx; see ``VisionExecutor``."""

    def __init__(
        self,
        path: Path,
        *,
        num_threads: int = 0,
        signature: Signature | None = None,
        providers: Providers = CPU,
    ) -> None:
        self._session: ort.InferenceSession | None
        self._session, found = open_graph(path, num_threads, providers=providers)
        if signature is not None:
            check_signature(path.name, signature, found)

    def encode(self, pixel_values: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, 3, height, width) -> (n, tokens_per_image, hidden)."""
        if self._session is None:
            raise ExecutorError("the vision executor is closed")
        try:
            outputs = self._session.run([names.IMAGE_EMBEDS], {names.PIXEL_VALUES: pixel_values})
        except Exception as error:  # onnxruntime raises a dozen unrelated types here
            raise ExecutorError(f"vision graph failed: {_reason(error)}") from error
        embeds: NDArray[np.float32] = outputs[0]
        return embeds

    def close(self) -> None:
        """Give the graph back."""
        self._session = None
