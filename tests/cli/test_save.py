"""``edgekv run --save``: the same command line goes on where the last run was cut off."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgekv.cli import main
from edgekv.tier.file import HEADER_BYTES
from tests.waiting import HANG_S, wait_until

QUESTION = "What do you see?"


def run(capfd: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["run", *map(str, arguments), "--prompt", QUESTION, "--max-new-tokens", "2"])
    shown = capfd.readouterr()
    assert ended.value.code == code, shown.err
    return shown.out, shown.err


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_second_run_goes_on_from_the_first(
    capfd: pytest.CaptureFixture[str], clip: Path, tmp_path: Path
) -> None:
    path = tmp_path / "street.session"
    common = (clip, "--save", path, "--format", "jsonl", "--every", "4s")
    first = lines(run(capfd, *common)[0])
    assert [line["time_s"] for line in first[:-1]] == [4.0, 8.0]
    assert (first[-1]["saves"], first[-1]["context_frames"]) == (1, 20)
    second = lines(run(capfd, *common, "--kv-budget", "2MiB")[0])
    assert second[0] == {"type": "event", "event": "restored", "time_s": 9.5, "count": 20}
    assert [line["time_s"] for line in second if line["type"] == "answer"] == [13.5, 17.5]
    summary = second[-1]
    assert summary["frames"] == 20
    assert summary["context_frames"] + summary["evicted_frames"] == 40
    text, _ = run(capfd, clip, "--save", path, "--duration", "1s", "--save-every", "500ms")
    assert "00:19.0" in text
    kept = summary["context_frames"]
    assert f"{kept} frames in the saved session, which goes on from here" in text
    # A full window lets four go at once: what left in earlier runs is not counted.
    assert summary["evicted_frames"] > 4
    assert "2 frames, 1 answer," in text
    assert ", 4 frames let go" in text
    fresh = lines(run(capfd, *common, "--no-restore")[0])
    assert [line["type"] for line in fresh] == ["answer", "answer", "summary"]
    assert fresh[-1]["context_frames"] == 20


def test_one_is_not_several(capfd: pytest.CaptureFixture[str], clip: Path, tmp_path: Path) -> None:
    common = (clip, "--save", tmp_path / "a.session", "--duration", "400ms")
    assert "1 frame, 1 answer," in run(capfd, *common)[0]
    text, _ = run(capfd, *common)
    assert "1 frame in the saved session, which goes on from here" in text


def test_what_cannot_be_continued_gets_one_line(
    capfd: pytest.CaptureFixture[str], clip: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.session"
    plain = tmp_path / "plain.session"
    run(capfd, clip, "--save", path, "--duration", "1s", "--instructions", "Watch.")
    run(capfd, clip, "--save", plain, "--duration", "1s")
    same = ("--save", path, "--instructions", "Watch.")
    for arguments, said, code in (
        (("--save", path), "saved with --instructions 'Watch.'; give the same", 1),
        (
            ("--save", plain, "--retain", "uniform"),
            "saved with --retain window; give the same",
            1,
        ),
        (("--save", tmp_path), "is a directory", 2),
        (("--save", clip), "clip.mp4: not a saved session", 1),
        ((*same, "--tier", tmp_path / "t"), "saved without a tier", 1),
        (("--save", clip, "--no-restore"), "holds something else than a session", 1),
        (("--save", tmp_path / "no" / "a.session"), "no does not exist", 2),
        (("--save", path, "--save-every", "0s"), "duration must be positive", 2),
    ):
        before = path.read_bytes()
        _, error = run(capfd, clip, *arguments, code=code)
        assert said in error
        assert len(error.splitlines()) == 1
        assert path.read_bytes() == before


def test_a_run_that_cannot_begin_leaves_the_log_of_another(
    capfd: pytest.CaptureFixture[str], clip: Path, tmp_path: Path
) -> None:
    path, log = tmp_path / "a.session", tmp_path / "a.trace"
    run(capfd, clip, "--save", path, "--trace", log, "--duration", "1s")
    before = log.read_bytes()
    (tmp_path / "no.mp4").touch()
    run(capfd, tmp_path / "no.mp4", "--trace", log, code=1)
    run(capfd, clip, "--save", path, "--retain", "uniform", "--trace", log, code=1)
    assert log.read_bytes() == before


def test_a_session_goes_on_with_the_tier_it_was_saved_with(
    capfd: pytest.CaptureFixture[str], clip: Path, tmp_path: Path
) -> None:
    path, tier = tmp_path / "a.session", tmp_path / "a.tier"
    same = (clip, "--save", path, "--kv-budget", "320KiB")
    common = (*same, "--duration", "1s")
    run(capfd, *common, "--tier", tier, "--tier-limit", "1MiB")
    before = path.read_bytes()
    # A longer life of the session went on storing there, and was cut off before it was saved.
    run(capfd, *same)
    path.write_bytes(before)
    stored = tier.read_bytes()
    assert len(stored) > HEADER_BYTES
    for other in (
        ("--tier", tmp_path / "b.tier", "--tier-limit", "1MiB"),
        ("--tier", tier, "--tier-limit", "2MiB"),
    ):
        _, error = run(capfd, *common, *other, code=1)
        assert f"saved with --tier {tier} --tier-limit {2**20}; give these, or neither" in error
        assert len(error.splitlines()) == 1
        assert (path.read_bytes(), tier.read_bytes()) == (before, stored)
    assert not (tmp_path / "b.tier").exists()
    (tmp_path / "same").symlink_to(tmp_path)
    run(capfd, *common, "--tier", tmp_path / "same" / "a.tier", "--tier-limit", str(2**20))
    run(capfd, *common)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_can_be_continued(
    capfd: pytest.CaptureFixture[str], clip: Path, tmp_path: Path, end: signal.Signals
) -> None:
    path = tmp_path / "a.session"
    command = [
        sys.executable, "-m", "edgekv", "run", clip, "--prompt", QUESTION, "--every", "1s",
        "--realtime", "--format", "jsonl", "--save", path, "--save-every", "500ms",
    ]  # fmt: skip
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: path.exists() or process.poll() is not None)
        process.send_signal(end)
        rest, _ = process.communicate(timeout=HANG_S)
    if end != signal.SIGKILL:
        assert process.returncode == 0
        assert json.loads(rest.splitlines()[-1])["saves"] >= 2
    shown, _ = run(capfd, clip, "--save", path, "--duration", "1s", "--format", "jsonl")
    assert lines(shown)[0]["event"] == "restored"
    assert list(tmp_path.iterdir()) == [path]
