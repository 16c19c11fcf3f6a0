"""Ctrl-C before anything runs: no traceback, whatever a library being imported made of it."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from edgekv.cli import main
from tests.waiting import HANG_S


def exit_code_of(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> object:
    """What the command ends with when importing a subcommand raises ``error``."""

    def import_module(_: str) -> NoReturn:
        raise error

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    return end.value.code


def test_ctrl_c_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = ImportError("initialization failed")
    broken.__cause__ = KeyboardInterrupt()
    for error in (KeyboardInterrupt(), broken):
        assert exit_code_of(error, monkeypatch) == 130
    assert capsys.readouterr().err.strip() == ""


def test_a_library_that_cannot_be_imported_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match="no such library"):
        exit_code_of(ImportError("no such library"), monkeypatch)


def test_ctrl_c_ends_quietly_while_the_command_itself_is_imported(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-m", "edgekv", "doctor"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
