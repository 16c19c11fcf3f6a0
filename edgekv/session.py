"""A session: one stream, its bounded context, and the questions asked about it.

Owns: the session's life, from opening to closing, with its forks and saves.
Guarantees: the context never outgrows the model's window or the pool; a question is answered on a
copy-on-write fork and leaves the stream as it was; a call that fails has not taken its input in.
What a signal's handler raises is no failure: it comes when the call is done.
Does not know: how frames are read, where pools lie, how answers are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention import retention_rule
from edgekv.cache.segments import FRAME_CODE
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder, content_of
from edgekv.intake import Intake
from edgekv.interrupts import indivisible
from edgekv.limits import check_fits, plan_limits
from edgekv.live_context import LiveContext, weakly
from edgekv.media.arrays import DLPackArray
from edgekv.media.stillness import StillnessGate
from edgekv.members import Member
from edgekv.questions import Questions, Recalling
from edgekv.sampling import SamplingOptions
from edgekv.saving import SessionRecord, save_context
from edgekv.session_stats import SessionStats, session_stats
from edgekv.tier.plan import TierRecord
from edgekv.tiering import TierRequest, open_tier
from edgekv.types import Answer, Frame, Sound
from edgekv.uncopied import uncopied


@uncopied("use its fork(), or save() and Model.restore()")
class Session:
    """Made by ``Model.session`` and ``Model.restore``. Safe to ask from other threads while one
    thread pushes."""

    def __init__(self, live: LiveContext) -> None:
        member, runner = live.member, live.runner
        self._live = live
        self._intake = Intake(live)
        self._questions = Questions(live)
        runner.lock.close_with(self, live.closer())
        with runner.lock:
            if member.rule.needs_summaries:
                runner.cache.summaries.keep()
            member.on_leaving = None if live.tier is None else weakly(live.store)

    @classmethod
    def open(
        cls,
        runner: Runner,
        inputs: InputEncoder,
        *,
        max_context_tokens: int,
        instructions: str | None,
        retain: str,
        reserve_tokens: int | None,
        priority: int,
        tier: TierRequest | None = None,
        gate: StillnessGate | None = None,
    ) -> Session:
        """Check that everything fits, prefill the pinned start. See ``Model.session``."""
        rule = retention_rule(retain, shiftable=runner.cache.shiftable)
        start = inputs.start_ids(instructions)
        limits = plan_limits(
            runner.cache,
            num_start=len(start),
            num_frame=inputs.tokens_per_frame,
            max_context_tokens=max_context_tokens,
            reserve_tokens=reserve_tokens,
            num_pages=runner.cache.counts.num_pages,
            recall=tier is not None,
        )
        record = SessionRecord(retain, instructions, limits.reserve_tokens)
        with runner.lock, ExitStack() as on_failure:
            runner.check_open()
            sequence = runner.cache.open()
            on_failure.callback(sequence.close)
            found = sequence.find("system", content_of(start))
            if found is not None:
                sequence.take(found)
            num_shared = sequence.num_pages - int(sequence.private_pages().sum())
            runner.sharing.check_newcomer(limits, num_shared=num_shared)
            member = Member(sequence, rule, limits, priority, record)
            runner.sharing.join(member)
            is_new = bool(start) and found is None
            # Until its end others have what they gave for the start: all that can fail is in it.
            with runner.sharing.room(member, len(start)) if is_new else nullcontext():
                if is_new:
                    runner.feed(sequence, "system", inputs.embed(start))
                    sequence.keep(content_of(start))
                if rule.needs_summaries:
                    runner.cache.summaries.keep()
                opened = None
                # Last: what an earlier session left in the file is lost with it.
                if tier is not None:
                    opened = open_tier(tier, runner, inputs, sequence)
                    on_failure.callback(opened.close)
                    record.tier = opened.record
                session = cls(LiveContext(runner, inputs, member, record, opened, gate))
            on_failure.pop_all()
            return session

    @indivisible
    def push(
        self,
        frame: Frame | Sound | NDArray[np.uint8] | NDArray[np.float32] | DLPackArray,
        time_s: float | None = None,
    ) -> bool:
        """Take in a frame: encode it, let old frames go if it needs their room, prefill it.

        With ``skip_still``, a frame that shows nothing new since the newest one in the context is
        not encoded: that one stands for this time too. Returns whether the frame was taken in.

        ``frame`` is a ``Frame``, or an array (height, width, 3) uint8 RGB with ``time_s`` seconds,
        of NumPy or of any library that speaks DLPack. On the CPU it is not copied; on a GPU it is,
        and ``stats().num_copied_frames`` counts it.
        For a model that hears it is a ``Sound``, or an array (num_samples,) float32 at its own
        rate. A model with cross-attention sees one frame, the newest: it takes the place of the
        last one.
        Raises ValueError for a wrong shape or dtype or a time before the last one, SessionError
        when the session is closed or another thread is changing it.
        """
        return self._intake.push(frame, time_s)

    @indivisible
    def say(self, text: str) -> None:
        """Add text to the live context; it leaves again as frames do.

        Frames leave for it where room is short, never the newest. Raises ValueError for an empty
        text, ContextError or OutOfPagesError for one that does not fit beside it, and otherwise
        as ``push``.
        """
        self._intake.say(text)

    @indivisible
    def ask(
        self,
        prompt: str,
        options: SamplingOptions | None = None,
        *,
        recall: Recalling = "off",
    ) -> Answer:
        """Answer a question about the context as it is now. The stream is not disturbed.

        ``recall="auto"`` brings frames that have left and that the question is about back from the
        session's tier, for this answer only; ``Answer.recalled_frames`` says which. Without a tier,
        or where ``stats().tier.recall_off`` says why not, it does nothing.

        Raises ContextError when the prompt does not fit the context, OutOfPagesError when the pool
        has no room for it, SessionError when the session is closed.
        """
        drawing = self._questions.draw(prompt, options or SamplingOptions(), recall)
        for _ in drawing:
            pass
        assert drawing.answer is not None
        return drawing.answer

    @indivisible
    def ask_iter(
        self,
        prompt: str,
        options: SamplingOptions | None = None,
        *,
        recall: Recalling = "off",
    ) -> Iterator[str]:
        """As ``ask``, piece by piece; pieces never end inside a character. The context is the one
        at this call; frames pushed while the answer is drawn are not part of it."""
        return self._questions.draw(prompt, options or SamplingOptions(), recall)

    @indivisible
    def logits(self, prompt: str, *, recall: Recalling = "off") -> NDArray[np.float32]:
        """Logits (vocab,) of the first token of an answer to ``prompt``, on a fork."""
        return self._questions.logits(prompt, recall)

    @indivisible
    def fork(self) -> Session:
        """A session that goes its own way from here; pages are shared until one side writes. A tier
        stays with this one.

        Raises BudgetError when the pool has no room for a frame and a question of its own.
        """
        live = self._live
        with live.runner.lock:
            live.check_open()
            sharing, reserve = live.runner.sharing, live.member.limits.reserve_pages
            num_pages = live.member.limits.frame_pages + reserve
            what = "a frame of its own and a question of the fork"
            check_fits(live.runner.cache, num_pages, sharing.most_pages(reserve), what)
            record = replace(live.record, num_questions=0, tier=None)
            gate = None if live.gate is None else live.gate.copy()
            sequence = live.sequence.fork()
            try:
                # Its frames are no longer those of the tier, which stays with this session.
                member = replace(live.member, sequence=sequence, record=record, on_leaving=None)
                sharing.join(member)
                return Session(LiveContext(live.runner, live.inputs, member, record, gate=gate))
            except BaseException:
                sequence.close()
                raise

    @indivisible
    def save(self, path: str | Path) -> int:
        """Write the session to one file, from which ``Model.restore`` continues; its size in bytes.

        Atomic: after a power cut at any moment there is the file from before or the new one.
        Questions being answered are no part of it and go on; a push waits while pages are copied.
        Raises SessionFileError when the file cannot be written, SessionError when closed.
        """
        live = self._live
        live.check_open()
        model = live.inputs.model_identity(live.runner.cache.geometry)
        return save_context(path, live.runner, live.member, model, live.record)

    @property
    def retain(self) -> str:
        """Name of the retention rule."""
        return self._live.record.retain

    @property
    def instructions(self) -> str | None:
        """The text pinned at the start."""
        return self._live.record.instructions

    @property
    def tier(self) -> TierRecord | None:
        """Where frames go that leave; None = they are gone."""
        return self._live.record.tier

    @property
    def last_time_s(self) -> float:
        """Time of the newest frame pushed; minus infinity before the first."""
        return self._live.last_time_s

    @indivisible
    def context_frames(self) -> NDArray[np.int64]:
        """(n,) numbers, in their source, of the frames in the context now, oldest first."""
        live = self._live
        with live.runner.lock:
            live.check_open()
            segments = live.sequence.segment_table()
            index: NDArray[np.int64] = segments.index[segments.kinds == FRAME_CODE]
            return index

    @indivisible
    def stats(self) -> SessionStats:
        """Counts as of now."""
        return session_stats(self._live)

    @indivisible
    def close(self) -> None:
        """Give the context's pages back. Closing twice is fine; anything else afterwards raises."""
        self._live.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
