"""A session: one stream, its bounded context, and the questions asked about it.

Owns: the live sequence, what must stay free for a question, and when frames leave.
Guarantees: the context never outgrows the model's window or the pool; a question is answered on a
copy-on-write fork and leaves the stream as it was; a call that fails has not taken its input in.
Does not know: how frames are read, where pools lie, how answers are shown.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import CrossCounts, CrossInput, IndexCounts, Sequence
from edgekv.cache.retention import retention_rule
from edgekv.cache.segments import FRAME_CODE, checked_label
from edgekv.encoder_cache import EncoderCacheStats
from edgekv.errors import ContextError, SessionError
from edgekv.generate import Runner, draw_answer
from edgekv.inputs import InputEncoder, content_of
from edgekv.limits import can_take, check_fits, frame_ids, num_frames, plan_limits
from edgekv.media.arrays import DLPackArray, host_array
from edgekv.media.stillness import StillnessGate
from edgekv.recall import Asked, fit
from edgekv.sampling import SamplingOptions
from edgekv.saving import SessionRecord, save_context
from edgekv.sharing import Member
from edgekv.tiering import SessionTier, TierRequest, TierStats, open_tier
from edgekv.types import Answer, Frame, SegmentKind, Sound

log = logging.getLogger(__name__)

Recalling = Literal["off", "auto"]


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Counts of one session and of the pool it shares. Pages are counted once, however shared."""

    num_frames: int  # pushed since the session began
    num_still_frames: int  # of those since it was opened here, that were not encoded
    num_context_frames: int  # in the context now
    num_evicted_frames: int
    num_questions: int
    num_tokens: int  # in the context now
    num_pages: int  # of the pool
    pages_live: int
    pages_cached: int
    pages_in_flight: int
    pages_free: int
    pages_peak: int
    pool_bytes: int
    utilisation: float  # share of the live sequence's slots that hold a token
    num_copied_frames: int  # came on a GPU and were copied to the CPU, since opened or restored
    tier: TierStats | None  # None = the session was opened without one
    shared: IndexCounts  # of the model: segments found in the pool instead of computed
    encoder_cache: EncoderCacheStats  # of the model: pictures not encoded again
    cross: CrossCounts | None  # of what cross-attention sees; None for a model without

    @property
    def pages_available(self) -> int:
        """Pages that a context can have: free ones, and cached ones, which make way for it."""
        return self.pages_free + self.pages_cached


