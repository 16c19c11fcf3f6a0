"""``edgekv.load``: from a bundle on disk to a model that runs.

Owns: the order in which things are checked and taken. Guarantees: what does not fit is refused
before anything is taken, and what was taken before a later step failed is given back. Does not know
frames, prompts or retention.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from edgekv.bundle import Bundle
from edgekv.cache import CrossCache, PageCache
from edgekv.checks import optional_path, path_of, refuse, switch, whole
from edgekv.config import KVDtype, parse_bytes
from edgekv.estimate import DEFAULT_ENCODER_CACHE_BYTES, Estimate, check_memory, estimate
from edgekv.executors import (
    Device,
    EngineSource,
    Progress,
    VisionExecutor,
    choose_device,
    create_decoder,
    create_vision,
    decoder_signature,
    vision_signature,
)
from edgekv.executors.signature import Signature
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder, model_identity
from edgekv.model import Model
from edgekv.sources import create_cross_executor, load_sources
from edgekv.trace.log_file import DEFAULT_MAX_BYTES

MAX_THREADS = 1024


def load(
    path: str | Path,
    *,
    kv_budget: str | int = "64MiB",
    kv_dtype: KVDtype | None = None,
    cross_budget: str | int | None = None,
    device: str = "auto",
    num_threads: int = 0,
    share: bool = True,
    encoder_cache: str | int = DEFAULT_ENCODER_CACHE_BYTES,
    max_step_tokens: int = 256,
    engine_cache: str | Path | None = None,
    progress: Progress | None = None,
    trace: str | Path | None = None,
    trace_limit: str | int = DEFAULT_MAX_BYTES,
) -> Model:
    """Open a bundle and take its memory.

    ``kv_budget`` is the bytes of the KV pool (``"64MiB"`` or a number); the pool never grows.
    ``kv_dtype`` is what cached keys and values are stored as: ``float32``, ``float16``,
    ``bfloat16``, or ``int8`` with a scale for each token and head, about half of ``float16``;
    None = what the bundle was exported for.
    ``share`` lets sessions that began alike hold what they have in common once (docs/identity.md).
    ``encoder_cache`` is the bytes kept of what the vision graph gave for the latest pictures, so
    that a picture that comes again is not encoded again; 0 keeps none.
    ``cross_budget`` is the bytes of the pools that cross-attention reads, for models that have it;
    None = four inputs.
    ``device`` is ``auto``, ``cpu``, ``cuda`` or ``tensorrt``; ``num_threads`` 0 = one per core.
    ``max_step_tokens`` is the largest prefill chunk: more is faster, and takes more workspace.
    ``engine_cache`` is where TensorRT's engines are kept (None: ``edgekv/engines`` in the user's
    cache folder); ``progress`` is told how far one is that has to be built, which takes minutes:
    its graph, what is being done, the share that is. What it raises ends the loading.
    ``trace`` is a file for the event log of the cache, as ``Model.trace`` writes it.
    Raises BundleError, BudgetError, ExecutorError, TraceError, or ValueError for an argument that
    is wrong.
    """
    path, trace = path_of(path, "path"), optional_path(trace, "trace")
    engine_cache = optional_path(engine_cache, "engine_cache")
    kv_budget = parse_bytes(kv_budget, "kv_budget")
    encoder_cache_bytes = parse_bytes(encoder_cache, "encoder_cache", least=0)
    trace_limit = parse_bytes(trace_limit, "trace_limit")
    if cross_budget is not None:
        cross_budget = parse_bytes(cross_budget, "cross_budget")
    num_threads = whole(num_threads, "num_threads", least=0, most=MAX_THREADS)
    max_step_tokens = whole(max_step_tokens, "max_step_tokens", least=1)
    share = switch(share, "share")
    if progress is not None and not callable(progress):
        refuse("progress", "be a function or None", progress)
    chosen = choose_device(device)
    bundle = Bundle.open(path)
    need = estimate(
        bundle,
        kv_budget,
        kv_dtype,
        cross_budget=cross_budget,
        encoder_cache_bytes=encoder_cache_bytes,
    )
    check_memory(bundle, need)
    engines = _engine_source(bundle, engine_cache, progress)
    with ExitStack() as on_failure:
        runner = _create_runner(
            bundle, chosen, need, engines, kv_dtype, num_threads, max_step_tokens, share=share
        )
        on_failure.callback(runner.shut_down)
        inputs = _create_inputs(bundle, chosen, runner, engines, num_threads, encoder_cache_bytes)
        on_failure.callback(inputs.close)
        model = Model(bundle, chosen, runner, inputs)
        if trace is not None:
            model.trace(trace, limit=trace_limit)
        on_failure.pop_all()
    return model


def _create_runner(
    bundle: Bundle,
    device: Device,
    need: Estimate,
    engines: EngineSource,
    kv_dtype: KVDtype | None,
    num_threads: int,
    max_step_tokens: int,
    *,
    share: bool,
) -> Runner:
    """The cache, the decoder with the cache's pools, and the pools that cross-attention reads."""
    cache = _make_cache(bundle, need, kv_dtype, share=share)
    with ExitStack() as on_failure:
        cross = create_cross_executor(
            bundle,
            device,
            kv_dtype,
            num_pages=need.num_cross_pages,
            num_threads=num_threads,
            engines=engines,
        )
        if cross is not None:
            on_failure.callback(cross.close)
        decoder = create_decoder(
            device,
            bundle.decoder_path_for(kv_dtype),
            cache.geometry,
            num_pages=need.num_pages,
            num_threads=num_threads,
            max_columns=cache.max_pages,
            max_step_tokens=max_step_tokens,
            engines=engines,
            signature=_decoder_signature(bundle, kv_dtype),
            cross=cross,
        )
        on_failure.pop_all()
    return Runner(decoder, cache, cross=cross, max_step_tokens=max_step_tokens)


