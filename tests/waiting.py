"""Waiting for what another thread or process does, however slow the machine: only a hang fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANG_S = 300.0  # longer than anything a test waits for takes


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {HANG_S:g} s"
        time.sleep(0.001)


def in_another_thread(use: Callable[[], T]) -> T:
    """What ``use`` gives there, unless it waits for what this thread holds."""
    given: list[T] = []
    thread = threading.Thread(target=lambda: given.append(use()), daemon=True)
    thread.start()
    thread.join(HANG_S)
    assert not thread.is_alive(), "it waits for ever"
    (result,) = given
    return result
