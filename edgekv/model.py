"""An opened bundle, ready to run: ``edgekv.load`` makes it, sessions come from it.

Owns: the executors, the size of the pool, and the check that everything fits before anything is
taken. Does not know frames, prompts or retention; that is what sessions are for.
"""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from edgekv.bundle import Bundle
from edgekv.cache import (
    CacheCounters,
    CrossCache,
    CrossCounts,
    IndexCounts,
    PageCache,
    PageCounts,
    Sequence,
)
from edgekv.cache.retention import retention_rule
from edgekv.config import KVDtype, KVGeometry, format_bytes, parse_bytes
from edgekv.encoder_cache import EncoderCacheStats
from edgekv.errors import BudgetError
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
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder, model_identity
from edgekv.limits import num_frames
from edgekv.media.stillness import StillnessGate
from edgekv.memory import available_bytes
from edgekv.saving import restore_context
from edgekv.session import Session
from edgekv.sharing import Member
from edgekv.sources import create_cross_executor, cross_pages, load_sources
from edgekv.tier.codec import TierFormat, checked_format
from edgekv.tier.store import TierPlan, TierRecord
from edgekv.tiering import SessionTier, TierRequest, plan_tier, reopen_tier
from edgekv.trace.writer import DEFAULT_MAX_BYTES, TraceWriter

# Activations of one prefill chunk and the graph's own bookkeeping, on top of weights and pool.
WORKSPACE_BYTES = 64 * 2**20
DEFAULT_ENCODER_CACHE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory a bundle takes when loaded, in bytes."""

    num_pages: int
    weight_bytes: int
    pool_bytes: int
    workspace_bytes: int
    num_cross_pages: int  # 0 for a model without cross-attention
    cross_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weight_bytes + self.pool_bytes + self.cross_bytes + self.workspace_bytes


def estimate(
    bundle: Bundle,
    kv_budget: str | int,
    kv_dtype: KVDtype | None = None,
    *,
    cross_budget: str | int | None = None,
) -> Estimate:
    """What loading ``bundle`` takes. Raises BudgetError for a budget of less than a page, or of
    less than two inputs of cross-attention."""
    page_bytes = bundle.geometry_for(kv_dtype).page_bytes
    budget = parse_bytes(kv_budget)
    num_pages = budget // page_bytes
    if num_pages < 1:
        raise BudgetError(
            f"a KV budget of {format_bytes(budget)} holds no page of {bundle.manifest.name}: "
            f"one page takes {format_bytes(page_bytes)}"
        )
    weights = sum(entry.size_bytes for entry in bundle.manifest.files.values())
    num_cross, cross_bytes = cross_pages(bundle, cross_budget, kv_dtype)
    return Estimate(
        num_pages, weights, num_pages * page_bytes, WORKSPACE_BYTES, num_cross, cross_bytes
    )


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
    ``kv_dtype`` is ``float16`` or ``float32``; None = what the bundle was exported for.
    ``share`` lets sessions that began alike hold what they have in common once (docs/identity.md).
    ``encoder_cache`` is the bytes kept of what the vision graph gave for the latest pictures, so
    that a picture that comes again is not encoded again; 0 keeps none.
    ``cross_budget`` is the bytes of the pools that cross-attention reads, for models that have it;
    None = four inputs.
    ``device`` is ``auto``, ``cpu``, ``cuda`` or ``tensorrt``; ``num_threads`` 0 = one per core.
    ``max_step_tokens`` is the largest prefill chunk: more is faster, and takes more workspace.
    ``engine_cache`` is where TensorRT's engines are kept (None: ``edgekv/engines`` in the user's
    cache folder); ``progress`` is told how far one is that has to be built, which takes minutes:
    its graph, what is being done, the share that is.
    ``trace`` is a file for the event log of the cache, as ``Model.trace`` writes it.
    Raises BundleError, BudgetError, ExecutorError, TraceError, or ValueError for an argument that
    is wrong.
    """
    chosen = choose_device(device)
    bundle = Bundle.open(path)
    if device == "auto" and bundle.cross is not None:
        chosen = choose_device("cpu")  # the only one with executors for cross-attention
    geometry = bundle.geometry_for(kv_dtype)
    encoder_cache_bytes = 0 if encoder_cache == 0 else parse_bytes(encoder_cache)
    need = estimate(bundle, kv_budget, kv_dtype, cross_budget=cross_budget)
    _check_memory(bundle, need, encoder_cache_bytes)
    manifest = bundle.manifest
    cross_geometry = bundle.cross_geometry_for(kv_dtype)
    cross = create_cross_executor(
        bundle, chosen, kv_dtype, num_pages=need.num_cross_pages, num_threads=num_threads
    )
    cache = PageCache(
        geometry,
        need.num_pages,
        max_pages=manifest.max_context_tokens,  # one token a page at worst
        max_positions=manifest.max_context_tokens,
        shiftable=manifest.shiftable,
        identity=repr(model_identity(bundle, geometry)).encode(),
        share=share,
        cross=None if cross_geometry is None else CrossCache(cross_geometry, need.num_cross_pages),
    )
    engines = _engine_source(bundle, engine_cache, progress)
    decoder = create_decoder(
        chosen,
        bundle.decoder_path_for(kv_dtype),
        geometry,
        num_pages=need.num_pages,
        num_threads=num_threads,
        max_columns=cache.max_pages,
        max_step_tokens=max_step_tokens,
        engines=engines,
        signature=decoder_signature(
            geometry,
            hidden_size=manifest.hidden_size,
            vocab_size=manifest.vocab_size,
            page_mass=manifest.mass_layer is not None,
            cross=cross_geometry,
        ),
        cross=cross,
    )
    try:
        vision = _load_vision(bundle, chosen, num_threads, engines)
    except BaseException:
        decoder.close()
        raise
    runner = Runner(decoder, cache, cross=cross, max_step_tokens=max_step_tokens)
    sources = load_sources(bundle, chosen, runner, num_threads)
    inputs = InputEncoder(bundle, vision, sources, encoder_cache_bytes=encoder_cache_bytes)
    model = Model(bundle, chosen, runner, inputs)
    if trace is not None:
        try:
            model.trace(trace, limit=trace_limit)
        except BaseException:
            model.close()
            raise
    return model


