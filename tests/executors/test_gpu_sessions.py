"""Whole sessions on the executors for GPUs, over a GPU made of host memory: frames, evictions,
forks, rules that read pages, saving. Everything a session on the CPU says, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv import native
from edgekv.bundle import Bundle
from edgekv.cache import PageCache
from edgekv.config import KVDtype
from edgekv.executors.base import DecoderExecutor, VisionExecutor
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.ort_cpu import OrtDecoder, OrtVision
from edgekv.executors.ort_cuda import OrtCudaDecoder, Place
from edgekv.executors.ort_session import CPU
from edgekv.executors.signature import Signature, decoder_signature, vision_signature
from edgekv.executors.tensorrt.decoder import TensorRTDecoder
from edgekv.executors.tensorrt.fixed import FixedEngine
from edgekv.executors.tensorrt.jobs import decoder_job, vision_job
from edgekv.executors.tensorrt.profiles import StepLimits
from edgekv.executors.tensorrt.vision import TensorRTVision
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder, model_identity
from tests.executors.host_cuda import HostCuda, HostRunning

NUM_PAGES = 22  # full after some ten frames
Executors = tuple[DecoderExecutor, VisionExecutor]
Make = Callable[[Bundle, KVDtype], Executors]


def on_tensorrt(bundle: Bundle, kv_dtype: KVDtype) -> Executors:
    cuda, manifest = HostCuda(integrated=True), bundle.manifest
    path, geometry = bundle.decoder_path_for(kv_dtype), bundle.geometry_for(kv_dtype)
    signature = decoder_signature(
        geometry,
        hidden_size=manifest.hidden_size,
        vocab_size=manifest.vocab_size,
        page_mass=True,
    )
    job = decoder_job(path, signature, StepLimits(NUM_PAGES, geometry.page_size, NUM_PAGES))
    decoder = TensorRTDecoder(
        HostRunning(job, cuda),
        job.profiles,
        cuda,
        DevicePools(cuda, geometry, NUM_PAGES, page_mass=True),
        num_rope_axes=geometry.num_rope_axes,
        vocab_size=manifest.vocab_size,
    )
    seen = vision_job(bundle.path / "vision.onnx", _vision_signature(bundle))
    engine = FixedEngine(HostRunning(seen, cuda), cuda, seen.signature, name="vision")
    return decoder, TensorRTVision(engine)


def _vision_signature(bundle: Bundle) -> Signature:
    return vision_signature(
        height=64,
        width=64,
        tokens_per_image=bundle.tokens_per_image,
        hidden_size=bundle.manifest.hidden_size,
    )


def on_ort_cuda(bundle: Bundle, kv_dtype: KVDtype) -> Executors:
    place = Place(CPU, "cpu", native.ort_library_path, HostCuda)
    path, geometry = bundle.decoder_path_for(kv_dtype), bundle.geometry_for(kv_dtype)
    decoder = OrtCudaDecoder(path, geometry, num_pages=NUM_PAGES, place=place)
    return decoder, OrtVision(bundle.path / "vision.onnx", num_threads=1)


def on_cpu(bundle: Bundle, kv_dtype: KVDtype) -> Executors:
    path, geometry = bundle.decoder_path_for(kv_dtype), bundle.geometry_for(kv_dtype)
    return OrtDecoder(path, geometry, num_pages=NUM_PAGES, num_threads=1), OrtVision(
        bundle.path / "vision.onnx", num_threads=1
    )


def model_of(bundle: Bundle, kv_dtype: KVDtype, make: Make) -> edgekv.Model:
    manifest, geometry, executors = (
        bundle.manifest,
        bundle.geometry_for(kv_dtype),
        make(bundle, kv_dtype),
    )
    cache = PageCache(
        geometry,
        NUM_PAGES,
        max_pages=manifest.max_context_tokens,
        max_positions=manifest.max_context_tokens,
        identity=repr(model_identity(bundle, geometry)).encode(),
    )
    runner = Runner(executors[0], cache)
    return edgekv.Model(bundle, "cpu", runner, InputEncoder(bundle, executors[1]))


def life(model: edgekv.Model, retain: str, file: Path) -> list[NDArray[np.float32] | str]:
    """What a session says in the course of some frames."""
    said: list[NDArray[np.float32] | str] = []
    options = edgekv.SamplingOptions(max_new_tokens=4)
    session = model.session(instructions="You watch.", retain=retain)
    rng = np.random.default_rng(3)
    for k in range(20):
        session.push(rng.integers(0, 256, (50, 70, 3), np.uint8), time_s=float(k))
        if k % 7 == 5:
            said.append(session.ask("What do you see?", options).text)
            said.append(session.logits("And now?"))
        if k == 14:
            session.save(file)
            session.close()
            session = model.restore(file)
    said.append(str(session.stats().num_evicted_frames))
    session.close()
    return said


@pytest.mark.parametrize(
    ("kv_dtype", "retain"),
    [("float16", "window"), ("float16", "novelty"), ("int8", "novelty"), ("bfloat16", "novelty")],
)
@pytest.mark.parametrize("make", [on_tensorrt, on_ort_cuda])
def test_a_session_says_the_same_as_on_the_cpu(
    bundle_path: Path, tmp_path: Path, make: Make, kv_dtype: KVDtype, retain: str
) -> None:
    bundle = Bundle.open(bundle_path)
    with model_of(bundle, kv_dtype, make) as model:
        ours = life(model, retain, tmp_path / "a")
    with model_of(bundle, kv_dtype, on_cpu) as model:
        theirs = life(model, retain, tmp_path / "b")
    assert len(ours) == len(theirs) == 7
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert int(str(ours[-1])) > 5
