"""``edgekv run`` as a user calls it: in a process of its own, on files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgekv.cli import main
from tests.media.clips import write_clip
from tests.waiting import HANG_S

QUESTION = "What do you see?"


def edgekv(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgekv", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


@pytest.mark.parametrize(("suffix", "codec"), [(".mp4", "mp4v"), (".avi", "MJPG")])
def test_jsonl_has_answers_events_and_a_summary_and_nothing_else(
    tmp_path: Path, suffix: str, codec: str
) -> None:
    path = write_clip(tmp_path / f"clip{suffix}", codec, 10, 200)
    done = edgekv(
        "run", path, "--prompt", QUESTION, "--every", "4s", "--fps", 5, "--kv-budget", "1MiB",
        "--max-new-tokens", 4, "--format", "jsonl",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    answers = [line for line in lines if line["type"] == "answer"]
    assert [answer["time_s"] for answer in answers] == pytest.approx([4, 8, 12, 16], abs=0.11)
    assert all(answer["prompt"] == QUESTION for answer in answers)
    assert {line["type"] for line in lines[:-1]} == {"answer", "event"}
    summary = lines[-1]
    assert summary["type"] == "summary"
    assert summary["frames"] == 100
    assert summary["answers"] == len(answers)
    pages = summary["kv_pages"]
    assert pages["peak"] <= pages["total"]
    assert pages["live"] + pages["cached"] + pages["in_flight"] + pages["free"] == pages["total"]
    assert summary["kv_bytes"] <= 1 << 20
    evicted = sum(line["count"] for line in lines if line.get("event") == "evicted_frames")
    assert evicted == summary["evicted_frames"] > 50
    assert summary["context_frames"] + evicted == summary["frames"]


def test_text_shows_answers_with_their_times_and_the_figures(clip: Path) -> None:
    done = edgekv("run", clip, "--prompt", QUESTION, "--every", "4s", "--max-new-tokens", 3)
    assert done.returncode == 0, done.stderr
    assert f"00:04.0  {QUESTION}" in done.stdout
    assert f"00:08.0  {QUESTION}" in done.stdout
    assert "20 frames, 2 answers" in done.stdout
    assert "memory over time █" in done.stdout


def test_text_does_not_say_which_frames_leave_as_a_matter_of_course(clip: Path) -> None:
    done = edgekv(
        "run", clip, "--prompt", QUESTION, "--fps", 10, "--kv-budget", "256KiB",
        "--max-new-tokens", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "frames let go" in done.stdout
    assert "evicted" not in done.stdout


def test_several_prompts_and_a_duration(clip: Path) -> None:
    done = edgekv(
        "run", clip, "--prompt", "What do you see?", "--prompt", "Is there a red circle now?",
        "--every", "1s", "--duration", "3s", "--max-new-tokens", 2, "--format", "jsonl",
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    asked = [(line["time_s"], line["prompt"]) for line in lines if line["type"] == "answer"]
    assert [time_s for time_s, _ in asked] == [1.0, 1.0, 2.0, 2.0]
    assert len({prompt for _, prompt in asked}) == 2


def test_a_clip_shorter_than_the_interval_gets_one_answer(tmp_path: Path) -> None:
    short = write_clip(tmp_path / "short.mp4", "mp4v", 10, 5)
    done = edgekv("run", short, "--prompt", QUESTION, "--format", "jsonl", "--max-new-tokens", 2)
    kinds = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert kinds == ["answer", "summary"]


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["run", "{clip}"], "--prompt", 2),
        (["run", "{clip}", "--prompt", "x", "--every", "0s"], "duration must be positive", 2),
        (["run", "{clip}", "--prompt", "x", "--kv-budget", "much"], "size must look like", 2),
        (["run", "{clip}", "--prompt", "x", "--device", "gpu"], "'gpu' is not one of", 2),
        (
            ["run", "{clip}", "--prompt", "x", "--retain", "newest"],
            "Invalid value for '--retain'",
            2,
        ),
        (["run", "{clip}", "--prompt", "x", "--format", "xml"], "'xml' is not one of", 2),
        (["run", "{clip}", "--prompt", "x", "--kv-budget", "9" * 400], "positive and finite", 2),
        (["run", "{clip}", "--prompt", "x", "--every", "0." + "0" * 320 + "1s"], "duration", 2),
        (["run", "{clip}", "--prompt", "x", "--fps", "nan"], "not a finite number", 2),
        (["run", "{clip}", "--prompt", "x", "--fps", "inf"], "not a finite number", 2),
        (["run", "{clip}", "--prompt", "x", "--threads", "9" * 20], "not in the range", 2),
        (["run", "{clip}", "--fast"], "No such option", 2),
        (["walk"], "No such command 'walk'", 2),
        (["run", "missing.mp4", "--prompt", "x"], "missing.mp4: no such file", 1),
        (["run", "missing.mp4"], "missing.mp4: no such file", 1),
        (["run", "{text}", "--prompt", "x"], "text.mp4", 1),
        (["run", "{empty}", "--prompt", "x"], "empty.mp4", 1),
        (["run", "{clip}", "--prompt", "x", "--model", "{text}"], "expected a bundle folder", 1),
        (["run", "{clip}", "--prompt", "x", "--device", "tensorrt"], "cannot run here", 1),
        (["run", "{clip}", "--prompt", "x", "--kv-budget", "1KiB"], "one page takes", 1),
        (["run", "{clip}", "--prompt", "x", "--kv-budget", "100KiB"], "would do", 1),
        (["run", "{clip}", "--prompt", "{long}"], "does not fit", 1),
        (["run", "{clip}", "--prompt", " "], "question must not be empty", 2),
        (["run", "{clip}", "--prompt", "\udcff"], "question must be Unicode text", 2),
        (["run", "--save-every", "5s"], "--save-every needs --save", 2),
        (["run", "--no-restore"], "--no-restore needs --save", 2),
        (["run", "--tier-limit", "5MiB"], "--tier-limit needs --tier", 2),
        (["run", "--tier", "a", "--retain", "keep"], "with --retain keep no frame leaves", 2),
        (["run", "--trace-limit", "5MiB"], "--trace-limit needs --trace", 2),
        (["run", "--save", "a", "--tier", "./a"], "--save and --tier need a file each, got a", 2),
        (["run", "{clip}", "--prompt", "x", "--model", "{folder}"], "{folder}: bundle.json: ", 1),
        (["run", "{clip}", "--prompt", "x", "--save", "{clip}"], "{clip}: not a saved session", 1),
        (["trace", "{text}", "-o", "page.pdf"], "must be named .html or .png, got page.pdf", 2),
        (["bench", "walk"], "No such command 'walk', expected accuracy, alloc, ", 2),
        (["bench", "relocate", "--scheme", "x"], "expected one of all, model, ", 2),
        (["run", "{clip}", "--prompt", "x", "--model", "a" * 5000], "of at most 4095 bytes", 2),
        (["doctor", "a" * 300], "255 a name", 2),
        (["doctor", "{text}"], "expected a bundle folder", 1),
    ],
)
def test_bad_use_gets_one_line_and_its_exit_code(
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    clip: Path,
    arguments: list[str],
    said: str,
    code: int,
) -> None:
    (tmp_path / "text.mp4").write_text("this is not a film")
    (tmp_path / "empty.mp4").touch()
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "bundle.json").write_text("{}")
    named = {
        "clip": clip,
        "text": tmp_path / "text.mp4",
        "empty": tmp_path / "empty.mp4",
        "long": "word " * 2000,
        "folder": folder,
    }
    with pytest.raises(SystemExit) as ended:
        main([argument.format(**named) for argument in arguments])
    shown = capfd.readouterr().err
    assert ended.value.code == code, shown
    assert said.format(**named) in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize("group", [[], ["bench"]])
def test_a_group_alone_shows_its_commands(
    capsys: pytest.CaptureFixture[str], group: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(group)
    assert ended.value.code == 0
    commands = capsys.readouterr().out.partition("Commands:\n")[2]
    assert commands
    assert "..." not in commands  # cut short


def test_doctor_says_what_runs_here_and_that_the_demo_fits() -> None:
    done = edgekv("doctor")
    assert done.returncode == 0, done.stderr
    for word in ("cpu", "ready", "tensorrt", "no:", "KV pool", "fits"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("kv_budget", "said", "code"),
    [
        ("1MiB", "51 pages - 1 pinned start - 9 for a question and its answer = 41: 41", 0),
        ("1MiB", "528 tokens - 2 pinned start - 128 for a question and its answer = 398: 24", 0),
        ("1MiB", "24 frames fit, bounded by the model's window; when one more comes, 4 leave", 0),
        ("400KiB", "10 frames fit, bounded by the pool (--kv-budget); when one more comes, 2", 0),
        ("100KiB", "one session none in this pool: 5 of 5 pages can be had", 1),
        ("100KiB", "MiB: fits in memory", 1),
        ("512GiB", "GiB: does not fit in memory", 1),
    ],
)  # fmt: skip
def test_doctor_shows_how_many_frames_fit(
    capsys: pytest.CaptureFixture[str], kv_budget: str, said: str, code: int
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--kv-budget", kv_budget])
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == code
    assert said in shown


def test_doctor_names_the_folder_and_leaves_no_blanks_behind(
    capsys: pytest.CaptureFixture[str], bundle_path: Path
) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", str(bundle_path)])
    lines = capsys.readouterr().out.splitlines()
    assert f"bundle demo in {bundle_path}" in lines
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize("given", [["demo"], ["--kv-budget", "1KiB"]])
def test_doctor_refuses_what_it_was_given_before_it_reports(
    capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *given])
    assert (ended.value.code, capsys.readouterr().out) == (1, "")


@pytest.mark.parametrize("moment_s", [0.0, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_the_summary_whatever_is_being_done(
    tmp_path_factory: pytest.TempPathFactory, number: signal.Signals, moment_s: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "long.mp4"
    if not path.exists():
        write_clip(path, "mp4v", 10, 3_000)
    command = [
        sys.executable, "-m", "edgekv", "run", path, "--prompt", QUESTION, "--every", "1s",
        "--fps", "10", "--threads", "1", "--max-new-tokens", "2", "--format", "jsonl",
    ]  # fmt: skip
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(moment_s)
    process.send_signal(number)
    try:
        rest, stderr = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert (process.returncode, stderr) == (0, "")
    assert json.loads((first + rest).splitlines()[-1])["type"] == "summary"


@pytest.mark.parametrize("output_format", ["text", "jsonl"])
def test_any_text_can_be_written_in_any_encoding(tmp_path: Path, output_format: str) -> None:
    short = write_clip(tmp_path / "short.mp4", "mp4v", 10, 3)
    command = [
        sys.executable, "-m", "edgekv", "run", str(short), "--prompt", "été 日本",
        "--max-new-tokens", "1", "--format", output_format,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        command, capture_output=True, env=environment, timeout=HANG_S, check=False, encoding="ascii"
    )
    assert (done.returncode, done.stderr) == (0, "")
    if output_format == "jsonl":
        assert json.loads(done.stdout.splitlines()[0])["prompt"] == "été 日本"


def test_questions_of_the_demo_clip_are_not_asked_before_their_time() -> None:
    done = edgekv("run", "--duration", "1s", "--kv-budget", "1MiB", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()] == ["summary"]


@pytest.mark.parametrize("place", ["here", "1.2.3.4:", "70000", "127.0.0.1:-1"])
def test_a_place_for_metrics_that_is_none_is_a_usage_error(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--metrics", place])
    assert stopped.value.code == 2
    assert f"got '{place}'" in capsys.readouterr().err


def test_where_metrics_are_served_is_said_beside_the_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["run", "--metrics", "0", "--duration", "1s", "--format", "jsonl"]
    with pytest.raises(SystemExit):
        main([*command, "--kv-budget", "1MiB", "--threads", "1"])
    shown = capsys.readouterr()
    assert re.search(r"^edgekv run: metrics on http://127\.0\.0\.1:\d+/metrics$", shown.err, re.M)
    assert all(json.loads(line) for line in shown.out.splitlines())


def test_still_frames_are_skipped_and_counted(tmp_path: Path) -> None:
    """Five seconds of movement, then fifteen in which nothing moves."""
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (96, 80))
    for k in range(200):
        frame = np.full((80, 96, 3), 60, np.uint8)
        cv2.circle(frame, (10 + min(k, 50), 40), 12, (40, 40, 220), -1)
        writer.write(frame)
    writer.release()
    run = ("run", path, "--prompt", QUESTION, "--every", "10s", "--format", "jsonl")
    plain, skipping = (
        [json.loads(line) for line in done.stdout.splitlines()]
        for done in (edgekv(*run), edgekv(*run, "--skip-still", "5s"))
    )
    assert plain[-1]["still_frames"] == 0
    # 40 frames at 2 fps; of 30 still ones the first and one every five seconds are taken.
    assert skipping[-1]["frames"] == plain[-1]["frames"] == 40
    assert 24 <= skipping[-1]["still_frames"] <= 27
    assert skipping[-1]["duration_s"] == plain[-1]["duration_s"]
    times = [[a["time_s"] for a in lines if a["type"] == "answer"] for lines in (plain, skipping)]
    assert times[0] == times[1]
