"""A session's tier: opened, measured, filled when frames leave, asked when a question recalls.

Owns: what the user wishes of a tier, the reasons why it does nothing, and its figures.
Guarantees: whatever fails here, the stream goes on and questions are answered, and ``stats`` says
    why; recalling is off where reading a frame back is slower than encoding it again.
Does not know: frames' contents, the bytes on disk, how frames are chosen.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from edgekv.bundle import Manifest, QueryOutput
from edgekv.cache import Sequence, SequenceState
from edgekv.cache.segments import SYSTEM_CODE
from edgekv.errors import OutOfPagesError, TierError
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder
from edgekv.members import Member
from edgekv.recall import Asked, bring_back, fit
from edgekv.tier.codec import TierFormat
from edgekv.tier.plan import TierPlan, TierRecord
from edgekv.tier.store import SCRATCH_FRAMES, Tier
from edgekv.types import Frame

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TierRequest:
    """What a new session is asked to keep, and where."""

    path: Path
    plan: TierPlan
    queries: QueryOutput | None


@dataclass(frozen=True, slots=True)
class TierStats:
    """Figures of one session's tier, since it was opened."""

    num_frames: int  # that can be recalled now
    max_frames: int
    num_bytes: int
    num_stored: int
    num_skipped: int  # frames that could not be stored
    num_damaged: int  # stored frames that were refused when they were read
    num_recalled: int  # frames that came back for questions
    recall_reading_ms: float  # that the disk took for them
    recall_waiting_ms: float  # of it, that questions waited: the rest was hidden
    reading_ms: float  # a frame from the disk, NaN = not measured
    encoding_ms: float  # a frame encoded and prefilled again
    problem: str | None  # why nothing is stored any more
    recall_off: str | None  # why nothing comes back


class SessionTier:
    """A tier and what a session does with it. ``tier`` None: there is none, for a reason."""

    def __init__(
        self, tier: Tier | None, queries: QueryOutput | None, recall_off: str | None
    ) -> None:
        self._tier = tier
        self._queries = queries
        self.recall_off = recall_off
        self._to_measure = False  # as soon as there is room for it
        self.num_recalled = 0
        self._reading_s = self._waiting_s = 0.0  # while recalling
        self.reading_ms = self.encoding_ms = float("nan")
        if recall_off is None and queries is None:
            self._turn_off("the decoder shows no queries here")

    def _turn_off(self, reason: str) -> None:
        self.recall_off = reason
        _log.warning("no frames will be recalled: %s", reason)

    @property
    def tier(self) -> Tier | None:
        """The tier itself."""
        return self._tier

    @property
    def record(self) -> TierRecord | None:
        """What a save keeps of it."""
        if self._tier is None:
            return None
        plan = self._tier.plan
        path = str(self._tier.path.absolute())
        return TierRecord(path, self._tier.session, plan.max_bytes, plan.format)

    def go_on(self) -> None:
        """Make the file one of a session that has just begun to go on: frames that it has not seen
        are erased. Where they cannot be, it goes on without a tier, for a reason."""
        if self._tier is None:
            return
        try:
            self._tier.erase_unseen()
        except TierError as error:
            self.close()
            self._tier = None
            self._turn_off(str(error))

    def measure(self, runner: Runner, inputs: InputEncoder, live: Sequence) -> None:
        """Time a frame read from the disk against one encoded again; recalling goes off if it is
        slower, and while the pool has no room for a frame to be encoded."""
        if self._tier is None or not (self.recall_off is None or self._to_measure):
            return
        had_room, self._to_measure = not self._to_measure, False
        try:
            self.encoding_ms, self.reading_ms = _measure(self._tier, runner, inputs, live)
        except OutOfPagesError as error:
            self._to_measure = True
            if had_room:
                self._turn_off(f"reading is measured when a question finds room for it ({error})")
            return
        except (TierError, OSError) as error:
            self._turn_off(f"reading could not be measured ({error})")
            return
        self.recall_off = None
        if self.reading_ms > self.encoding_ms:
            self._turn_off(
                f"reading a frame back takes {self.reading_ms:.1f} ms here, "
                f"encoding it again {self.encoding_ms:.1f} ms"
            )

    def store(self, runner: Runner, sequence: Sequence, ids: NDArray[np.int64]) -> None:
        """Segments ``ids`` (k,) are about to leave. Never fails."""
        if self._tier is not None:
            self._tier.store(sequence, ids, runner.read_pages)

    def bring_back(
        self,
        runner: Runner,
        inputs: InputEncoder,
        fork: Sequence,
        member: Member,
        prompt: NDArray[np.float32],  # (n, hidden)
        num_wanted: int,
    ) -> Asked:
        """Make a question fit its fork, with the frames it is about. Raises as ``fit``."""
        if self._to_measure:
            self.measure(runner, inputs, member.sequence)
        if self._tier is None or self._queries is None or self.recall_off is not None:
            return fit(runner, fork, member, len(prompt), num_wanted)
        self._tier.check_file()
        asked = bring_back(
            self._tier,
            runner,
            fork,
            member,
            scale=self._queries.scale,
            prompt=prompt,
            num_wanted=num_wanted,
        )
        self.num_recalled += len(asked.recalled_frames)
        self._reading_s += asked.reading_s
        self._waiting_s += asked.waiting_s
        return asked

    def stats(self) -> TierStats:
        """Figures as of now."""
        tier = self._tier
        if tier is not None:
            tier.check_file()
        return TierStats(
            num_frames=0 if tier is None else len(tier.index),
            max_frames=0 if tier is None else tier.max_frames,
            num_bytes=0 if tier is None else tier.num_bytes,
            num_stored=0 if tier is None else tier.num_stored,
            num_skipped=0 if tier is None else tier.num_skipped,
            num_damaged=0 if tier is None else tier.num_damaged,
            num_recalled=self.num_recalled,
            recall_reading_ms=1e3 * self._reading_s,
            recall_waiting_ms=1e3 * self._waiting_s,
            reading_ms=self.reading_ms,
            encoding_ms=self.encoding_ms,
            problem=None if tier is None else tier.problem,
            recall_off=self.recall_off,
        )

    def close(self) -> None:
        """Let go of the file."""
        if self._tier is not None:
            self._tier.close()


