"""Kill -9 while a session is being saved: what is opened afterwards is whole."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.killing import forker, kill, lives
from tests.session.saver import last_number, save_or_die
from tests.waiting import wait_until

NUM_KILLS = 15


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "saved").mkdir()
    return tmp_path / "saved" / "a.session"


def check(path: Path, before: int) -> tuple[int, int]:
    """The round of the file, and how much else lies beside it."""
    now = last_number(path)
    assert now >= before, "the file went back to an earlier save"
    left = [other for other in path.parent.iterdir() if other != path]
    assert len(left) <= 1, "what the killed before left goes with the next save"
    return now, len(left)


def test_the_file_is_whole_wherever_in_a_save_it_is_killed(path: Path, tmp_path: Path) -> None:
    _, num_calls = (save_or_die(tmp_path / "counted", k, die_at=-1) for k in (1, 2))
    early = range(1, num_calls, num_calls // 10)
    before, outcomes = 0, set()
    with forker("tests.session.saver", path) as fork:
        for die_at in sorted({*early, *range(num_calls - 60, num_calls + 15)}):
            writer = fork(str(die_at))
            wait_until(lambda writer=writer: not lives(writer))
            now, num_left = check(path, before)
            outcomes.add((now - before, num_left))
            before = now
    assert outcomes == {(1, 0), (1, 1), (2, 0)}, "before, within and after the second save"


def test_the_file_is_whole_after_a_kill_at_any_time(path: Path) -> None:
    before, rng = 0, random.Random(0)  # noqa: S311 - to be repeatable
    with forker("tests.session.saver", path) as fork:
        for number in range(NUM_KILLS):
            writer = fork("go on")
            if number:  # the first is killed as early as it may be
                wait_until(lambda seen=before: last_number(path) > seen)
                time.sleep(rng.uniform(0, 0.06))
            kill(writer)
            before, _ = check(path, before)
    assert before >= NUM_KILLS - 1, "every writer but the first has saved"
