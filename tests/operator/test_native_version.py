"""A library that was built for other Python code is refused in one line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgekv.cache import PageAllocator
from edgekv.errors import ExecutorError
from edgekv.native import library


@pytest.fixture
def fresh() -> Iterator[None]:
    library._library.cache_clear()
    yield
    library._library.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "VERSION", library.VERSION + 1)
    with pytest.raises(ExecutorError, match=r"of another version .*: run 'pip install \.' again$"):
        PageAllocator(4)


@pytest.mark.usefixtures("fresh")
def test_a_library_without_a_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.ctypes, "CDLL", lambda _: object())
    with pytest.raises(ExecutorError, match="of another version"):
        PageAllocator(4)
