from __future__ import annotations

from pathlib import Path

import pytest

from tests.media.clips import write_clip


@pytest.fixture(scope="package")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten seconds, ten frames a second."""
    return write_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", "mp4v", 10, 100)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide and colourful the terminal is that the tests are called from."""
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
