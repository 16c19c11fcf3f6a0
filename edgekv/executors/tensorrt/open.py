"""From a graph file to a running executor: engine, pools, memory.

Owns: the order, and what is put together. Guarantees: what fails leaves nothing taken.
Does not know bundles or sequences, nor how an engine comes to run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.executors.base import EngineSource
from edgekv.executors.cuda import Cuda
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.signature import Signature
from edgekv.executors.tensorrt.cross import TensorRTCross, TensorRTEncoder
from edgekv.executors.tensorrt.decoder import TensorRTDecoder
from edgekv.executors.tensorrt.engine import Running
from edgekv.executors.tensorrt.fixed import FixedEngine
from edgekv.executors.tensorrt.jobs import (
    EngineJob,
    cross_job,
    decoder_job,
    encoder_job,
    vision_job,
)
from edgekv.executors.tensorrt.profiles import StepLimits
from edgekv.executors.tensorrt.vision import TensorRTVision


@dataclass(frozen=True, slots=True)
class Place:
    """Where engines run; exists so that all but TensorRT and the GPU is tested without them."""

    cuda: Callable[[], Cuda]
    run: Callable[[EngineJob, EngineSource, Cuda], Running]


def gpu() -> Place:
    """The first GPU."""
    from edgekv.executors.cuda_driver import CudaDriver
    from edgekv.executors.tensorrt.running import run_engine

    return Place(CudaDriver, run_engine)


def _pools(
    running: Running, cuda: Cuda, geometry: KVGeometry, num_pages: int, *,
    page_mass: bool = False, cross: bool = False,
) -> DevicePools:  # fmt: skip
    """Pools for an engine, which is given back if there is no room for them."""
    try:
        return DevicePools(cuda, geometry, num_pages, page_mass=page_mass, cross=cross)
    except BaseException:
        running.release()
        raise


def open_decoder(
    path: Path,
    geometry: KVGeometry,
    *,
    signature: Signature,
    limits: StepLimits,
    source: EngineSource,
    cross_pools: DevicePools | None = None,
) -> TensorRTDecoder:
    """A decoder with pools of ``limits.num_pages`` pages. Raises ExecutorError, BudgetError."""
    place = gpu()
    cuda, job = place.cuda(), decoder_job(path, signature, limits)
    running = place.run(job, source, cuda)
    page_mass = names.PAGE_MASS in signature.taken
    pools = _pools(running, cuda, geometry, limits.num_pages, page_mass=page_mass)
    return TensorRTDecoder(
        running,
        job.profiles,
        cuda,
        pools,
        cross_pools=cross_pools,
        num_rope_axes=geometry.num_rope_axes,
        vocab_size=_vocab_size(signature),
    )


def _vocab_size(signature: Signature) -> int:
    size = signature.given[names.LOGITS][1][1]
    assert size is not None, "a bundle says how many logits there are"
    return size


def open_vision(path: Path, *, signature: Signature, source: EngineSource) -> TensorRTVision:
    """The vision graph. Raises ExecutorError, BudgetError."""
    return TensorRTVision(_open_fixed("vision", vision_job(path, signature), source))


def open_encoder(path: Path, *, signature: Signature, source: EngineSource) -> TensorRTEncoder:
    """The encoder of what cross-attention sees. Raises ExecutorError, BudgetError."""
    return TensorRTEncoder(_open_fixed("encoder", encoder_job(path, signature), source))


def _open_fixed(name: str, job: EngineJob, source: EngineSource) -> FixedEngine:
    place = gpu()
    cuda = place.cuda()
    return FixedEngine(place.run(job, source, cuda), cuda, job.signature, name=name)


def open_cross(
    path: Path, geometry: KVGeometry, *, num_pages: int, signature: Signature, source: EngineSource
) -> TensorRTCross:
    """What owns and writes cross pools of ``num_pages`` pages. Raises ExecutorError,
    BudgetError."""
    place = gpu()
    cuda = place.cuda()
    job = cross_job(path, signature, num_pages=num_pages, page_size=geometry.page_size)
    running = place.run(job, source, cuda)
    pools = _pools(running, cuda, geometry, num_pages, cross=True)
    engine = FixedEngine(running, cuda, signature, name="cross", pools=pools, reread=True)
    return TensorRTCross(engine, pools)
