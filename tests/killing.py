"""Writers that a test kills. One process forks them all: starting Python anew for each would take
most of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tests.waiting import wait_until


@contextmanager
def forker(module: str, path: Path) -> Generator[Callable[[str], int], None, None]:
    """Runs ``python -m MODULE PATH``, whose main part is ``fork_writers``. What this gives, called
    with an order, is the process id of a new writer that has been told."""
    command = [sys.executable, "-m", module, str(path)]
    writers: list[int] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def fork(order: str) -> int:
            process.stdin.write(f"{order}\n")
            process.stdin.flush()
            writers.append(int(process.stdout.readline()))
            return writers[-1]

        try:
            yield fork
        finally:
            if writers and lives(writers[-1]):  # the test has failed before it killed it
                kill(writers[-1])


def fork_writers(write: Callable[[str], NoReturn]) -> None:
    """For each line on stdin, fork a process that writes until it is killed, and say its id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for order in sys.stdin:
        if child := os.fork():
            print(child, flush=True)
        else:
            write(order.strip())


def lives(process_id: int) -> bool:
    return Path(f"/proc/{process_id}").exists()


def kill(process_id: int) -> None:
    os.kill(process_id, signal.SIGKILL)
    wait_until(lambda: not lives(process_id))
