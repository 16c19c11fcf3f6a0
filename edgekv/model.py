"""A loaded bundle: one pool, from which sessions are opened.

Owns: the executors and the event log. Does not know how it was loaded, nor frames, prompts or
retention; that is what sessions are for.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType

from edgekv.bundle import Bundle
from edgekv.cache import SequenceState
from edgekv.cache.retention import retention_rule, retention_rules
from edgekv.checks import optional_path, path_of
from edgekv.config import parse_bytes
from edgekv.executors import Device
from edgekv.figures import ModelFigures, model_figures
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder
from edgekv.interrupts import indivisible
from edgekv.live_context import LiveContext
from edgekv.media.stillness import StillnessGate
from edgekv.members import check_priority
from edgekv.saving import read_saved, restoring
from edgekv.session import Session
from edgekv.session_file import SessionFile
from edgekv.tier.codec import TierFormat, checked_format
from edgekv.tier.plan import TierPlan, TierRecord, check_path
from edgekv.tiering import SessionTier, TierRequest, plan_tier, reopen_tier
from edgekv.trace.log_file import DEFAULT_MAX_BYTES, check_limit
from edgekv.trace.writer import TraceWriter
from edgekv.uncopied import uncopied


@uncopied("load its bundle once more")
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

    @indivisible
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

        ``retain`` is the rule that says which frames stay: ``window``, ``uniform``, ``novelty``,
        ``least-attended`` or ``keep`` (docs/retention.md). None: ``window``, or ``keep`` for a
        model whose frames take no room in the context. ``reserve_tokens`` (default: 128, at most a
        quarter of the context) stay free for a question and its answer. When sessions want more
        than the pool has, frames leave first from the one with the lowest ``priority``, among
        equals from the one furthest above its share; pinned start and newest frame always stay.
        ``tier`` is a file for frames that leave, of at most ``tier_limit`` bytes, for
        ``Session.ask(…, recall="auto")`` to bring back; what an earlier session left in it is gone.
        ``tier_format``: ``int8``, ``int4-values`` (keys stay int8) or ``exact``. Raises TierError
        when the file cannot be made, ValueError where there can be no tier (no frames, none that
        may leave, or positions that cannot move), BudgetError when the pinned start, one frame and
        the reserve do not fit beside what the other sessions cannot do without, ValueError for an
        unknown rule or one that this model's positions or its exported graph do not allow.

        With ``skip_still``, frames that show nothing new are not encoded, but at least one every so
        many seconds is (``edgekv.media.stillness``).
        """
        self._runner.check_open()
        check_priority(priority)
        path, kept_as = optional_path(tier, "tier"), checked_format(tier_format)
        max_bytes = parse_bytes(tier_limit, "tier_limit")
        gate = None if skip_still is None else StillnessGate(skip_still)
        if retain is None:
            retain = self._inputs.default_retain
        if retention_rule(retain, shiftable=self.bundle.manifest.shiftable).needs_heat:
            self._require_mass(retain)
        request = None if path is None else self._request(path, max_bytes, kept_as)
        if request is not None and retain not in retention_rules():
            raise ValueError(f"retain={retain!r} lets no frame leave, so a tier would stay empty")
        return Session.open(
            self._runner,
            self._inputs,
            max_context_tokens=self.bundle.manifest.max_context_tokens,
            instructions=instructions,
            retain=retain,
            reserve_tokens=reserve_tokens,
            priority=priority,
            gate=gate,
            tier=request,
        )

    def _require_mass(self, retain: str) -> None:
        if self.bundle.manifest.mass_layer is None:
            raise ValueError(
                f"{self.bundle.manifest.name} adds up no attention, which retain={retain!r} needs"
            )

    def _request(self, path: Path, max_bytes: int, tier_format: TierFormat) -> TierRequest:
        check_path(path)
        plan = self._plan_tier(max_bytes, tier_format)
        return TierRequest(path, plan, self.bundle.manifest.queries)

    def _plan_tier(self, max_bytes: int, tier_format: TierFormat) -> TierPlan:
        return plan_tier(self.bundle.manifest, self._runner, self._inputs, max_bytes, tier_format)

    @indivisible
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
        self._runner.check_open()
        check_priority(priority)
        path = path_of(path, "path")
        gate = None if skip_still is None else StillnessGate(skip_still)
        runner, inputs = self._runner, self._inputs
        with SessionFile(path) as file, ExitStack() as on_failure:
            record, state = read_saved(file, runner, inputs.model_identity(runner.cache.geometry))
            tier = None if record.tier is None else self._reopen(record.tier, state)
            if tier is not None:
                on_failure.callback(tier.close)
            with restoring(
                file,
                record,
                state,
                runner,
                begin=None if tier is None else partial(tier.measure, runner, inputs),
                num_frame=inputs.tokens_per_frame,
                max_context_tokens=self.bundle.manifest.max_context_tokens,
                priority=priority,
            ) as member:
                session = Session(LiveContext(runner, inputs, member, record, tier, gate))
                on_failure.callback(session.close)
                if tier is not None:
                    tier.go_on()  # last: what it erases does not come back
            on_failure.pop_all()
        return session

    def _reopen(self, record: TierRecord, state: SequenceState) -> SessionTier:
        plan = self._plan_tier(record.max_bytes, record.format)
        queries = self.bundle.manifest.queries if self._runner.shows_queries else None
        return reopen_tier(record, plan, queries, state)

    @indivisible
    def trace(self, path: str | Path | None, *, limit: str | int = DEFAULT_MAX_BYTES) -> None:
        """Log every event of the cache to ``path`` from now on; None ends the log.

        ``limit`` bounds the bytes on disk: when half of it is full, the file becomes ``path.1`` and
        a new one begins. A log begun before the first session can be replayed. The stream never
        waits for a reader and never fails for the log: when the disk is full, the log ends and
        ``trace_problem`` says why. Raises TraceError when the file cannot be made; a log in another
        file goes on then.
        """
        self._runner.check_open()
        max_bytes, path = parse_bytes(limit, "limit"), optional_path(path, "path")
        check_limit(max_bytes)
        with self._runner.lock:
            self._runner.check_open()
            old, cache = self._trace, self._runner.cache
            if old is not None and (path is None or path.resolve() == old.path.resolve()):
                old.close()  # makes way for another in its file
            new = None if path is None else TraceWriter(cache, path, max_bytes=max_bytes)
            if old is not None:
                old.close()
            if new is not None:
                new.listen()
            self._trace = new

    def _end_trace(self) -> None:
        if self._trace is not None:
            self._trace.close()
            self._trace = None

    @indivisible
    def figures(self) -> ModelFigures:
        """Counts of the pool and of what was done with it; works on a closed model too."""
        name = self.bundle.manifest.name
        return model_figures(name, self._runner, self._inputs.encoder_cache)

    @property
    def trace_problem(self) -> str | None:
        """Why the log ended before it was closed; None while there is none or all is well."""
        return self._trace.problem if self._trace is not None else None

    @indivisible
    def close(self) -> None:
        """Give back pools, graphs and what sessions still hold, their tiers too; those still open
        fail with a ModelError afterwards.

        Closing twice is fine.
        """
        with self._runner.lock:
            self._end_trace()
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
