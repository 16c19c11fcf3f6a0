"""What every source shares: reading, sampling by time, counting, closing.

Owns: the two seams of this package. Below, a ``Reader`` per kind of source steps through frames;
above, a ``VideoSource`` decides which of them a user gets.
Guarantees: frames leave in order, each once, with times that only rise; a frame that is not due is
never decoded further than the backend must; a bad frame is counted and the next good one takes its
place.
Does not know: where frames come from.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from edgekv.errors import SourceError
from edgekv.types import Frame
from edgekv.uncopied import uncopied

if TYPE_CHECKING:
    from typing_extensions import Self

# Matroska keeps whole milliseconds: frame 4 of a 7 fps clip says 0.571 s where 4 / 7 is 0.5714 s.
TIME_TOLERANCE_S = 0.001
_LAST_K = 2.0**62  # boundary: a product of two floats may be infinite


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a reader stands."""

    index: int  # number of the frame in its source, bad ones included
    time_s: float  # since the first frame, rising


class Reader(Protocol):
    """All that differs between kinds of source. Stepping and decoding are apart, so that frames
    nobody wants cost as little as the backend allows."""

    num_bad_frames: int  # could not be decoded, so far

    def grab(self) -> Mark | None:
        """Step to the next frame that can be had; None when there is none left."""

    def retrieve(self) -> NDArray[np.uint8] | None:
        """(height, width, 3) RGB of the frame last grabbed; None, counted, when it is bad."""

    def close(self) -> None:
        """Let go of the file or device. May be called twice."""


@dataclass(frozen=True, slots=True)
class SourceStats:
    """What a source has done so far."""

    num_frames: int  # given to the user
    num_bad_frames: int  # could not be decoded, were skipped
    num_dropped_frames: int  # live only: due, but replaced by a newer one before the user came
    age_s: float  # live only: how old the last given frame was when it was given
    max_age_s: float


class FrameSampler:
    """Which frames are due at ``fps``: the first at or after each k / fps. None: every frame.

    A source slower than ``fps`` gives each of its frames once; boundaries without a frame of their
    own pass.
    """

    def __init__(self, fps: float | None) -> None:
        if fps is not None and not 0 < fps < math.inf:
            raise ValueError(f"fps must be a positive number or None for every frame, got {fps!r}")
        self._fps = fps
        self._tolerance_s = 0.0 if fps is None else min(TIME_TOLERANCE_S, 0.25 / fps)
        self._next_k = 0

    def is_due(self, time_s: float) -> bool:
        return self._fps is None or time_s + self._tolerance_s >= self._next_k / self._fps

    def take(self, time_s: float) -> None:
        """The due frame at ``time_s`` was good: wait for the next boundary after it."""
        if self._fps is not None:
            passed = math.floor(min((time_s + self._tolerance_s) * self._fps, _LAST_K))
            self._next_k = max(self._next_k, passed) + 1


@uncopied("open it once more")
class VideoSource(ABC):
    """An iterator of ``Frame`` and a context manager. Closing it ends the iteration."""

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def __next__(self) -> Frame:
        """The next frame that is due. Raises SourceError when a live source is lost."""

    @abstractmethod
    def stats(self) -> SourceStats:
        """Counts up to now. Works after ``close`` too."""

    @abstractmethod
    def stop(self) -> None:
        """End the iteration, waiting for nothing: what a signal handler may call, which runs in
        the middle of whatever the program does, a read of this source perhaps."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the file or device. May be called twice, and from another thread; waits for
        the read in progress, so never from a signal handler."""


class SequentialSource(VideoSource):
    """A source that waits for its user: every due frame is given, however slow the user is.

    The first frame is read at once, so that a source without one fails where it is opened.
    """

    def __init__(self, reader: Reader, name: str, *, fps: float | None) -> None:
        self._reader = reader
        self._num_frames = 0
        self._closed = False
        self._reading = threading.Lock()  # OpenCV crashes when it is closed while it reads
        self._first: Frame | None = None
        try:
            self._sampler = FrameSampler(fps)
            self._first = self._read()
            if self._first is None:
                bad = reader.num_bad_frames
                found = f"{bad} that cannot be decoded" if bad else "none"
                raise SourceError(f"{name}: expected at least one readable frame, found {found}")
        except BaseException:
            self.close()
            raise

    def __next__(self) -> Frame:
        with self._reading:
            frame, self._first = self._first, None
            if frame is None and not self._closed:
                frame = self._read()
            if frame is None or self._closed:
                raise StopIteration
            self._num_frames += 1
            return frame

    def _read(self) -> Frame | None:
        while not self._closed and (mark := self._reader.grab()) is not None:
            if not self._sampler.is_due(mark.time_s):
                continue
            pixels = self._reader.retrieve()
            if pixels is not None:
                self._sampler.take(mark.time_s)
                return Frame(pixels, mark.time_s, mark.index)
        return None

    def stats(self) -> SourceStats:
        return SourceStats(self._num_frames, self._reader.num_bad_frames, 0, 0.0, 0.0)

    def stop(self) -> None:
        self._closed = True

    def close(self) -> None:
        self.stop()
        with self._reading:
            self._first = None
            self._reader.close()
