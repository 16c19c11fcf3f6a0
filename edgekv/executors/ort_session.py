"""What both ONNX Runtime executors do: open a graph, check it, run steps and pictures.

Owns: session options, the binding of a step, and one-line errors. Guarantees: a graph runs on the
provider that was asked for or not at all; steps of up to the largest token count seen so far take
no more memory. Does not know where pools lie, nor what pages are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgekv import names
from edgekv.errors import ExecutorError
from edgekv.executors.feeds import step_feeds
from edgekv.executors.signature import Signature, Tensors, check_signature
from edgekv.types import StepTables

Providers = Mapping[str, Mapping[str, str]]  # name -> options, in order of preference
CPU: Providers = {"CPUExecutionProvider": {}}

_DTYPE_NAMES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


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

    def __init__(self, session: ort.InferenceSession, *, num_rope_axes: int) -> None:
        self._session: ort.InferenceSession | None = session
        self.binding = session.io_binding()
        self._num_rope_axes = num_rope_axes
        self._page_mass = any(one.name == names.PAGE_MASS for one in session.get_inputs())
        self._num_logits = -1  # rows of the logits that are bound

    def run(
        self,
        embeds: NDArray[np.float32],
        tables: StepTables,
        logit_indices: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """One step; see ``DecoderExecutor.run``. Raises ExecutorError when the graph fails."""
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
            self.binding.bind_cpu_input(name, np.ascontiguousarray(array))
        if len(logit_indices) != self._num_logits:  # bound once it has been run, with its shape
            self.binding.bind_output(names.LOGITS, "cpu")
            self._num_logits = len(logit_indices)
        try:
            self._session.run_with_iobinding(self.binding)
        except Exception as error:  # onnxruntime raises a dozen unrelated types here
            raise ExecutorError(f"decoder step failed: {_reason(error)}") from error
        # A copy: the output's memory is ONNX Runtime's and holds the next step's logits soon.
        return np.array(self.binding.get_outputs()[-1].numpy())

    def close(self) -> None:
        """Give the graph back."""
        self._session = None
        self.binding.clear_binding_inputs()
        self.binding.clear_binding_outputs()


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