def plan_tier(
    manifest: Manifest,
    runner: Runner,
    inputs: InputEncoder,
    max_bytes: int,
    tier_format: TierFormat,
) -> TierPlan:
    """What a tier of this model looks like. Raises ValueError where there cannot be one."""
    geometry = runner.cache.geometry
    if not inputs.tokens_per_frame:
        raise ValueError(f"{manifest.name} has no frames in its context that a tier could keep")
    if not manifest.shiftable:
        raise ValueError(
            f"{manifest.name} has positions that cannot be shifted, so no frame can come back"
        )
    layer = 2 * geometry.num_layers // 3 if manifest.queries is None else manifest.queries.layer
    return TierPlan(
        model=inputs.model_identity(geometry),
        layer=layer,
        rotation=manifest.rotations[manifest.layer_rotations[layer]],
        max_pages=geometry.pages_for(inputs.tokens_per_frame),
        max_bytes=max_bytes,
        format=tier_format,
    )


def open_tier(
    request: TierRequest, runner: Runner, inputs: InputEncoder, sequence: Sequence
) -> SessionTier:
    """A new tier, measured. Raises TierError when the file cannot be made."""
    queries = request.queries if runner.shows_queries else None
    opened = SessionTier(Tier.create(request.path, request.plan), queries, None)
    try:
        opened.measure(runner, inputs, sequence)
    except BaseException:
        opened.close()
        raise
    return opened


def reopen_tier(
    record: TierRecord,
    plan: TierPlan,
    queries: QueryOutput | None,
    state: SequenceState,
) -> SessionTier:
    """The tier of a session that goes on from ``state``; nothing of it is changed yet, see
    ``SessionTier.go_on``. Where it is gone, the session goes on without, for a reason."""
    try:
        tier = Tier.reopen(Path(record.path), plan, record.session, state)
    except TierError as error:
        _log.warning("no frames will be stored or recalled: %s", error)
        return SessionTier(None, queries, str(error))
    return SessionTier(tier, queries, None)


def _measure(
    tier: Tier, runner: Runner, inputs: InputEncoder, live: Sequence
) -> tuple[float, float]:
    """Milliseconds, medians: a blank frame encoded and prefilled, and one read from the disk."""
    encoding = []
    with runner.lock, live.fork(purpose="probe") as fork:
        for shade in range(SCRATCH_FRAMES):  # a picture seen before is not encoded again
            segments = fork.segment_table()
            fork.drop(segments.ids[segments.kinds != SYSTEM_CODE])
            frame = Frame(np.full((256, 256, 3), shade, np.uint8), 0.0)
            began = time.perf_counter()
            runner.feed(fork, "frame", inputs.frame(inputs.picture(frame)), time_s=frame.time_s)
            encoding.append(time.perf_counter() - began)
        reading_s = tier.time_reading(fork, runner.read_pages)
    return 1e3 * median(encoding), 1e3 * reading_s