class Session:
    """Made by ``Model.session`` and ``Model.restore``. Safe to ask from other threads while one
    thread pushes."""

    def __init__(
        self,
        runner: Runner,
        inputs: InputEncoder,
        member: Member,
        record: SessionRecord,
        tier: SessionTier | None = None,
        gate: StillnessGate | None = None,
    ) -> None:
        self._gate = gate
        self._num_still_frames = 0
        self._runner = runner
        self._inputs = inputs
        self._member = member
        if member.rule.needs_summaries:
            with runner.lock:
                runner.cache.summaries.keep()
        self._changing = threading.Lock()
        self._record = record
        self._num_copied_frames = 0
        self._tier = tier
        member.on_leaving = None if tier is None else partial(tier.store, runner)

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
        with runner.lock:
            sequence = runner.cache.open()
            try:
                found = sequence.find("system", content_of(start))
                if found is not None:
                    sequence.take(found)
                num_shared = sequence.num_pages - int(sequence.private_pages().sum())
                runner.sharing.check_newcomer(limits, num_shared=num_shared)
                member = Member(sequence, rule, limits, priority, record)
                runner.sharing.join(member)
                if start and found is None:
                    with runner.sharing.room(member, len(start)):
                        runner.feed(sequence, "system", inputs.embed(start))
                    sequence.keep(content_of(start))
                opened = None if tier is None else open_tier(tier, runner, inputs, member.sequence)
            except BaseException:
                sequence.close()
                raise
        record.tier = None if opened is None else opened.record
        return cls(runner, inputs, member, record, opened, gate)

    # -- the stream -----------------------------------------------------------------------------

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
        if not isinstance(frame, Frame | Sound):
            if time_s is None:
                raise ValueError("an array needs its time: push(pixels, time_s=…)")
            frame = self._inputs.wrap(self._on_host(frame), time_s, self._record.num_frames)
        with self._change():
            checked_label(frame.index, frame.time_s)
            if not frame.time_s >= self.last_time_s:
                raise ValueError(
                    f"frame times must not go backwards: got {frame.time_s} s "
                    f"after {self.last_time_s} s"
                )
            if not math.isfinite(frame.time_s):
                raise ValueError(f"a frame's time must be finite, got {frame.time_s} s")
            look = None
            if self._gate is not None and isinstance(frame, Frame):
                look = self._gate.look(frame.pixels, frame.time_s)
                if look.skip:
                    self._count_still(frame.time_s)
                    return False
            with self._inputs.source(frame) as source:
                if source is None:
                    self._prefill(frame)
                else:
                    self._look_at(source, frame)
            if self._gate is not None and look is not None:
                self._gate.take(look)
            return True

    def _prefill(self, frame: Frame | Sound) -> None:
        """Take in a frame whose tokens join the context, computed here or found in the pool."""
        picture = self._inputs.picture(frame)
        # Only a context that can be found pays for the digest.
        content = picture.digest if self._sequence.is_findable else None
        if self._take_frame(content, frame):
            return
        embeds = self._inputs.frame(picture)
        with self._runner.lock:
            if self._take_frame(content, frame):  # another thread has computed it meanwhile
                return
            with self._append(len(embeds)):
                self._runner.feed(
                    self._sequence, "frame", embeds, index=frame.index, time_s=frame.time_s
                )
                self._keep(content)
                self._count_frame(frame.time_s)

    def _take_frame(self, content: bytes | None, frame: Frame | Sound) -> bool:
        with self._runner.lock:
            found = self._take("frame", content, index=frame.index, time_s=frame.time_s)
            if found:
                self._count_frame(frame.time_s)
            return found

    def _look_at(self, source: CrossInput, frame: Frame | Sound) -> None:
        """Take in a frame that cross-attention sees, in place of the one before."""
        marks = self._inputs.marks
        with self._append(len(marks), replace_frames=True):
            before = self._sequence.source
            try:
                self._sequence.look_at(source)
                if len(marks):
                    self._runner.feed(
                        self._sequence, "frame", marks, index=frame.index, time_s=frame.time_s
                    )
            except BaseException:
                self._sequence.look_at(before)
                raise
            self._count_frame(frame.time_s)

    def _on_host(self, array: NDArray[np.uint8] | DLPackArray) -> NDArray[np.uint8]:
        host = host_array(array)
        if host.copied_from:
            if not self._num_copied_frames:
                log.info(
                    "frames on %s are copied to the CPU, where they are resized", host.copied_from
                )
            self._num_copied_frames += 1
        return cast("NDArray[np.uint8]", host.array)  # the dtype is checked with the shape

    def say(self, text: str) -> None:
        """Add text to the live context; it leaves again as frames do.

        Raises ValueError for an empty text, ContextError for one that does not fit, and otherwise
        as ``push``.
        """
        with self._change():
            if self._inputs.asks_whole:
                raise ContextError(
                    "this model's prompt is asked as a whole, it takes no text before"
                )
            ids = self._inputs.text_ids(text)
            with self._runner.lock:
                if not self._take("text", content_of(ids)):
                    with self._append(len(ids)):
                        self._runner.feed(self._sequence, "text", self._inputs.embed(ids))
                        self._keep(content_of(ids))

    def _take(
        self, kind: SegmentKind, content: bytes | None, *, index: int = -1, time_s: float = math.nan
    ) -> bool:
        """Go on with a segment that the pool holds already, if it does and nothing must leave."""
        self._check_open()
        found = None if content is None else self._sequence.find(kind, content)
        if found is None or not can_take(self._sequence, self._member.limits, found):
            return False
        self._sequence.take(found, index=index, time_s=time_s)
        return True

    def _keep(self, content: bytes | None) -> None:
        """Let other contexts find the last segment, unless something left before it came."""
        if content is not None:
            self._sequence.keep(content)

    def _count_frame(self, time_s: float) -> None:
        """Under the lock that guards the frame, so that a save from another thread sees all."""
        self._record.last_time_s = time_s
        self._record.num_frames += 1

    def _count_still(self, time_s: float) -> None:
        """The newest frame in the context stands for this time too."""
        with self._runner.lock:
            self._record.last_time_s = time_s
            self._record.num_frames += 1
            self._num_still_frames += 1

    @contextmanager
    def _append(
        self, num_tokens: int, *, replace_frames: bool = False
    ) -> Generator[None, None, None]:
        """Holds the pool while its block appends ``num_tokens`` in one piece, with room made.

        ``replace_frames``: those in the context leave, whether or not their room is needed.
        """
        with self._runner.lock:
            self._check_open()
            leaving = frame_ids(self._sequence) if replace_frames else None
            with self._runner.sharing.room(self._member, num_tokens, leaving=leaving):
                yield

    # -- questions ------------------------------------------------------------------------------

    def ask(
        self,
        prompt: str,
        options: SamplingOptions | None = None,
        *,
        recall: Recalling = "off",
    ) -> Answer:
        """Answer a question about the context as it is now. The stream is not disturbed.

        ``recall="auto"`` brings frames that have left and that the question is about back from the
        session's tier, for this answer only. Without a tier, or where ``stats().tier.recall_off``
        says why not, it does nothing.

        Raises ContextError when the prompt does not fit the context, OutOfPagesError when the pool
        has no room for it, SessionError when the session is closed.
        """
        pieces = self._draw(prompt, options or SamplingOptions(), recall)
        while True:
            try:
                next(pieces)
            except StopIteration as end:
                answer: Answer = end.value
                return answer

    def ask_iter(
        self,
        prompt: str,
        options: SamplingOptions | None = None,
        *,
        recall: Recalling = "off",
    ) -> Iterator[str]:
        """As ``ask``, piece by piece; pieces never end inside a character. The context is the one
        at this call; frames pushed while the answer is drawn are not part of it."""
        pieces = self._draw(prompt, options or SamplingOptions(), recall)
        # Drawn now: a generator that has begun closes its fork even when nobody iterates it.
        first = next(pieces, None)
        return pieces if first is None else chain((first,), pieces)

    def logits(self, prompt: str, *, recall: Recalling = "off") -> NDArray[np.float32]:
        """Logits (vocab,) of the first token of an answer to ``prompt``, on a fork."""
        fork, ids, _ = self._fork_for(prompt, 1, recall)
        try:
            return self._runner.feed(fork, "text", self._inputs.embed(ids))
        finally:
            self._runner.close(fork)

    def _draw(
        self, prompt: str, options: SamplingOptions, recall: Recalling
    ) -> Generator[str, None, Answer]:
        if not isinstance(options, SamplingOptions):
            raise ValueError(f"options must be SamplingOptions, got a {type(options).__name__}")
        began_s = time.perf_counter()
        fork, ids, num_new = self._fork_for(prompt, options.max_new_tokens, recall)
        return draw_answer(
            self._runner,
            fork,
            embed=self._inputs.embed,
            tokenizer=self._inputs.tokenizer,
            prompt_ids=ids,
            prompt_weight=1 / len(ids) if self._member.rule.needs_heat else 0.0,
            end_ids=self._inputs.end_ids,
            options=replace(options, max_new_tokens=num_new),
            began_s=began_s,
        )

    def _fork_for(
        self, prompt: str, num_wanted: int, recall: Recalling
    ) -> tuple[Sequence, list[int], int]:
        """A fork that has reserved the pages of a prompt and an answer: what is left to prefill of
        the prompt, and how many tokens the answer may have, at least one.

        A fork may let go frames of its own to fit what comes; they stay in the live context.
        """
        if recall not in get_args(Recalling):
            raise ValueError(f"recall must be 'off' or 'auto', got {recall!r}")
        with self._runner.lock:
            self._check_open()
            if self._inputs.asks_whole and self._sequence.source is None:
                raise ContextError("there is nothing to ask about yet: push a sound first")
            ids = self._inputs.question_ids(
                prompt,
                frames=num_frames(self._sequence) > 0,
                instructions=self._record.instructions,
            )
            fork = self._sequence.fork()
            try:
                asked = self._fit(fork, ids, num_wanted, recall)
                rest = ids[asked.num_prefilled :]
                num_new = self._runner.sharing.hold_room(fork, len(rest), asked.num_new)
            except BaseException:
                fork.close()
                raise
            self._record.num_questions += 1
        return fork, rest, num_new

    def _fit(self, fork: Sequence, ids: list[int], num_wanted: int, recall: Recalling) -> Asked:
        """Make a question fit its fork and the pool, recalled frames included."""
        if recall == "off" or self._tier is None:
            return fit(self._runner, fork, self._member, len(ids), num_wanted)
        prompt = self._inputs.embed(ids)
        return self._tier.bring_back(self._runner, fork, self._member, prompt, num_wanted)

    # -- life -----------------------------------------------------------------------------------

    def fork(self) -> Session:
        """A session that goes its own way from here; pages are shared until one side writes. A tier
        stays with this one.

        Raises BudgetError when the pool has no room for a frame and a question of its own.
        """
        with self._runner.lock:
            self._check_open()
            sharing, reserve = self._runner.sharing, self._member.limits.reserve_pages
            num_pages = self._member.limits.frame_pages + reserve
            what = "a frame of its own and a question of the fork"
            check_fits(self._runner.cache, num_pages, sharing.most_pages(reserve), what)
            record = replace(self._record, num_questions=0, tier=None)
            member = replace(self._member, sequence=self._sequence.fork(), record=record)
            sharing.join(member)
            gate = None if self._gate is None else self._gate.copy()
            return Session(self._runner, self._inputs, member, record, gate=gate)

    def save(self, path: str | Path) -> int:
        """Write the session to one file, from which ``Model.restore`` continues; its size in bytes.

        Atomic: after a power cut at any moment there is the file from before or the new one.
        Questions being answered are no part of it and go on; a push waits while pages are copied.
        Raises SessionFileError when the file cannot be written, SessionError when closed.
        """
        with self._runner.lock:
            self._check_open()
        model = self._inputs.model_identity(self._runner.cache.geometry)
        return save_context(path, self._runner, self._member, model, self._record)

    @property
    def retain(self) -> str:
        """Name of the retention rule."""
        return self._record.retain

    @property
    def instructions(self) -> str | None:
        """The text pinned at the start."""
        return self._record.instructions

    @property
    def last_time_s(self) -> float:
        """Time of the newest frame pushed; minus infinity before the first."""
        last = self._record.last_time_s
        return float("-inf") if last is None else last

    def context_frames(self) -> NDArray[np.int64]:
        """(n,) numbers, in their source, of the frames in the context now, oldest first."""
        with self._runner.lock:
            self._check_open()
            segments = self._sequence.segment_table()
            index: NDArray[np.int64] = segments.index[segments.kinds == FRAME_CODE]
            return index

    def stats(self) -> SessionStats:
        """Counts as of now."""
        with self._runner.lock:
            self._check_open()
            counts = self._runner.cache.counts
            num_slots = self._sequence.num_pages * self._runner.cache.geometry.page_size
            return SessionStats(
                num_frames=self._record.num_frames,
                num_still_frames=self._num_still_frames,
                num_context_frames=num_frames(self._sequence),
                num_evicted_frames=self._record.num_evicted_frames,
                num_questions=self._record.num_questions,
                num_tokens=self._sequence.num_tokens,
                num_pages=counts.num_pages,
                pages_live=counts.live,
                pages_cached=counts.cached,
                pages_in_flight=counts.in_flight,
                pages_free=counts.free,
                pages_peak=counts.peak,
                pool_bytes=counts.num_pages * self._runner.cache.geometry.page_bytes,
                utilisation=self._sequence.num_tokens / num_slots if num_slots else 1.0,
                shared=self._runner.cache.index.counts,
                encoder_cache=self._inputs.encoder_cache,
                num_copied_frames=self._num_copied_frames,
                cross=None if (cross := self._runner.cache.cross) is None else cross.counts,
                tier=None if self._tier is None else self._tier.stats(),
            )

    def close(self) -> None:
        """Give the context's pages back. Closing twice is fine; anything else afterwards raises."""
        with self._runner.lock:
            if not self._sequence.closed:
                self._sequence.close()
            if self._tier is not None:
                self._tier.close()

    def __del__(self) -> None:
        if not self._sequence.closed:
            self._runner.abandon(self._sequence)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _sequence(self) -> Sequence:
        """The live context: another one after a push that failed."""
        return self._member.sequence

    def _check_open(self) -> None:
        if self._sequence.closed:
            raise SessionError("this session is closed")

    @contextmanager
    def _change(self) -> Generator[None, None, None]:
        """Lets one thread at a time change the live context; a second one gets an error at once."""
        if not self._changing.acquire(blocking=False):
            raise SessionError(
                "another thread is changing this session; push and say from one thread"
            )
        try:
            self._check_open()
            yield
        finally:
            self._changing.release()
