"""``edgekv run --config``: the file's values are the defaults, options win over them."""

from __future__ import annotations

import json
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
