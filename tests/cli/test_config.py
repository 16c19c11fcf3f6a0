"""``edgekv run --config``: the file's values are the defaults, options win over them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edgekv.cli import main

CONFIG = """
[load]
device = "cpu"
kv_budget = "1MiB"
kv_dtype = "float32"
max_step_tokens = 64
num_threads = 1

[run]
fps = 1
max_new_tokens = 3
"""


def summary(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--format", "jsonl", "--duration", "10s", "--prompt", "What?", *arguments])
    output = capsys.readouterr()
    assert ended.value.code == 0, output.err
    last: dict[str, Any] = json.loads(output.out.splitlines()[-1])
    return last


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "device.toml"
    path.write_text(CONFIG)
    return str(path)


def test_the_file_says_what_is_not_given(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = summary(capsys, "--kv-budget", "1MiB", "--fps", "2")
    from_file = summary(capsys, "--config", config)
    assert from_file["frames"] == 10
    assert plain["frames"] == 20
    pages = [run["kv_pages"]["total"] for run in (plain, from_file)]
    assert pages == [51, 25]  # fp32 pages are twice as large


def test_options_win(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = summary(capsys, "--config", config, "--fps", "2", "--kv-dtype", "float16")
    assert given["frames"] == 20
    assert given["kv_pages"]["total"] == 51


def test_a_wrong_file_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "device.toml"
    for text, message in (
        ("[load]\nfps = 3", "[load] has "),
        ("[run]\nfps = 'x'", "cannot be 'x'"),
    ):
        path.write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["run", "--config", str(path)])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "--config", str(tmp_path / "none.toml")])
    assert "No such file" in capsys.readouterr().err


def test_what_the_settings_take_is_said_first(
    config: str, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "--config", config, "--duration", "1s", "--format", "jsonl"]
    for _ in range(2):  # nothing of it stays behind
        with pytest.raises(SystemExit) as ended:
            main(command)
        said = capfd.readouterr().err
        assert ended.value.code == 0, said
        takes = r"[\d.]+ MiB \([\d.]+ MiB model and workspace, 1000\.0 KiB KV pool\), \d+ % of the"
        assert re.fullmatch(rf"{re.escape(config)}: demo takes {takes} .* available here\n", said)
    with pytest.raises(SystemExit):
        main(["run", "--duration", "1s", "--format", "jsonl", "--kv-budget", "1MiB"])
    assert capfd.readouterr().err == ""


def test_settings_of_a_larger_device_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.toml"
    path.write_text('[load]\nkv_budget = "900GiB"')
    with pytest.raises(SystemExit) as ended:
        main(["run", "--config", str(path)])
    said = capsys.readouterr().err
    assert (ended.value.code, len(said.splitlines())) == (1, 1)
    assert f"{path}: demo needs 900.1 GiB" in said
    assert "would fit, with 5 % to spare; --kv-budget wins over the file" in said


def test_the_demo_clip_plays_at_its_own_pace(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings for a camera's pace leave its answers right."""
    command = ["run", "--config", config, "--retain", "window", "--format", "jsonl"]
    command += ["--max-new-tokens", "32"]
    with pytest.raises(SystemExit) as ended:
        main(command)
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    assert json.loads(shown.out.splitlines()[-1])["frames"] == 100
    with pytest.raises(SystemExit) as ended:
        main([*command, "--fps", "1"])
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert "wrong about the demo clip; without options all are right" in shown.err
    assert json.loads(shown.out.splitlines()[-1])["frames"] == 50


@pytest.mark.parametrize("how", ["--retain", "--tier", "--save"])
def test_answers_of_a_longer_memory_are_not_called_wrong(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a"
    given = {"--retain": "uniform", "--tier": str(path), "--save": str(path)}[how]
    if how == "--save":
        with pytest.raises(SystemExit):
            main(["run", how, given, "--duration", "1s"])
        assert "not checked" not in capsys.readouterr().err, "it was new"
    with pytest.raises(SystemExit) as ended:
        main(["run", how, given, "--format", "jsonl", "--duration", "5s"])
    shown = capsys.readouterr()
    assert ended.value.code == 0
    assert "answers are not checked: " in shown.err
    assert "clip" in shown.err
    assert '"expected"' not in shown.out
    assert json.loads(shown.out.splitlines()[-1])["answers"] > 0


def test_doctor_judges_the_settings(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--config", config])
    assert ended.value.code == 0
    assert "25 pages of 16 tokens in float32" in " ".join(capsys.readouterr().out.split())
