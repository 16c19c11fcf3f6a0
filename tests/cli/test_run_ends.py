"""However ``edgekv run`` ends, it ends with the summary of what happened until then, and with one
line on stderr for what went wrong, if anything did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import edgekv
from edgekv.cli import main
from edgekv.cli.output import JsonlOutput
from edgekv.stream_events import AnswerEvent, StreamEvent
from tests.cli.test_run import QUESTION
from tests.media.rtsp_server import RtspServer
from tests.waiting import HANG_S

FORMATS = pytest.mark.parametrize("output_format", ["text", "jsonl"])


def run(
    capfd: pytest.CaptureFixture[str], output_format: str, code: int, *arguments: object
) -> tuple[list[str], str]:
    """Lines on stdout, and all of stderr."""
    command = [
        "run", *map(str, arguments), "--prompt", QUESTION, "--max-new-tokens", "2",
        "--threads", "1", "--kv-budget", "1MiB", "--format", output_format,
    ]  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main(command)
    shown = capfd.readouterr()
    assert ended.value.code == code, shown.err
    return shown.out.splitlines(), shown.err


def check_summary(
    lines: list[str], output_format: str, *, frames: int | None = None, error: str = ""
) -> None:
    """The last of ``lines`` sum up a run, and know of the ``error`` on stderr."""
    if output_format == "jsonl":
        summaries = [line for line in map(json.loads, lines) if line["type"] == "summary"]
        assert summaries == [json.loads(lines[-1])]
        assert frames in (None, summaries[0]["frames"])
        assert error == (f"edgekv: {summaries[0]['error']}\n" if summaries[0]["error"] else "")
        return
    (first,) = (k for k, line in enumerate(lines) if "ms a frame (p95" in line)
    said = "1 frame, " if frames == 1 else f"{frames} frames, "
    assert frames is None or lines[first].startswith(said)
    assert lines[first + 1].startswith("KV pool: ")
    assert lines[first + 2].startswith("memory over time ")
    assert len(lines) <= first + 4


@FORMATS
@pytest.mark.parametrize(
    ("arguments", "frames"), [((), 20), (("--duration", "3s"), 6), (("--duration", "1ms"), 1)]
)
def test_at_the_end_of_what_was_asked_for(
    capfd: pytest.CaptureFixture[str],
    clip: Path,
    output_format: str,
    arguments: tuple[str, ...],
    frames: int,
) -> None:
    lines, error = run(capfd, output_format, 0, clip, *arguments)
    check_summary(lines, output_format, frames=frames)
    assert error == ""


@FORMATS
@pytest.mark.parametrize(
    ("arguments", "frames", "said"),
    [
        (("--retain", "keep", "--fps", "10"), 24, "the context is full"),
        (("--prompt", "word " * 2000), 5, "does not fit"),
    ],
)
def test_when_the_model_cannot_go_on(
    capfd: pytest.CaptureFixture[str],
    clip: Path,
    output_format: str,
    arguments: tuple[str, ...],
    frames: int,
    said: str,
) -> None:
    lines, error = run(capfd, output_format, 1, clip, *arguments)
    check_summary(lines, output_format, frames=frames, error=error)
    assert said in error
    assert len(error.splitlines()) == 1


@FORMATS
def test_when_the_source_is_lost(
    capfd: pytest.CaptureFixture[str], output_format: str, tmp_path: Path
) -> None:
    saved = tmp_path / "a.session"
    with RtspServer(20, "hang up", 20.0) as camera:
        lines, error = run(
            capfd, output_format, 1, camera.url, "--fps", "20", "--every", "100ms", "--save", saved
        )
    check_summary(lines, output_format, error=error)
    assert "lost after" in error
    assert len(error.splitlines()) == 1
    assert saved.exists()


@FORMATS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_when_it_is_told_to(
    clip: Path, tmp_path: Path, output_format: str, number: signal.Signals
) -> None:
    saved = tmp_path / "a.session"
    command = [
        sys.executable, "-m", "edgekv", "run", str(clip), "--prompt", QUESTION, "--every", "1s",
        "--realtime", "--threads", "1", "--save", str(saved), "--format", output_format,
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # whoever runs the tests
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(number)
        rest, error = process.communicate(timeout=HANG_S)
    assert (process.returncode, error) == (0, "")
    check_summary((first + rest).splitlines(), output_format)
    assert saved.exists()


def test_a_run_that_is_to_outlive_its_terminal_does(clip: Path) -> None:
    """As ``nohup`` has it."""
    command = [
        sys.executable, "-m", "edgekv", "run", str(clip), "--prompt", "x", "--every", "1s",
        "--realtime", "--duration", "2s", "--threads", "1", "--format", "jsonl",
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_IGN),
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        rest, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    check_summary((first + rest).splitlines(), "jsonl", frames=4)


@pytest.mark.usefixtures("quick_disk")
def test_when_its_files_are_taken_away(
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    clip: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream goes on, with a line for each file, and the summary knows of the tier."""
    tier, log = tmp_path / "a.tier", tmp_path / "a.log"
    shown = JsonlOutput.show

    def show(output: JsonlOutput, event: StreamEvent) -> None:
        shown(output, event)
        if isinstance(event, AnswerEvent) and tier.exists():
            tier.unlink()
            log.unlink()

    monkeypatch.setattr(JsonlOutput, "show", show)
    files = ("--tier", tier, "--trace", log)
    lines, _ = run(capfd, "jsonl", 0, clip, "--fps", "10", *files)
    check_summary(lines, "jsonl", frames=100)
    gone = "it was removed, renamed or replaced meanwhile"
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"frames are no longer stored: {tier}: {gone}",
        f"the trace {log} ends here: {gone}",
    ]
    assert json.loads(lines[-1])["tier"]["problem"] == f"{tier}: {gone}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--tier", "--trace"])