def _engine_source(
    bundle: Bundle, folder: str | Path | None, progress: Progress | None
) -> EngineSource:
    if folder is None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(caches, "edgekv", "engines")
    manifest = bundle.manifest
    return EngineSource(
        Path(folder), manifest.name, bundle.weights_sha256, manifest.weights, progress
    )


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


def _check_memory(bundle: Bundle, need: Estimate, encoder_cache_bytes: int) -> None:
    """Refuse before taking anything when model, pool, workspace and the cache of encoder outputs
    exceed what is available."""
    available = available_bytes()
    total = need.total_bytes + encoder_cache_bytes
    if available is None or total <= available:
        return
    fixed = total - need.pool_bytes
    room = available - fixed
    advice = (
        f"a KV budget of {format_bytes(room)} would fit"
        if room >= bundle.geometry.page_bytes
        else "this model does not fit at all"
    )
    raise BudgetError(
        f"{bundle.manifest.name} needs {format_bytes(total)} ({format_bytes(fixed)} "
        f"model and workspace, {format_bytes(need.pool_bytes)} KV), {format_bytes(available)} are "
        f"available: {advice}"
    )


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """One open session, of the same moment as the model."""

    number: int  # among all sessions since the model was loaded
    num_context_frames: int
    num_tokens: int
    num_pages: int  # shared ones included
    num_frames: int  # pushed since the session began
    num_evicted_frames: int
    num_questions: int


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """What a monitor reads, all of one moment."""

    name: str
    geometry: KVGeometry
    counts: PageCounts
    counters: CacheCounters  # a copy
    shared: IndexCounts
    encoder_cache: EncoderCacheStats
    cross: CrossCounts | None  # None for a model without cross-attention
    sessions: tuple[SessionFigures, ...]  # open ones


def _session_figures(member: Member) -> SessionFigures:
    return SessionFigures(
        number=member.number,
        num_context_frames=num_frames(member.sequence),
        num_tokens=member.sequence.num_tokens,
        num_pages=member.sequence.num_pages,
        num_frames=member.record.num_frames,
        num_evicted_frames=member.record.num_evicted_frames,
        num_questions=member.record.num_questions,
    )


