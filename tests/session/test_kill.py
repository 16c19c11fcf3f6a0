"""Kill -9 while a session is being saved: what is opened afterwards is whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.session.saver import last_number

NUM_KILLS = 30


def test_the_file_is_whole_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.session", random.Random(0)  # noqa: S311 - to be repeatable
    command = [sys.executable, "-m", "tests.session.saver", str(path)]
    before, num_advances, litter = 0, 0, 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forker:
        assert forker.stdin is not None
        assert forker.stdout is not None
        for kill in range(NUM_KILLS):
            forker.stdin.write("go\n")
            forker.stdin.flush()
            writer = int(forker.stdout.readline())
            # The first is killed at once, the second has completed a save, the others: who knows.
            time.sleep(0 if kill == 0 else rng.uniform(0, 0.06))
            while kill == 1 and not path.exists() and Path(f"/proc/{writer}").exists():
                time.sleep(0.001)
            os.kill(writer, signal.SIGKILL)
            while Path(f"/proc/{writer}").exists():
                time.sleep(0.001)
            now = last_number(path)
            assert now >= before, "the file went back to an earlier save"
            num_advances += now > before
            before = now
            left = [other for other in tmp_path.iterdir() if other != path]
            assert len(left) <= 1, "what the killed before left goes with the next save"
            litter += len(left)
    assert num_advances, "no save was ever completed"
    assert litter, "no kill fell into a save"
