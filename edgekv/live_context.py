"""A session's live context, as everything that a session does with it shares it.

Owns: the context's place in the pool, what the session knows beside it, and the lock of whoever
    changes it.
Guarantees: one thread at a time changes it; a second one gets an error at once, no silent wait.
Does not know: frames, prompts, files.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from edgekv.cache import Sequence
from edgekv.errors import SessionError
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder
from edgekv.media.stillness import StillnessGate
from edgekv.members import Member
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
        """The context itself: another one after a push that failed."""
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
            self.give_back()

    def give_back(self) -> None:
        """Give pages and tier back: nobody can use it any more."""
        with self.runner.lock:
            self.sequence.close()
            if self.tier is not None:
                self.tier.close()

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
