"""Ctrl-C before anything runs: no traceback, whatever a library being imported made of it."""

import importlib
from typing import NoReturn

import pytest

from edgekv.cli import main


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
