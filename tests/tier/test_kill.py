"""Kill -9 while frames go to a tier and the session saves itself: what is opened afterwards is
whole. ``EDGEKV_KILLS=50 pytest tests/tier/test_kill.py`` kills as often as one likes."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from tests.killing import forker, kill
from tests.tier.streamer import NUM_SLOTS, Life, num_saved
from tests.waiting import wait_until

NUM_KILLS = int(os.environ.get("EDGEKV_KILLS", "8"))


def test_tier_and_save_are_whole_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(0)  # noqa: S311 - to be repeatable
    lives, most, num_seen = set(), 0, 0
    with forker("tests.tier.streamer", tmp_path) as fork:
        for number in range(NUM_KILLS):
            writer = fork("live")
            # The first may not even have begun, two have filled the tier, the others: who knows.
            time.sleep(0 if number == 0 else rng.uniform(0, 0.6))
            if number in (1, 2):
                full = num_seen + 3 * NUM_SLOTS
                wait_until(lambda full=full: num_saved(tmp_path) >= full)
            kill(writer)
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
