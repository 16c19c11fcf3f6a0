"""Fixtures shared by all tests: the demo model, and frames that all differ.

Hypothesis draws the same examples in every run, so that what passes here passes elsewhere, however
slow the machine. ``pytest --hypothesis-profile search`` draws new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

import edgekv

# Times are for benches: a loaded machine must not fail a test.
settings.register_profile(
    "search", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=False
)
settings.register_profile("edgekv", settings.get_profile("search"), derandomize=True)
settings.load_profile("edgekv")

# Some tests import ONNX Runtime themselves.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

Pixels = NDArray[np.uint8]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With ``--dist loadgroup``: tests of one exported model, or of one built plugin, run in one
    worker, which makes it once."""
    for item in items:
        group = _made_together(item)
        if group is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))


def _made_together(item: pytest.Item) -> str | None:
    folder, name = item.path.parent.name, item.path.stem
    if folder == "plugin":
        return folder
    if folder != "export":
        return None
    if name.startswith("test_cross"):
        return "cross"
    params = getattr(item, "callspec", None)
    made = {} if params is None else params.params
    return next((made[key] for key in ("case", "pair", "bundle", "name") if key in made), name)


@pytest.fixture(scope="session")
def bundle_path() -> Path:
    return edgekv.demo_bundle_path()


@pytest.fixture(scope="session")
def model(bundle_path: Path) -> Iterator[edgekv.Model]:
    """The demo model with one pool for the whole run: tests must give back every page."""
    with edgekv.load(bundle_path, kv_budget="4MiB", num_threads=1) as loaded:
        yield loaded


@pytest.fixture
def session(model: edgekv.Model) -> Iterator[edgekv.Session]:
    with model.session() as opened:
        yield opened


@pytest.fixture(scope="session")
def picture() -> Callable[[int], Pixels]:
    """Picture number k: noise of its own, (64, 64, 3) uint8."""

    def draw(k: int) -> Pixels:
        return np.random.default_rng(k).integers(0, 256, (64, 64, 3), dtype=np.uint8)

    return draw


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading frames back is taken to be quicker than encoding, and not measured."""
    from edgekv.tier.store import Tier

    monkeypatch.setattr(Tier, "time_reading", lambda *_: 1e-9)


@pytest.fixture
def small_clip(tmp_path: Path) -> Path:
    """Ten frames of a moving dot, 5 fps, mp4."""
    import cv2  # here: the operator's tests run where there is none

    path = tmp_path / "small.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 5.0, (96, 80))
    for k in range(10):
        frame = np.full((80, 96, 3), 60, np.uint8)
        cv2.circle(frame, (10 + 7 * k, 40), 12, (40, 40, 220), -1)
        writer.write(frame)
    writer.release()
    return path
