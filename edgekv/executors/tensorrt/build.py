"""From an ONNX graph to a serialised engine.

Owns: the parser, the builder and their settings. Guarantees: what TensorRT refuses comes out as one
line that names the node. Needs no GPU for parsing. Does not know pools, steps or caches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tensorrt as trt

from edgekv.errors import ExecutorError
from edgekv.executors.signature import Signature, check_signature
from edgekv.executors.tensorrt.engine_cache import Engine
from edgekv.executors.tensorrt.precision import let_decompose, use_half
from edgekv.executors.tensorrt.profiles import Profile
from edgekv.names import OP_NAME

PhaseReport = Callable[[str, float], None]  # what is being done, and the share that is

log = logging.getLogger(__name__)


class Log(trt.ILogger):
    """TensorRT's messages in Python's log; the first error of a call is kept for its exception."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._error = ""

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT, from any thread."""
        if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
            self._error = self._error or " ".join(msg.split())[:400]
        elif severity == trt.ILogger.Severity.WARNING:
            log.debug("TensorRT: %s", msg)

    def take_error(self) -> str:
        """The first error since the last call."""
        error, self._error = self._error, ""
        return error or "TensorRT gave no reason"


class _Monitor(trt.IProgressMonitor):
    """Hands the builder's outermost phases to a function. What that raises may not pass through
    TensorRT: it is kept, and the build ends."""

    def __init__(self, report: PhaseReport) -> None:
        trt.IProgressMonitor.__init__(self)
        self._report = report
        self.error: BaseException | None = None
        self._steps: dict[str, int] = {}

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        if parent_phase is None or parent_phase in self._steps:
            self._steps[phase_name] = max(num_steps, 1)
            self._tell(phase_name, 0.0)

    def step_complete(self, phase_name: str, step: int) -> bool:
        if phase_name in self._steps:
            self._tell(phase_name, min((step + 1) / self._steps[phase_name], 1.0))
        return self.error is None

    def phase_finish(self, phase_name: str) -> None:
        if self._steps.pop(phase_name, None) is not None:
            self._tell(phase_name, 1.0)

    def _tell(self, phase_name: str, share: float) -> None:
        if self.error is None:
            try:
                self._report(phase_name, share)
            except BaseException as error:
                self.error = error


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What does not change what an engine computes."""

    weights: Literal["fp32", "fp16", "int4"] = "fp32"  # of the bundle; not fp32: half products
    workspace_bytes: int = 256 * 2**20  # scratch of one layer at most


def load_plugins(libraries: Sequence[Path], logger: Log) -> None:
    """Make the operators of plugin libraries known. Raises ExecutorError."""
    registry = trt.get_plugin_registry()
    for library in libraries:
        if registry.load_library(str(library)) is None:
            raise ExecutorError(f"TensorRT cannot load {library}: {logger.take_error()}")


def create_network(builder: trt.Builder) -> trt.INetworkDefinition:
    """A network whose tensors have the types that the graph gives them: what TensorRT 11 does
    without being told, and what int8 and bfloat16 pools need."""
    return builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))


def build_engine(
    graph: Path,
    profiles: Sequence[Profile],
    signature: Signature,
    options: BuildOptions,
    *,
    logger: Log,
    progress: PhaseReport | None = None,
) -> Engine:
    """Parse ``graph``, check that it is what ``signature`` says, build. Raises ExecutorError, and
    what ``progress`` raises."""
    builder = trt.Builder(logger)
    network = create_network(builder)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        raise ExecutorError(f"TensorRT cannot read {graph.name}: {_first_refusal(parser)}")
    check_signature(graph.name, signature, network_signature(network))
    let_decompose(network)
    if options.weights != "fp32":
        log.debug("%s: half precision in %d nodes", graph.name, use_half(network))
    config = _config(builder, options)
    for profile in profiles:
        config.add_optimization_profile(_trt_profile(builder, profile))
    monitor = None if progress is None else _Monitor(progress)
    if monitor is not None:
        config.progress_monitor = monitor
    engine = builder.build_serialized_network(network, config)
    if monitor is not None and monitor.error is not None:
        raise monitor.error
    if engine is None:
        raise ExecutorError(f"TensorRT cannot build {graph.name}: {logger.take_error()}")
    return memoryview(engine)


def _first_refusal(parser: trt.OnnxParser) -> str:
    if not parser.num_errors:
        return "the parser gave no reason"
    error = parser.get_error(0)
    operator, reason = error.node_operator(), " ".join(error.desc().split())[:300]
    if not operator:
        return reason
    advice = "" if operator == OP_NAME else "; try a bundle exported with --opset 20"
    return f"node {error.node_name()} ({operator}): {reason}{advice}"


def _config(builder: trt.Builder, options: BuildOptions) -> trt.IBuilderConfig:
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    return config


def _trt_profile(builder: trt.Builder, profile: Profile) -> trt.IOptimizationProfile:
    made = builder.create_optimization_profile()
    for name, shapes in profile.ranges.items():
        least, usual, most = (trt.Dims(list(dims)) for dims in shapes.all)
        made.set_shape(name, least, usual, most)
    return made


def network_signature(network: trt.INetworkDefinition) -> Signature:
    """What a parsed graph takes and gives."""
    inputs = (network.get_input(index) for index in range(network.num_inputs))
    outputs = (network.get_output(index) for index in range(network.num_outputs))
    return Signature(
        *(
            {tensor.name: (_dtype(tensor.dtype), _dims(tensor.shape)) for tensor in tensors}
            for tensors in (inputs, outputs)
        )
    )


def _dtype(dtype: trt.DataType) -> str:
    names = {
        trt.DataType.FLOAT: "float32",
        trt.DataType.HALF: "float16",
        trt.DataType.BF16: "bfloat16",
        trt.DataType.INT8: "int8",
        trt.DataType.INT32: "int32",
        trt.DataType.INT64: "int64",
    }
    return names.get(dtype, str(dtype))


def _dims(shape: trt.Dims) -> tuple[int | None, ...]:
    sizes = (shape[axis] for axis in range(len(shape)))
    return tuple(None if size < 0 else size for size in sizes)
