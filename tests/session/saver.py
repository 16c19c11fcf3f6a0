"""A process that the kill test kills. For each line on stdin it forks a writer that saves rounds
1, 2, 3, … to one file until it is killed, and says the writer's process id."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path

import numpy as np

from edgekv.atomic_file import replacing
from edgekv.session_file import Block, SessionFile, write_session_file

ROWS, CHUNKS = 4096, 32  # 1 MiB in chunks, so that kills fall between writes as well


def save(path: Path, number: int) -> None:
    chunks = (np.full((ROWS // CHUNKS, 64), number, np.int32) for _ in range(CHUNKS))
    blocks = {"rows": Block(np.dtype(np.int32), (ROWS, 64), chunks)}
    with replacing(path) as file:
        write_session_file(file, {"number": number}, blocks)


def last_number(path: Path) -> int:
    """The round an intact file is of, 0 when there is none. Raises on anything else."""
    if not path.exists():
        return 0
    with SessionFile(path) as file:
        number = file.meta["number"]
        assert isinstance(number, int)
        assert (file.array("rows") == number).all()
    return number


if __name__ == "__main__":
    target = Path(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        if child := os.fork():
            print(child, flush=True)
        else:
            for number in count(last_number(target) + 1):
                save(target, number)
