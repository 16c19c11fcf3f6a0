"""What the README shows must run as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgekv.cli import cli

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_of_the_readme_runs(
    small_clip: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(small_clip.parent)
    small_clip.rename(small_clip.parent / "clip.mp4")
    (code,) = blocks("python")
    exec(compile(code, str(README), "exec"), {})  # noqa: S102 - our own words
    assert "SessionStats(num_frames=" in capsys.readouterr().out


def test_every_option_that_the_readme_names_exists() -> None:
    text = README.read_text(encoding="utf-8")
    assert "FIGURE" not in text
    lines = [line for line in text.splitlines() if line.startswith(".venv/bin/edgekv ")]
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        shown = CliRunner().invoke(cli, [words[0], "--help"]).output
        for word in words[1:]:
            if word.startswith("--"):
                assert word in shown, f"{line}: {word} is not an option"
