"""What the kill test kills: a writer that saves rounds 1, 2, 3, … to one file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekv.atomic_file import replacing
from edgekv.session_file import Block, SessionFile, write_session_file
from tests.killing import fork_writers

ROWS, CHUNKS = 4096, 8  # 1 MiB in chunks, so that kills fall between writes as well


def save(path: Path, number: int) -> None:
    def chunks() -> Iterator[NDArray[np.int32]]:
        for _ in range(CHUNKS):
            yield np.full((ROWS // CHUNKS, 64), number, np.int32)

    blocks = {"rows": Block(np.dtype(np.int32), (ROWS, 64), chunks())}
    with replacing(path) as file:
        write_session_file(file, {"number": number}, blocks)


def save_or_die(path: Path, number: int, die_at: int) -> int:
    """Save, or be killed before or after the so many-th call; how many calls there were."""
    seen = 0

    def look(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call", "c_return")
        if seen == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)
    try:
        save(path, number)
    finally:
        sys.setprofile(None)
    return seen


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
    """Save round after round; a number as ``order`` says at which call of the second to die."""
    path = Path(sys.argv[1])
    first = last_number(path) + 1
    for number in count(first):
        if order.isdecimal() and number == first + 1:
            save_or_die(path, number, int(order))
            os.kill(os.getpid(), signal.SIGKILL)  # it had fewer calls
        save(path, number)
    raise AssertionError("rounds have no end")


if __name__ == "__main__":
    fork_writers(write)
