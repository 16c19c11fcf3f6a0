"""Models and sessions that several modules of tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv.demo.needles import NeedleStream, needle_streams
from edgekv.executors.ort_cross import OrtEncoder
from tests.session.cross_bundle import save_cross_bundle


@pytest.fixture
def shared(bundle_path: Path) -> Iterator[edgekv.Model]:
    """A model with a pool of its own: nothing is in it yet."""
    with edgekv.load(bundle_path, kv_budget="4MiB", num_threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def alone(bundle_path: Path) -> Iterator[edgekv.Model]:
    """The same model, in which every context is computed anew."""
    with edgekv.load(
        bundle_path, kv_budget="4MiB", num_threads=1, share=False, encoder_cache=0
    ) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def needle() -> NeedleStream:
    return next(needle_streams(1, 120))


@pytest.fixture
def watched(model: edgekv.Model, needle: NeedleStream, tmp_path: Path) -> Iterator[edgekv.Session]:
    """A session that has seen a stream whose needle left long ago."""
    with model.session(tier=tmp_path / "a.tier", tier_limit="8MiB") as session:
        for k, pixels in enumerate(needle.clip.frames):
            session.push(pixels, k / 2)
        yield session


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cross")
    save_cross_bundle(root / "pictures", "pictures")
    save_cross_bundle(root / "sounds", "sounds")
    return root


@pytest.fixture
def seeing(bundles: Path) -> Iterator[edgekv.Model]:
    """Room for four of the largest pictures: each 6 states, 2 pages of 4."""
    with edgekv.load(bundles / "pictures", kv_budget="64KiB", num_threads=1) as model:
        yield model


@pytest.fixture
def hearing(bundles: Path) -> Iterator[edgekv.Model]:
    with edgekv.load(bundles / "sounds", kv_budget="64KiB", num_threads=1) as model:
        yield model


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each run of an encoder."""
    counted: list[int] = []
    encode = OrtEncoder.encode

    def counting(self: OrtEncoder, inputs: Any) -> NDArray[np.float32]:
        counted.append(1)
        return encode(self, inputs)

    monkeypatch.setattr(OrtEncoder, "encode", counting)
    return counted