def _create_inputs(
    bundle: Bundle,
    device: Device,
    runner: Runner,
    engines: EngineSource,
    num_threads: int,
    encoder_cache_bytes: int,
) -> InputEncoder:
    """What turns frames and text into rows for the decoder."""
    with ExitStack() as on_failure:
        vision = _load_vision(bundle, device, num_threads, engines)
        if vision is not None:
            on_failure.callback(vision.close)
        sources = load_sources(bundle, device, runner, num_threads, engines)
        if sources is not None:
            on_failure.callback(sources.close)
        inputs = InputEncoder(bundle, vision, sources, encoder_cache_bytes=encoder_cache_bytes)
        on_failure.pop_all()
    return inputs


def _make_cache(
    bundle: Bundle, need: Estimate, kv_dtype: KVDtype | None, *, share: bool
) -> PageCache:
    geometry, cross_geometry = bundle.geometry_for(kv_dtype), bundle.cross_geometry_for(kv_dtype)
    max_tokens = bundle.manifest.max_context_tokens
    return PageCache(
        geometry,
        need.num_pages,
        max_pages=max_tokens,  # one token a page at worst
        max_positions=max_tokens,
        shiftable=bundle.manifest.shiftable,
        identity=repr(model_identity(bundle, geometry)).encode(),
        share=share,
        cross=None if cross_geometry is None else CrossCache(cross_geometry, need.num_cross_pages),
    )


def _decoder_signature(bundle: Bundle, kv_dtype: KVDtype | None) -> Signature:
    return decoder_signature(
        bundle.geometry_for(kv_dtype),
        hidden_size=bundle.manifest.hidden_size,
        vocab_size=bundle.manifest.vocab_size,
        page_mass=bundle.manifest.mass_layer is not None,
        cross=bundle.cross_geometry_for(kv_dtype),
    )


def _engine_source(bundle: Bundle, folder: Path | None, progress: Progress | None) -> EngineSource:
    if folder is None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(caches, "edgekv", "engines")
    manifest = bundle.manifest
    return EngineSource(folder, manifest.name, bundle.weights_sha256, manifest.weights, progress)


def _load_vision(
    bundle: Bundle, device: Device, num_threads: int, engines: EngineSource
) -> VisionExecutor | None:
    if bundle.vision_path is None or bundle.image is None:
        return None
    signature = vision_signature(
        height=bundle.image.height,
        width=bundle.image.width,
        tokens_per_image=bundle.tokens_per_image,
        hidden_size=bundle.manifest.hidden_size,
    )
    return create_vision(
        device, bundle.vision_path, num_threads=num_threads, signature=signature, engines=engines
    )
