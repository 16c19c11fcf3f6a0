"""From a graph file to a running executor: plugin, engine, contexts, memory.

Owns: the order, and the check that a build fits before it starts. Guarantees: what fails leaves
nothing taken. The only part of the executor that needs a GPU to be run at all; what it puts
together is tested piece by piece. Does not know bundles or sequences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tensorrt as trt

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.base import EngineSource
from edgekv.executors.cuda import Block, Cuda
from edgekv.executors.cuda_driver import CudaDriver
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.signature import Signature
from edgekv.executors.tensorrt.build import (
    BuildOptions,
    Log,
    build_engine,
    load_plugins,
)
from edgekv.executors.tensorrt.decoder import TensorRTDecoder
from edgekv.executors.tensorrt.engine_cache import Engine, EngineKey, cached_engine
from edgekv.executors.tensorrt.memory import check_build, graph_bytes
from edgekv.executors.tensorrt.profiles import (
    Profile,
    StepLimits,
    decoder_profiles,
    vision_profile,
)
from edgekv.executors.tensorrt.vision import TensorRTVision
from edgekv.native import tensorrt_plugin_path


@dataclass(frozen=True, slots=True)
class EngineJob:
    """One graph, and what its engine shall take."""

    graph: Path
    signature: Signature
    profiles: tuple[Profile, ...]
    plugins: tuple[Path, ...] = ()


def decoder_job(path: Path, signature: Signature, limits: StepLimits) -> EngineJob:
    """The decoder's engine. Raises ExecutorError when the plugin is not built."""
    profiles = decoder_profiles(signature, limits)
    return EngineJob(path, signature, profiles, (tensorrt_plugin_path(),))


def vision_job(path: Path, signature: Signature) -> EngineJob:
    """The vision graph's engine."""
    return EngineJob(path, signature, (vision_profile(signature),))


def provide_engine(job: EngineJob, source: EngineSource, cuda: Cuda) -> Engine:
    """The engine of a job, from the cache or built now. Raises ExecutorError, BudgetError."""
    logger = Log()
    load_plugins(job.plugins, logger)
    plugins = b"".join(path.read_bytes() for path in job.plugins)
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


class _Running:
    """A deserialised engine, one context per profile, and the activation memory they share.

    The memory is ours because contexts change shapes between launches of graphs that were recorded
    from them: TensorRT allows that only for memory that it does not manage.
    """

    def __init__(self, engine: Engine, cuda: Cuda) -> None:
        self.log = Log()
        self._runtime = trt.Runtime(self.log)
        loaded = self._runtime.deserialize_cuda_engine(engine)
        if loaded is None:
            raise ExecutorError(f"TensorRT cannot load the engine: {self.log.take_error()}")
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
            raise ExecutorError(f"TensorRT gives no context: {self.log.take_error()}")
        context.set_device_memory(self._activations.address, self._activations.num_bytes)
        if not context.set_optimization_profile_async(index, cuda.stream):
            raise ExecutorError(f"TensorRT: profile {index}: {self.log.take_error()}")
        cuda.synchronise()
        return context

    @property
    def query_size(self) -> int:
        """Hq * D of the layer whose queries the engine shows, 0 = it shows none."""
        engine = self._engine
        if names.QUERIES not in map(engine.get_tensor_name, range(engine.num_io_tensors)):
            return 0
        return int(engine.get_tensor_shape(names.QUERIES)[1])

    def release(self) -> None:
        """Give contexts, engine and activations back."""
        self.contexts.clear()
        self._activations.free()
        del self._engine, self._runtime


def open_decoder(
    path: Path,
    geometry: KVGeometry,
    *,
    signature: Signature,
    limits: StepLimits,
    source: EngineSource,
    make_cuda: Callable[[], Cuda] = CudaDriver,
) -> TensorRTDecoder:
    """A decoder with pools of ``limits.num_pages`` pages. Raises ExecutorError, BudgetError."""
    cuda = make_cuda()
    job = decoder_job(path, signature, limits)
    running = _Running(provide_engine(job, source, cuda), cuda)
    try:
        pools = DevicePools(
            cuda, geometry, limits.num_pages, page_mass=names.PAGE_MASS in signature.taken
        )
    except BaseException:
        running.release()
        raise
    decode, prefill = running.contexts
    return TensorRTDecoder(
        (decode, prefill),
        decoder_profiles(signature, limits),
        cuda,
        pools,
        num_rope_axes=geometry.num_rope_axes,
        vocab_size=_vocab_size(signature),
        query_size=running.query_size,
        take_error=running.log.take_error,
        release=running.release,
    )


def _vocab_size(signature: Signature) -> int:
    size = signature.given[names.LOGITS][1][1]
    assert size is not None, "a bundle says how many logits there are"
    return size


def open_vision(
    path: Path,
    *,
    signature: Signature,
    source: EngineSource,
    make_cuda: Callable[[], Cuda] = CudaDriver,
) -> TensorRTVision:
    """The vision graph. Raises ExecutorError, BudgetError."""
    cuda = make_cuda()
    running = _Running(provide_engine(vision_job(path, signature), source, cuda), cuda)
    (context,) = running.contexts
    picture = signature.taken[names.PIXEL_VALUES][1]
    embeds = signature.given[names.IMAGE_EMBEDS][1]
    return TensorRTVision(
        context,
        cuda,
        picture=(1, *(size for size in picture[1:] if size is not None)),
        embeds=(1, *(size for size in embeds[1:] if size is not None)),
        take_error=running.log.take_error,
        release=running.release,
    )
