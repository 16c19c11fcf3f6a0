"""What tests of sessions show them, ask them, and look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv import SamplingOptions
from edgekv.bundle import Bundle
from edgekv.tiering import TierStats

Picture = Callable[[int], NDArray[np.uint8]]
QUESTION = "What do you see?"
SHORT = SamplingOptions(max_new_tokens=4)


def load_pages(bundle_path: Path, num_pages: int, **options: Any) -> edgekv.Model:
    """The model with a pool of so many pages, in one thread."""
    page_bytes = Bundle.open(bundle_path).geometry.page_bytes
    return edgekv.load(bundle_path, kv_budget=num_pages * page_bytes, num_threads=1, **options)


def push(session: edgekv.Session, picture: Picture, first: int, count: int) -> None:
    """Pictures ``first`` and the following, two a second."""
    for k in range(first, first + count):
        session.push(picture(k), k / 2)


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[int]:
    """A list with one entry for each later call of ``owner.name``."""
    real, calls = getattr(owner, name), list[int]()

    def counted(*arguments: object) -> object:
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(owner, name, counted)
    return calls


def tier_of(session: edgekv.Session) -> TierStats:
    tier = session.stats().tier
    assert tier is not None
    return tier
