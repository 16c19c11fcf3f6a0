"""An engine found or built, and on the GPU: contexts and the memory they compute in.

Owns: the check that a build fits before it starts, the plugin's loading, TensorRT's objects while
they run. Guarantees: what fails leaves nothing taken. The only part of the executor that needs a
GPU to be run at all. Does not know bundles, pools or steps.
"""

from __future__ import annotations

import hashlib

import tensorrt as trt

from edgekv import names
from edgekv.errors import ExecutorError
from edgekv.executors.base import EngineSource
from edgekv.executors.cuda import Block, Cuda
from edgekv.executors.tensorrt.build import BuildOptions, Log, build_engine, load_plugins
from edgekv.executors.tensorrt.engine_cache import Engine, EngineKey, cached_engine
from edgekv.executors.tensorrt.jobs import EngineJob
from edgekv.executors.tensorrt.memory import check_build, graph_bytes
from edgekv.native import tensorrt_plugin_path


def provide_engine(job: EngineJob, source: EngineSource, cuda: Cuda) -> Engine:
    """The engine of a job, from the cache or built now. Raises ExecutorError, BudgetError."""
    logger = Log()
    libraries = (tensorrt_plugin_path(),) if job.has_operator else ()
    load_plugins(libraries, logger)
    plugins = b"".join(path.read_bytes() for path in libraries)
    key = EngineKey(
        bundle=source.bundle,
        bundle_sha256=source.sha256,
        graph=job.graph.name,
        tensorrt=trt.__version__,
        device=cuda.info.name,
        compute_capability=cuda.info.compute_capability,
        plugin_sha256=hashlib.sha256(plugins).hexdigest() if plugins else "",
        profiles=job.profiles,
    )

    def build() -> Engine:
        check_build(job.graph.name, graph_bytes(job.graph), cuda.free_bytes())
        report, name = source.progress, job.graph.name
        return build_engine(
            job.graph,
            job.profiles,
            job.signature,
            BuildOptions(weights=source.weights),
            logger=logger,
            progress=report and (lambda phase, share: report(name, phase, share)),
        )

    return cached_engine(source.folder, key, build)


class RunningEngine:
    """A deserialised engine, one context per profile, and the activation memory they share.

    The memory is ours because contexts change shapes between launches of graphs that were recorded
    from them: TensorRT allows that only for memory that it does not manage.
    """

    def __init__(self, engine: Engine, cuda: Cuda) -> None:
        self._log = Log()
        self._runtime = trt.Runtime(self._log)
        loaded = self._runtime.deserialize_cuda_engine(engine)
        if loaded is None:
            raise ExecutorError(f"TensorRT cannot load the engine: {self._log.take_error()}")
        self._engine = loaded
        self.contexts: list[trt.IExecutionContext] = []
        self._activations: Block = cuda.allocate(max(loaded.device_memory_size_v2, 1), "device")
        try:
            for index in range(loaded.num_optimization_profiles):
                self.contexts.append(self._context(index, cuda))
        except BaseException:
            self.release()
            raise

    def _context(self, index: int, cuda: Cuda) -> trt.IExecutionContext:
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine.create_execution_context(strategy)
        if context is None:
            raise ExecutorError(f"TensorRT gives no context: {self._log.take_error()}")
        context.set_device_memory(self._activations.address, self._activations.num_bytes)
        if not context.set_optimization_profile_async(index, cuda.stream):
            raise ExecutorError(f"TensorRT: profile {index}: {self._log.take_error()}")
        cuda.synchronise()
        return context

    @property
    def query_size(self) -> int:
        """Hq * D of the layer whose queries the engine shows, 0 = it shows none."""
        engine = self._engine
        if names.QUERIES not in map(engine.get_tensor_name, range(engine.num_io_tensors)):
            return 0
        return int(engine.get_tensor_shape(names.QUERIES)[1])

    def take_error(self) -> str:
        """What TensorRT said went wrong since the last call."""
        return self._log.take_error()

    def release(self) -> None:
        """Give contexts, engine and activations back."""
        self.contexts.clear()
        self._activations.free()
        del self._engine, self._runtime


def run_engine(job: EngineJob, source: EngineSource, cuda: Cuda) -> RunningEngine:
    """The engine of a job, running. Raises ExecutorError, BudgetError."""
    return RunningEngine(provide_engine(job, source, cuda), cuda)
