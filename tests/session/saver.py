"""What the kill test kills: a writer that saves rounds 1, 2, 3, … to one file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekv.atomic_file import replacing
from edgekv.session_file import Block, SessionFile, write_session_file
from tests.killing import fork_writers

ROWS, CHUNKS = 4096, 32  # 1 MiB in chunks, so that kills fall between writes as well


def save(path: Path, number: int, *, die_at: int | None = None) -> None:
    """Save round ``number``, or be killed where its ``die_at``-th chunk would be written."""

    def chunks() -> Iterator[NDArray[np.int32]]:
        for chunk in range(CHUNKS):
            if chunk == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield np.full((ROWS // CHUNKS, 64), number, np.int32)

    blocks = {"rows": Block(np.dtype(np.int32), (ROWS, 64), chunks())}
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


def write(order: str) -> NoReturn:
    """Save round after round; a number as ``order`` says at which chunk of the second to die."""
    path = Path(sys.argv[1])
    first = last_number(path) + 1
    for number in count(first):
        die = number == first + 1 and order.isdecimal()
        save(path, number, die_at=int(order) if die else None)
    raise AssertionError("rounds have no end")


if __name__ == "__main__":
    fork_writers(write)