class Model:
    """A bundle with its executors and its one pool, shared by all its sessions.

    Sessions may be used from different threads: each step of the decoder takes the model's lock.
    """

    def __init__(
        self, bundle: Bundle, device: Device, runner: Runner, inputs: InputEncoder
    ) -> None:
        self.bundle = bundle
        self.device = device
        self._runner = runner
        self._inputs = inputs
        self._trace: TraceWriter | None = None

    def session(
        self,
        *,
        instructions: str | None = None,
        retain: str | None = None,
        reserve_tokens: int | None = None,
        priority: int = 0,
        tier: str | Path | None = None,
        tier_limit: str | int = "256MiB",
        tier_format: TierFormat = "int8",
        skip_still: float | None = None,
    ) -> Session:
        """Open a session: its pinned start, with the instructions, is prefilled now.

        ``retain`` None: ``window``, or ``keep`` for a model whose frames take no room in the
        context. ``reserve_tokens`` (default: 128, at most a quarter of the context) stay free for a
        question and its answer. When sessions want more than the pool has, frames leave first from
        the one with the lowest ``priority``, among equals from the one furthest above its share;
        pinned start and newest frame always stay. ``tier`` is a file for frames that leave, of at
        most ``tier_limit`` bytes, for ``Session.ask(…, recall="auto")`` to bring back; what an
        earlier session left in it is gone. ``tier_format``: ``int8``, ``int4-values`` (keys stay
        int8) or ``exact``. Raises TierError when the file cannot be made, ValueError where there
        can be no tier (no frames, or positions that cannot move), BudgetError when the pinned
        start, one frame and the reserve do not fit beside what the other sessions cannot do
        without, ValueError for an unknown rule or one that this model's positions or its exported
        graph do not allow.

        With ``skip_still``, frames that show nothing new are not encoded, but at least one every so
        many seconds is (``edgekv.media.stillness``).
        """
        if retain is None:
            retain = self._inputs.default_retain
        if retention_rule(retain, shiftable=self.bundle.manifest.shiftable).needs_heat:
            self._require_mass(retain)
        return Session.open(
            self._runner,
            self._inputs,
            max_context_tokens=self.bundle.manifest.max_context_tokens,
            instructions=instructions,
            retain=retain,
            reserve_tokens=reserve_tokens,
            priority=priority,
            gate=None if skip_still is None else StillnessGate(skip_still),
            tier=None if tier is None else self._request(Path(tier), tier_limit, tier_format),
        )

    def _require_mass(self, retain: str) -> None:
        if self.bundle.manifest.mass_layer is None:
            raise ValueError(
                f"{self.bundle.manifest.name} adds up no attention, which retain={retain!r} needs"
            )

    def _request(self, path: Path, limit: str | int, tier_format: str) -> TierRequest:
        plan = self._plan_tier(parse_bytes(limit), checked_format(tier_format))
        return TierRequest(path, plan, self.bundle.manifest.queries)

    def _plan_tier(self, max_bytes: int, tier_format: TierFormat) -> TierPlan:
        return plan_tier(self.bundle.manifest, self._runner, self._inputs, max_bytes, tier_format)

    def restore(
        self, path: str | Path, *, priority: int = 0, skip_still: float | None = None
    ) -> Session:
        """Continue a session from the file that ``Session.save`` wrote.

        The next logits are bit-identical to those of the session that was saved (on the same device
        and library). The pool may have another size, as long as context and a question fit.
        Raises SessionFileError when the file is missing, damaged, of a newer format or of another
        model, BudgetError saying what would fit; nothing is taken then.
        ``skip_still`` is no part of what was saved, nor is what ``least-attended`` knows of use.
        """
        gate = None if skip_still is None else StillnessGate(skip_still)
        member, record = restore_context(
            path,
            self._runner,
            self._inputs.model_identity(self._runner.cache.geometry),
            num_frame=self._inputs.tokens_per_frame,
            max_context_tokens=self.bundle.manifest.max_context_tokens,
            priority=priority,
        )
        tier = None if record.tier is None else self._reopen(record.tier, member.sequence)
        return Session(self._runner, self._inputs, member, record, tier, gate)

    def _reopen(self, record: TierRecord, sequence: Sequence) -> SessionTier:
        plan = self._plan_tier(record.max_bytes, record.format)
        queries = self.bundle.manifest.queries
        return reopen_tier(record, plan, queries, self._runner, self._inputs, sequence)

    def trace(self, path: str | Path | None, *, limit: str | int = DEFAULT_MAX_BYTES) -> None:
        """Log every event of the cache to ``path`` from now on; None ends the log.

        ``limit`` bounds the bytes on disk: when half of it is full, the file becomes ``path.1`` and
        a new one begins. A log begun before the first session can be replayed. The stream never
        waits for a reader and never fails for the log: when the disk is full, the log ends and
        ``trace_problem`` says why. Raises TraceError when the file cannot be made.
        """
        with self._runner.lock:
            if self._trace is not None:
                self._trace.close()
                self._trace = None
            if path is not None:
                self._trace = TraceWriter(self._runner.cache, path, max_bytes=parse_bytes(limit))

    def figures(self) -> ModelFigures:
        """Counts of the pool and of what was done with it; works on a closed model too."""
        with self._runner.lock:
            cache = self._runner.cache
            return ModelFigures(
                name=self.bundle.manifest.name,
                geometry=cache.geometry,
                counts=cache.counts,
                counters=deepcopy(cache.counters),
                shared=cache.index.counts,
                encoder_cache=self._inputs.encoder_cache,
                cross=None if cache.cross is None else cache.cross.counts,
                sessions=tuple(map(_session_figures, self._runner.sharing.members)),
            )

    @property
    def trace_problem(self) -> str | None:
        """Why the log ended before it was closed; None while there is none or all is well."""
        return self._trace.problem if self._trace is not None else None

    def close(self) -> None:
        """Give back pools and graphs; sessions still open fail with an ExecutorError afterwards."""
        self.trace(None)
        self._inputs.close()
        self._runner.shut_down()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
