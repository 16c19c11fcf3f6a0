"""What joins a session's live context: frames of the stream, and text that is said to it.

Owns: what is checked, encoded, found or computed, and counted, in which order.
Guarantees: what fails has not been taken in; frame times never go backwards; a frame and the count
    of it are seen by other threads together.
Does not know: which segments leave for it, what is asked about it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import CrossInput
from edgekv.cache.segments import checked_label
from edgekv.errors import ContextError
from edgekv.inputs import content_of
from edgekv.limits import can_take, frame_ids
from edgekv.live_context import LiveContext
from edgekv.media.arrays import DLPackArray, host_array
from edgekv.types import Frame, SegmentKind, Sound

log = logging.getLogger(__name__)


class Intake:
    """Frames and text on their way into one live context."""

    def __init__(self, live: LiveContext) -> None:
        self._live = live
        self._runner = live.runner
        self._inputs = live.inputs

    def push(
        self,
        frame: Frame | Sound | NDArray[np.uint8] | NDArray[np.float32] | DLPackArray,
        time_s: float | None,
    ) -> bool:
        """As ``Session.push``."""
        live = self._live
        live.check_open()
        if not isinstance(frame, Frame | Sound):
            if time_s is None:
                raise ValueError("an array needs its time: push(pixels, time_s=…)")
            frame = self._inputs.wrap(self._on_host(frame), time_s, live.record.num_frames)
        with live.change():
            checked_label(frame.index, frame.time_s)
            if not frame.time_s >= live.last_time_s:
                raise ValueError(
                    f"frame times must not go backwards: got {frame.time_s} s "
                    f"after {live.last_time_s} s"
                )
            look = None
            if live.gate is not None and isinstance(frame, Frame):
                look = live.gate.look(frame.pixels, frame.time_s)
                if look.skip:
                    self._count_still(frame.time_s)
                    return False
            with self._inputs.source(frame) as source:
                if source is None:
                    self._prefill(frame)
                else:
                    self._look_at(source, frame)
            if live.gate is not None and look is not None:
                live.gate.take(look)
            return True

    def _prefill(self, frame: Frame | Sound) -> None:
        """Take in a frame whose tokens join the context, computed here or found in the pool."""
        picture = self._inputs.picture(frame)
        # Only a context that can be found pays for the digest.
        content = picture.digest if self._live.sequence.is_findable else None
        if self._take_frame(content, frame):
            return
        embeds = self._inputs.frame(picture)
        with self._runner.lock:
            if self._take_frame(content, frame):  # another thread has computed it meanwhile
                return
            with self._append(len(embeds)):
                self._runner.feed(
                    self._live.sequence, "frame", embeds, index=frame.index, time_s=frame.time_s
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
            sequence = self._live.sequence
            before = sequence.source
            try:
                sequence.look_at(source)
                if len(marks):
                    self._runner.feed(
                        sequence, "frame", marks, index=frame.index, time_s=frame.time_s
                    )
            except BaseException:
                sequence.look_at(before)
                raise
            self._count_frame(frame.time_s)

    def _on_host(self, array: NDArray[np.uint8] | DLPackArray) -> NDArray[np.uint8]:
        host = host_array(array)
        if host.copied_from:
            if not self._live.num_copied_frames:
                log.info(
                    "frames on %s are copied to the CPU, where they are resized", host.copied_from
                )
            self._live.num_copied_frames += 1
        return cast("NDArray[np.uint8]", host.array)  # the dtype is checked with the shape

    def say(self, text: str) -> None:
        """As ``Session.say``."""
        with self._live.change():
            if self._inputs.asks_whole:
                raise ContextError(
                    "this model's prompt is asked as a whole, it takes no text before"
                )
            ids = self._inputs.text_ids(text)
            with self._runner.lock:
                if not self._take("text", content_of(ids)):
                    with self._append(len(ids), spare_newest=True):
                        self._runner.feed(self._live.sequence, "text", self._inputs.embed(ids))
                        self._keep(content_of(ids))

    def _take(
        self, kind: SegmentKind, content: bytes | None, *, index: int = -1, time_s: float = math.nan
    ) -> bool:
        """Go on with a segment that the pool holds already, if it does and nothing must leave."""
        self._live.check_open()
        sequence = self._live.sequence
        found = None if content is None else sequence.find(kind, content)
        if found is None or not can_take(sequence, self._live.member.limits, found):
            return False
        sequence.take(found, index=index, time_s=time_s)
        return True

    def _keep(self, content: bytes | None) -> None:
        """Let other contexts find the last segment, unless something left before it came."""
        if content is not None:
            self._live.sequence.keep(content)

    def _count_frame(self, time_s: float) -> None:
        """Under the lock that guards the frame, so that a save from another thread sees all."""
        self._live.record.last_time_s = time_s
        self._live.record.num_frames += 1

    def _count_still(self, time_s: float) -> None:
        """The newest frame in the context stands for this time too."""
        with self._runner.lock:
            self._count_frame(time_s)
            self._live.num_still_frames += 1

    @contextmanager
    def _append(
        self, num_tokens: int, *, replace_frames: bool = False, spare_newest: bool = False
    ) -> Generator[None, None, None]:
        """Holds the pool while its block appends ``num_tokens`` in one piece, with room made.

        ``replace_frames``: those in the context leave, whether or not their room is needed;
        ``spare_newest``: the newest does not, however much it is.
        """
        with self._runner.lock:
            self._live.check_open()
            leaving = frame_ids(self._live.sequence) if replace_frames else None
            with self._runner.sharing.room(
                self._live.member, num_tokens, leaving=leaving, spare_newest=spare_newest
            ):
                yield
