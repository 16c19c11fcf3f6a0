"""Every position scheme: pages that moved against keys stored unrotated, in a few evictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from edgekv.bench.relocate import BOUNDS, MODEL, compare, open_subject, run
from edgekv.bench.schemes import SCHEMES
from edgekv.config import Rotation
from edgekv.errors import ExecutorError

QUIET = Console(quiet=True)
EVICTIONS = 15  # more than a window


@pytest.mark.parametrize("scheme", [MODEL, *SCHEMES])
def test_moved_pages_equal_keys_stored_unrotated(scheme: str, bundle_path: Path) -> None:
    for dtype, bound in BOUNDS.items():
        with open_subject(bundle_path, scheme, dtype) as subject:
            live, forked = compare(subject, EVICTIONS, [1, 8, 15], scheme, QUIET)
        assert len(forked) == 3
        assert max(live.max(), *forked) <= bound


def worst_with(rotation: Rotation, scheme: str, bundle_path: Path) -> float:
    """Largest difference when the reference turns the last layer's keys by ``rotation``."""
    with open_subject(bundle_path, scheme, "float32") as subject:
        spoiled = replace(subject, rotations=[*subject.rotations[:-1], rotation])
        live, _ = compare(spoiled, EVICTIONS, [], scheme, QUIET)
    return float(live.max())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_key_turned_a_little_otherwise_is_noticed(scheme: str, bundle_path: Path) -> None:
    right = SCHEMES[scheme].rotations[-1]
    inv_freq = (right.inv_freq[0] * 1.02, *right.inv_freq[1:])
    wrong = Rotation(inv_freq, right.freq_axes, right.interleaved)
    assert worst_with(wrong, scheme, bundle_path) > 20 * BOUNDS["float32"]


def test_a_frequency_on_the_wrong_axis_is_noticed(bundle_path: Path) -> None:
    """Only where the axes move apart: elsewhere all of them shift alike."""
    right = SCHEMES["mrope-time"].rotations[-1]
    wrong = Rotation(right.inv_freq, (1, *right.freq_axes[1:]), right.interleaved)
    assert worst_with(wrong, "mrope-time", bundle_path) > 20 * BOUNDS["float32"]


def test_figures_and_bounds_carry_the_schemes_name(bundle_path: Path) -> None:
    result = run(bundle_path, schemes=("mrope-time",), evictions=2, console=QUIET)
    assert result.ok
    assert set(result.bounds) == {
        f"mrope-time_{dtype}_dlogit_at_{k}" for dtype in BOUNDS for k in (1, 2)
    }


def test_without_the_onnx_library_one_line_says_so(
    bundle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with (
        pytest.raises(ExecutorError, match="pip install onnx"),
        open_subject(bundle_path, "linear", "float32"),
    ):
        pass


def test_frames_of_time_only_leave_the_other_axes_alone() -> None:
    scheme = SCHEMES["mrope-time"]
    assert scheme.frame_moves() == (1, 0, 0)
    np.testing.assert_array_equal(scheme.frame_positions()[0], np.zeros(6))
