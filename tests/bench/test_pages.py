"""Choosing a page size: the choice, and figures that follow from the layout alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

import edgekv
from edgekv.bench.pages import Cost, recommend, run


def cost(utilisation: float, waste: float, ms: float) -> Cost:
    return Cost(utilisation, waste, 100, 100, ms, ms / 2, ms)


def test_a_size_that_wastes_too_much_of_a_frame_is_not_recommended() -> None:
    assert recommend({16: cost(0.9, 0.05, 2.0), 64: cost(0.8, 0.2, 1.0)}) == 16


def test_of_sizes_as_fast_as_each_other_the_best_used_and_then_the_largest() -> None:
    fine = {8: cost(0.95, 0.0, 1.04), 16: cost(0.93, 0.0, 1.0), 32: cost(0.93, 0.0, 1.0)}
    assert recommend(fine) == 8
    assert recommend({16: fine[16], 32: fine[32]}) == 32
    assert recommend(fine | {8: cost(0.95, 0.0, 1.2)}) == 32


def test_where_every_size_wastes_the_least_wasteful() -> None:
    assert recommend({64: cost(0.5, 0.4, 1.0), 128: cost(0.3, 0.7, 0.1)}) == 64


def test_figures_of_the_demo_model(bundle_path: Path) -> None:
    result = run(bundle_path, sizes=(8, 32), console=Console(quiet=True))
    with edgekv.load(bundle_path) as model:
        geometry = model.bundle.geometry
    frame = 16  # tokens
    assert result.figures["8_frame_waste"] == 0
    assert result.figures["32_frame_waste"] == 0.5
    assert result.figures["8_eviction_bytes"] == geometry.page_bytes * frame / geometry.page_size
    assert result.figures["32_eviction_bytes"] == 2 * result.figures["8_eviction_bytes"]
    assert 0.9 < result.figures["8_utilisation"] <= 1
    assert result.figures["32_utilisation"] < 0.6
    assert result.figures["recommended_page_size"] == 8
    for size in (8, 32):
        assert result.figures[f"{size}_decode_ms"] > 0
        assert result.figures[f"{size}_frame_ms"] > 0


def test_a_missing_bundle_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(edgekv.BundleError):
        run(tmp_path, console=Console(quiet=True))
