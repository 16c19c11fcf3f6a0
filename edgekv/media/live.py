"""Sources that do not wait: a thread reads, the newest frame wins.

Owns: the reader thread and the one place where its newest frame waits.
Guarantees: a slow user never sees a queue of old frames; at most one frame waits; its age is
reported when it is given; frames that were due and were replaced are counted as dropped. Only the
thread touches the reader, and it closes it, so a device is never released under a running read.
Does not know: what to do when a stream is lost. It ends then, with SourceError; a ``Reader`` that
wraps another and opens it again is where reconnecting belongs.
"""

from __future__ import annotations

import atexit
import threading
import time

from edgekv.errors import SourceError
from edgekv.media.source import Mark, Reader, Sampler, SourceStats, VideoSource
from edgekv.types import Frame

_CLOSE_S = 12.0  # a camera's read may take 10 s to give up


class LiveSource(VideoSource):
    """Plays ``reader`` from a thread.

    ``paced`` holds frames back until their time, which plays a file like a camera: it may pause for
    long and has an end. Otherwise an end is a loss, and so is a reader that steps to no frame, due
    or not, for ``timeout_s``. ``close`` waits for the read in progress, which ends by its own
    time-out; so does the end of the program, since a thread cut off inside OpenCV aborts it.
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
        self._sampler = Sampler(fps)
        self._stop = threading.Event()
        self._changed = threading.Condition()
        # All below is shared and changed only under _changed.
        self._waiting: tuple[Frame, float] | None = None  # the newest frame, when it was grabbed
        self._stepped_s = time.monotonic()  # when the reader last came to a frame
        self._ended = False
        self._error: BaseException | None = None
        self._num_frames = 0
        self._num_dropped = 0
        self._age_s = 0.0
        self._max_age_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"edgekv {name}", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self._wait()
            if self._waiting is None:
                raise self._end_error("expected at least one readable frame, found none")
        except BaseException:
            self.close()
            raise

    # The reader thread.

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            try:
                self._read_all()
            finally:
                self._reader.close()
        except BaseException as caught:  # the user's thread raises it
            error = caught
        finally:
            with self._changed:
                self._ended, self._error = True, error
                self._changed.notify_all()

    def _read_all(self) -> None:
        start_s = time.monotonic()
        while not self._stop.is_set():
            mark = self._reader.grab()
            if mark is None:
                return
            with self._changed:
                self._stepped_s = time.monotonic()
            if self._paced and self._stop.wait(max(0.0, start_s + mark.time_s - time.monotonic())):
                return
            if self._sampler.is_due(mark.time_s):
                self._keep(mark, time.monotonic())

    def _keep(self, mark: Mark, grabbed_s: float) -> None:
        pixels = self._reader.retrieve()
        if pixels is None:
            return
        self._sampler.take(mark.time_s)
        with self._changed:
            self._num_dropped += self._waiting is not None
            self._waiting = Frame(pixels, mark.time_s, mark.index), grabbed_s
            self._changed.notify_all()

    # The user's threads.

    def _wait(self) -> None:
        with self._changed:
            while not (self._waiting is not None or self._ended or self._stop.is_set()):
                left_s = self._stepped_s + self._timeout_s - time.monotonic()
                if left_s <= 0 and not self._paced:
                    raise SourceError(f"{self._name}: no frame for {self._timeout_s:g} s")
                self._changed.wait(None if self._paced else left_s)

    def _end_error(self, text: str) -> SourceError:
        error = SourceError(f"{self._name}: {text}")
        error.__cause__ = self._error
        return error

    def __next__(self) -> Frame:
        self._wait()
        with self._changed:
            waiting = self._waiting  # a signal handler may stop the source between two lines
            if waiting is None or self._stop.is_set():
                if (self._error or not self._paced) and not self._stop.is_set():
                    reason = self._error or "the stream ended"
                    raise self._end_error(f"lost after {self._num_frames} frames ({reason})")
                raise StopIteration
            (frame, grabbed_s), self._waiting = waiting, None
            self._num_frames += 1
            self._age_s = time.monotonic() - grabbed_s
            self._max_age_s = max(self._max_age_s, self._age_s)
            return frame

    def stats(self) -> SourceStats:
        with self._changed:
            return SourceStats(
                self._num_frames,
                self._reader.num_bad_frames,
                self._num_dropped,
                self._age_s,
                self._max_age_s,
            )

    def stop(self) -> None:
        self._stop.set()
        with self._changed:  # re-entrant: the thread that is interrupted may hold it
            self._waiting = None
            self._changed.notify_all()

    def close(self) -> None:
        self.stop()
        self._thread.join(max(self._timeout_s + 1, _CLOSE_S))
        atexit.unregister(self.close)
