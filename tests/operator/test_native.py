"""Where the compiled library is looked for."""

from __future__ import annotations

from importlib import metadata

import pytest

from edgekv import native
from edgekv.errors import ExecutorError


def test_library_is_found() -> None:
    assert native.ort_library_path().is_file()


def test_missing_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "__path__", [])
    monkeypatch.setattr(metadata, "files", lambda _: [])
    with pytest.raises(ExecutorError, match=r"is not built: run 'pip install \.'"):
        native.ort_library_path()
