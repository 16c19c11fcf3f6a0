"""Sources that do not wait: a thread reads, the newest frame wins.

Owns: the reader thread and the one place where its newest frame waits.
Guarantees: a slow user never sees a queue of old frames; at most one frame waits; its age is
reported when it is given; frames that were due and were replaced are counted as dropped. Only the
thread touches the reader, and it closes it, so a device is never released under a running read.
Nothing here is locked: a signal that comes anywhere leaves nothing held, and a source that is
dropped without ``close`` is let go of by its thread, with a ResourceWarning.
Does not know: what to do when a stream is lost. It ends then, with SourceError; a ``Reader`` that
wraps another and opens it again is where reconnecting belongs.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
import weakref
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue

from edgekv.errors import SourceError
from edgekv.media.source import FrameSampler, Mark, Reader, SourceStats, VideoSource
from edgekv.types import Frame

_CLOSE_S = 12.0  # a camera's read may take 10 s to give up
_LOOK_S = 1.0  # between two looks at whether the reader steps on


class _Reading:
    """What the thread does. It does not hold its source, which may be dropped meanwhile."""

    def __init__(
        self,
        source: LiveSource,
        reader: Reader,
        name: str,
        *,
        sampler: FrameSampler,
        paced: bool,
        close_s: float,  # that the end of a read is waited for
    ) -> None:
        self._reader = reader
        self._name = name
        self._sampler = sampler
        self._paced = paced
        self._close_s = close_s
        self.newest: deque[tuple[Frame, float]] = deque(maxlen=1)  # and when it was grabbed
        self.news: SimpleQueue[object] = SimpleQueue()  # whoever waits for a frame looks again
        self.stepped_s = time.monotonic()  # when the reader last came to a frame
        self.stopped = False
        self.ended = False  # what is in ``newest`` then is the last
        self.error: BaseException | None = None
        self.num_dropped = 0
        self._ends: SimpleQueue[object] = SimpleQueue()  # the thread is to end
        # Nothing of ours runs where Python collects the source, which may be anywhere.
        self._source = weakref.ref(source, self._ends.put)
        self._thread = threading.Thread(target=self._run, name=f"edgekv {name}", daemon=True)

    def start(self) -> None:
        """Begin to read. The end of the program waits for the read in progress, as a thread that is
        cut off inside OpenCV aborts it."""
        atexit.register(self.finish)
        try:
            self._thread.start()
        except BaseException:
            atexit.unregister(self.finish)
            self.stop()
            raise

    def stop(self) -> None:
        """Read no more."""
        self.stopped = True
        self.newest.clear()
        self._ends.put(None)
        self.news.put(None)

    def finish(self) -> None:
        """Read no more, and wait for the read in progress."""
        self.stop()
        self._thread.join(self._close_s)

    def wake(self) -> None:
        """Let one who waits look again, or whoever will wait next."""
        if self.news.empty():
            self.news.put(None)

    def _run(self) -> None:
        try:
            try:
                self._read_all()
            finally:
                self._reader.close()
        except BaseException as caught:  # the user's thread raises it
            self.error = caught
        finally:
            self.ended = True
            self.news.put(None)
            atexit.unregister(self.finish)
        if self._source() is None and not self.stopped:
            said = f"the source {self._name} was never closed"
            warnings.warn(said, ResourceWarning, stacklevel=1)

    def _read_all(self) -> None:
        start_s = time.monotonic()
        while self._ends.empty():
            mark = self._reader.grab()
            if mark is None:
                return
            self.stepped_s = time.monotonic()
            if self._paced and self._is_to_end_before(start_s + mark.time_s):
                return
            if self._sampler.is_due(mark.time_s):
                self._keep(mark, time.monotonic())

    def _is_to_end_before(self, time_s: float) -> bool:
        """Wait until ``time_s``: whether the thread is to end instead."""
        with suppress(Empty):
            self._ends.get(timeout=max(0.0, time_s - time.monotonic()))
            return True
        return False

    def _keep(self, mark: Mark, grabbed_s: float) -> None:
        pixels = self._reader.retrieve()
        if pixels is None:
            return
        self._sampler.take(mark.time_s)
        with suppress(IndexError):
            self.newest.pop()
            self.num_dropped += 1
        self.newest.append((Frame(pixels, mark.time_s, mark.index), grabbed_s))
        self.wake()


class LiveSource(VideoSource):
    """Plays ``reader`` from a thread.

    ``paced`` holds frames back until their time, which plays a file like a camera: it may pause for
    long and has an end. Otherwise an end is a loss, and so is a reader that steps to no frame, due
    or not, for ``timeout_s``. ``close`` waits for the read in progress, which ends by its own
    time-out; so does the end of the program.
    """

    def __init__(
        self,
        reader: Reader,
        name: str,
        *,
        fps: float | None,
        timeout_s: float,
        paced: bool = False,
    ) -> None:
        self._reader = reader
        self._name = name
        self._timeout_s = timeout_s
        self._paced = paced
        self._num_frames = 0
        self._age_s = 0.0
        self._max_age_s = 0.0
        self._stepped_s = self._looked_s = self._silent_s = 0.0
        self._reading = _Reading(
            self,
            reader,
            name,
            sampler=FrameSampler(fps),
            paced=paced,
            close_s=max(timeout_s + 1, _CLOSE_S),
        )
        self._reading.start()
        try:
            if not self._wait():
                raise self._end_error("expected at least one readable frame, found none")
        except BaseException:
            self.close()
            raise

    def _wait(self) -> bool:
        """Wait for a frame: False when no more will come."""
        reading = self._reading
        while not reading.stopped:
            ended = reading.ended  # asked first: what came until then is given
            if reading.newest:
                return True
            if ended:
                break
            left_s = self._timeout_s - self._silence()
            if left_s <= 0 and not self._paced:
                raise SourceError(f"{self._name}: no frame for {self._timeout_s:g} s")
            with suppress(Empty):
                reading.news.get(timeout=None if self._paced else min(left_s, _LOOK_S))
        reading.wake()  # others wait for what this one waited for
        return False

    def _silence(self) -> float:
        """Seconds since the reader last came to a frame. However long nobody looked, it counts as
        one look: the whole program may have been stopped meanwhile, the reader with it."""
        stepped_s, now_s = self._reading.stepped_s, time.monotonic()
        if stepped_s != self._stepped_s:
            self._stepped_s = self._looked_s = stepped_s
            self._silent_s = 0.0
        self._silent_s += min(now_s - self._looked_s, _LOOK_S)
        self._looked_s = now_s
        return self._silent_s

    def _take(self) -> tuple[Frame, float] | None:
        """The newest frame and when it was grabbed, None when no more will come."""
        while self._wait():
            with suppress(IndexError):  # another thread took it, or a newer one takes its place
                return self._reading.newest.pop()
        return None

    def _end_error(self, text: str) -> SourceError:
        error = SourceError(f"{self._name}: {text}")
        error.__cause__ = self._reading.error
        return error

    def __next__(self) -> Frame:
        given = self._take()
        reading = self._reading
        if given is None:
            if (reading.error or not self._paced) and not reading.stopped:
                reason = reading.error or "the stream ended"
                raise self._end_error(f"lost after {self._num_frames} frames ({reason})")
            raise StopIteration
        frame, grabbed_s = given
        self._num_frames += 1
        self._age_s = time.monotonic() - grabbed_s
        self._max_age_s = max(self._max_age_s, self._age_s)
        return frame

    def stats(self) -> SourceStats:
        return SourceStats(
            self._num_frames,
            self._reader.num_bad_frames,
            self._reading.num_dropped,
            self._age_s,
            self._max_age_s,
        )

    def stop(self) -> None:
        self._reading.stop()

    def close(self) -> None:
        self._reading.finish()
