"""Kill -9 while a session is being saved: what is opened afterwards is whole."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.killing import forker, kill, lives
from tests.session.saver import CHUNKS, last_number
from tests.waiting import wait_until

NUM_KILLS = 30


def test_the_file_is_whole_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.session", random.Random(0)  # noqa: S311 - to be repeatable
    before = 0
    with forker("tests.session.saver", path) as fork:
        for number in range(NUM_KILLS):
            amid_a_save = number % 2 == 1
            if amid_a_save:  # its second: it kills itself there, whatever the machine's speed
                writer = fork(str(rng.randrange(CHUNKS)))
                wait_until(lambda writer=writer: not lives(writer))
            else:  # the first at once, the others: who knows
                writer = fork("never")
                time.sleep(0 if number == 0 else rng.uniform(0, 0.06))
                kill(writer)
            now = last_number(path)
            assert now >= before, "the file went back to an earlier save"
            left = [other for other in tmp_path.iterdir() if other != path]
            assert len(left) <= 1, "what the killed before left goes with the next save"
            if amid_a_save:
                assert (now, len(left)) == (before + 1, 1)
            before = now
