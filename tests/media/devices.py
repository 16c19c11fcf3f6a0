"""A camera, and its time, that a test plays: they go on when the test lets them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from edgekv.media.live import LiveSource
from edgekv.media.source import Mark
from tests.media import clips
from tests.waiting import HANG_S


class Device:
    """A camera that steps when the test lets it, and fails how the test wants."""

    def __init__(self, num_frames: int, *, at_end: Callable[[], None] | None = None) -> None:
        self.num_bad_frames = 0
        self.steps = threading.Semaphore(0)
        self.runs_freely = False
        self.closed_by: threading.Thread | None = None
        self.num_retrieved = 0
        self._num_frames = num_frames
        self._at_end = at_end
        self._index = -1

    def grab(self) -> Mark | None:
        if self._index + 1 == self._num_frames:
            if self._at_end is not None:
                self._at_end()
            return None
        if not self.runs_freely and not self.steps.acquire(timeout=HANG_S):
            return None
        self._index += 1
        return Mark(self._index, self._index / 10)

    def retrieve(self) -> NDArray[np.uint8] | None:
        self.num_retrieved += 1
        return clips.draw(self._index)

    def close(self) -> None:
        self.closed_by = threading.current_thread()

    def step(self, num_frames: int) -> None:
        self.steps.release(num_frames)

    def run_freely(self) -> None:
        self.runs_freely = True
        self.step(1)


class Clock:
    """What a live source takes for the time: it stands still unless the test moves it on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("edgekv.media.live.time", self)

    def monotonic(self) -> float:
        return self.now_s


def live(device: Device, fps: float | None = None, timeout_s: float = HANG_S) -> LiveSource:
    return LiveSource(device, "the camera", fps=fps, timeout_s=timeout_s)


@contextmanager
def watching(
    device: Device, fps: float | None = None, timeout_s: float = HANG_S
) -> Iterator[LiveSource]:
    source = live(device, fps, timeout_s)
    try:
        yield source
    finally:
        device.step(1)  # or close would wait for a grab that nothing ends
        source.close()
