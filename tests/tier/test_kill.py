"""Kill -9 while frames go to a tier and the session saves itself: what is opened afterwards is
whole. ``EDGEKV_KILLS=50 pytest tests/tier/test_kill.py`` kills as often as one likes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.tier.streamer import NUM_SLOTS, Life, num_saved

NUM_KILLS = int(os.environ.get("EDGEKV_KILLS", "8"))


def test_tier_and_save_are_whole_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(0)  # noqa: S311 - to be repeatable
    command = [sys.executable, "-m", "tests.tier.streamer", str(tmp_path)]
    lives, most, num_seen = set(), 0, 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forker:
        assert forker.stdin is not None
        assert forker.stdout is not None
        for kill in range(NUM_KILLS):
            forker.stdin.write("go\n")
            forker.stdin.flush()
            writer = int(forker.stdout.readline())
            # The first may not even have begun, two have filled the tier, the others: who knows.
            time.sleep(0 if kill == 0 else rng.uniform(0, 0.6))
            while kill in (1, 2) and num_saved(tmp_path) < num_seen + 3 * NUM_SLOTS:
                time.sleep(0.01)
            os.kill(writer, signal.SIGKILL)
            while Path(f"/proc/{writer}").exists():
                time.sleep(0.001)
            if not (tmp_path / "session").exists():
                continue
            session = Life(tmp_path)
            most = max(most, session.check())
            assert len(session.numbers) >= num_seen, "the session went back to an earlier save"
            num_seen = len(session.numbers)
            lives.update(number // 10**6 for number in session.numbers)
            session.tier.close()
            left = {path.name for path in tmp_path.iterdir()} - {"session", "tier"}
            assert len(left) <= 1, "what the killed before left goes with the next save"
    assert most, "nothing could be recalled"
    assert len(lives) > 1, "no session went on from one life to the next"
