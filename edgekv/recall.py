"""Bringing frames that left back for one question, on the question's own fork.

Owns: which frames come back, how many, and the order of what is done.
Guarantees: the live context is not touched; a frame that cannot be read is left out, and the
    question is answered all the same; frames are read while the first half of the question is
    prefilled, and the second half sees them.
Does not know: files, sessions, what frames show.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import Sequence
from edgekv.cache.retention import may_leave
from edgekv.cache.segments import SYSTEM_CODE
from edgekv.generate import Runner
from edgekv.limits import Limits, fit_question, shrink
from edgekv.members import Member
from edgekv.rotation import turn
from edgekv.tier.store import StoredFrame, Tier, state_of


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that is about to be answered on a fork."""

    num_new: int  # tokens the answer may have
    num_prefilled: int = 0  # of the prompt
    recalled_frames: tuple[int, ...] = ()  # numbers of those that came back, oldest first
    recalled_times_s: tuple[float, ...] = ()  # when they were pushed
    reading_s: float = 0.0  # that the disk took for them
    waiting_s: float = 0.0  # of it, that the question waited


class Reading:
    """Frames being read by a thread of their own; leaving the block waits for it. Where there can
    be no more threads they are read at once."""

    def __init__(self, tier: Tier, slots: NDArray[np.intp]) -> None:
        self._tier, self._slots = tier, slots
        self._frames: list[StoredFrame] = []
        self.seconds = 0.0  # that reading took
        self._thread = threading.Thread(target=self._read, name="edgekv-recall", daemon=True)

    def _read(self) -> None:
        began = time.perf_counter()
        self._tier.read_ahead(self._slots)
        frames = [self._tier.read(int(slot)) for slot in self._slots]
        self._frames = [frame for frame in frames if frame is not None]
        self.seconds = time.perf_counter() - began

    def frames(self) -> list[StoredFrame]:
        """Those that could be read, by growing segment id; waits for them."""
        self._wait()
        return sorted(self._frames, key=lambda frame: int(frame.row["segment"]))

    def __enter__(self) -> Reading:
        try:
            self._thread.start()
        except RuntimeError:
            self._read()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._wait()

    def _wait(self) -> None:
        if self._thread.ident is not None:  # it was started
            self._thread.join()


def fit(
    runner: Runner,
    fork: Sequence,
    member: Member,
    num_prompt: int,
    num_wanted: int,
    num_back: int = 0,  # slots of what comes back
) -> Asked:
    """Make a question fit its fork and the pool, with nothing recalled yet.

    Raises as ``fit_question`` and ``Sharing.room_for_question``.
    """
    num_prompt += num_back
    num_new = fit_question(fork, member.rule, member.limits, num_prompt, num_wanted)
    return Asked(runner.sharing.room_for_question(member, num_prompt, num_new))


def bring_back(
    tier: Tier,
    runner: Runner,
    fork: Sequence,
    member: Member,
    *,
    scale: float,  # of attention in the tier's layer
    prompt: NDArray[np.float32],  # (n, hidden)
    num_wanted: int,  # tokens of answer
) -> Asked:
    """Put the frames that ``prompt`` is about where they stood, and prefill its first half.

    The fork lets go newer frames for them, but not the newest. Raises as ``fit``; the caller closes
    the fork.
    """
    limits, page_size = member.limits, runner.cache.geometry.page_size
    chosen = _choose(tier, runner, fork, limits, scale, prompt, num_wanted)
    num_back = int(tier.index.frames["num_pages"][chosen].sum()) * page_size
    if num_back:
        shrink(fork, member.rule, limits, limits.widest_tokens - num_back)
    asked = fit(runner, fork, member, len(prompt), num_wanted, num_back)
    if not num_back:
        return asked
    with Reading(tier, chosen) as reading:
        half = len(prompt) // 2
        if half:
            runner.feed(fork, "text", prompt[:half])
        began = time.perf_counter()
        frames = reading.frames()
        waiting_s = time.perf_counter() - began
    if frames:
        pages = fork.insert(state_of(frames, page_size, fork.next_segment_id))
        runner.write_pages(pages, np.concatenate([frame.pages for frame in frames]))
    indices = tuple(int(frame.row["index"]) for frame in frames)
    times_s = tuple(float(frame.row["time_s"]) for frame in frames)
    return Asked(asked.num_new, half, indices, times_s, reading.seconds, waiting_s)


def looks_for(
    tier: Tier,
    runner: Runner,
    live: Sequence,
    prompt: NDArray[np.float32],  # (n, hidden)
) -> NDArray[np.float32]:
    """(Hq, D) what the last token of a question looks for, to rank the frames of a tier by.

    The question is run behind the pinned start alone: what its last token looks for hardly depends
    on what the window holds, and a short context costs little. Raises as ``Runner.last_query``.
    """
    with live.fork(purpose="probe") as bare:
        bare.truncate(_num_pinned(live))
        start = bare.next_position
        query = runner.last_query(bare, prompt)
    # As though the question stood right behind one frame that stands at 0.
    span = tier.index.frames["span"].max(axis=0)
    return turn(
        query.reshape(-1, tier.plan.model.geometry.head_dim), span - start, tier.plan.rotation
    )


def _choose(
    tier: Tier,
    runner: Runner,
    live: Sequence,
    limits: Limits,
    scale: float,
    prompt: NDArray[np.float32],  # (n, hidden)
    num_wanted: int,
) -> NDArray[np.intp]:
    """(k,) slots of the frames in the tier that the question is about, as many as fit."""
    geometry, num_pages = runner.cache.geometry, tier.plan.max_pages
    segments = live.segment_table()
    num_kept = int(segments.num_tokens[~may_leave(segments, spare_newest=True)].sum())
    room = limits.max_context_tokens - num_kept - len(prompt) - num_wanted
    available = limits.cache.counts.available - geometry.pages_for(len(prompt)) - 2
    count = min(
        limits.recall_frames, room // (num_pages * geometry.page_size), available // num_pages
    )
    if count < 1 or not len(tier.index):
        return np.empty(0, np.intp)
    query = looks_for(tier, runner, live, prompt)
    return tier.index.best(query, scale, count, segments.ids)


def _num_pinned(sequence: Sequence) -> int:
    """Tokens of the pinned start."""
    segments = sequence.segment_table()
    pinned = np.logical_and.accumulate(segments.kinds == SYSTEM_CODE)
    return int(segments.num_tokens[pinned].sum())