def test_when_another_run_has_its_file(
    capfd: pytest.CaptureFixture[str],
    clip: Path,
    model: edgekv.Model,
    tmp_path: Path,
    option: str,
) -> None:
    path = tmp_path / "a"
    with model.session(tier=path if option == "--tier" else None, tier_limit="1MiB"):
        model.trace(path if option == "--trace" else None)
        before = path.read_bytes()
        lines, error = run(capfd, "text", 1, clip, option, path)
        assert lines == []
        assert len(error.splitlines()) == 1
        assert str(path) in error
        assert "another" in error
        assert path.read_bytes() == before
        model.trace(None)


@FORMATS
@pytest.mark.parametrize("said", ["Broken pipe", "No space left on device"])
def test_where_stdout_takes_nothing_more(
    clip: Path, tmp_path: Path, output_format: str, said: str
) -> None:
    """There is no place for a summary then; the session is saved all the same."""
    saved = tmp_path / "a.session"
    if said == "Broken pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open("/dev/full", os.O_WRONLY)
    command = [
        sys.executable, "-m", "edgekv", "run", str(clip), "--prompt", "x", "--max-new-tokens", "1",
        "--threads", "1", "--save", str(saved), "--format", output_format,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=HANG_S, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, f"edgekv: stdout: {said}\n")
    assert saved.exists()


def test_without_a_stdout(clip: Path) -> None:
    command = f"{sys.executable} -m edgekv run {clip} --prompt x --format jsonl >&-"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    said = "edgekv: stdout: closed by whoever started edgekv\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.usefixtures("quick_disk")
def test_answers_say_which_frames_came_back_for_them(
    capfd: pytest.CaptureFixture[str], clip: Path, tmp_path: Path
) -> None:
    common = (clip, "--fps", "10", "--every", "2s", "--tier", tmp_path / "a.tier")
    lines, _ = run(capfd, "jsonl", 0, *common)
    shown: list[dict[str, Any]] = [json.loads(line) for line in lines]
    answers = [line for line in shown if line["type"] == "answer"]
    assert answers[0]["recalled"] == []
    assert sum(len(answer["recalled"]) for answer in answers) > 0
    for answer in answers:
        assert answer["recalled"] == sorted(set(answer["recalled"]))
        assert all(0 <= index < answer["frame"] for index in answer["recalled"])
        assert answer["recalled_times_s"] == [index / 10 for index in answer["recalled"]]
    assert sum(len(a["recalled"]) for a in answers) == shown[-1]["tier"]["recalled_frames"]
    text, _ = run(capfd, "text", 0, *common)
    assert any("recalled frame" in line for line in text)
