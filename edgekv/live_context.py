"""A session's live context, as everything that a session does with it shares it.

Owns: the context's place in the pool, what the session knows beside it, and the lock of whoever
    changes it.
Guarantees: one thread at a time changes it; a second one gets an error at once, no silent wait.
    Nothing of the pool refers to it, so that its tier is let go with the session, dropped or
    closed.
Does not know: frames, prompts, files.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import Sequence
from edgekv.errors import SessionError
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder
from edgekv.media.stillness import StillnessGate
from edgekv.members import Member, OnLeaving
from edgekv.saving import SessionRecord
from edgekv.tiering import SessionTier


class LiveContext:
    """What a session holds."""

    def __init__(
        self,
        runner: Runner,
        inputs: InputEncoder,
        member: Member,
        record: SessionRecord,
        tier: SessionTier | None = None,
        gate: StillnessGate | None = None,
    ) -> None:
        self.runner = runner
        self.inputs = inputs
        self.member = member
        self.record = record
        self.tier = tier
        self.gate = gate
        self.num_still_frames = 0
        self.num_copied_frames = 0
        self._changing = threading.Lock()
        self._closed = False  # by whoever used it, not with its model

    @property
    def sequence(self) -> Sequence:
        """The context itself."""
        return self.member.sequence

    @property
    def last_time_s(self) -> float:
        """Time of the newest frame pushed; minus infinity before the first."""
        last = self.record.last_time_s
        return float("-inf") if last is None else last

    def check_open(self) -> None:
        """Raise SessionError when it was closed, ModelError when its model was."""
        if self._closed:
            raise SessionError("this session is closed")
        self.runner.check_open()

    def close(self) -> None:
        """End its use and give pages and tier back. Closing twice is fine."""
        with self.runner.lock:
            self._closed = True
            self.closer()()

    def closer(self) -> Callable[[], None]:
        """What gives pages and tier back, to be called under the pool's lock, as often as one
        likes. It does not hold the context: what is dropped has let its tier go itself."""
        member, reference = self.member, weakref.ref(self)

        def close() -> None:
            member.sequence.close()
            live = reference()
            if live is not None and live.tier is not None:
                live.tier.close()

        return close

    def store(self, sequence: Sequence, ids: NDArray[np.int64]) -> None:
        """Segments ``ids`` (k,) of ``sequence`` are about to leave. Never fails."""
        if self.tier is not None:
            self.tier.store(self.runner, sequence, ids)

    @contextmanager
    def change(self) -> Generator[None, None, None]:
        """Lets one thread at a time change the live context; a second one gets an error at once."""
        self.check_open()
        if not self._changing.acquire(blocking=False):
            raise SessionError(
                "another thread is changing this session; push and say from one thread"
            )
        try:
            self.check_open()
            yield
        finally:
            self._changing.release()


def weakly(method: OnLeaving) -> OnLeaving:
    """``method``, as long as its object is there; it is not kept for this."""
    reference = weakref.WeakMethod(method)

    def call(sequence: Sequence, ids: NDArray[np.int64]) -> None:
        bound = reference()
        if bound is not None:
            bound(sequence, ids)

    return call
