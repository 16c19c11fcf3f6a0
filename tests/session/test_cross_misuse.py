"""What a model with cross-attention does not take, or has no room for, is refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgekv
from edgekv import Frame, Sound
from tests.session.cross_model import (
    asked,
    cross,
    heard,
    picture,
    sound,
)


def test_inputs_of_the_wrong_kind_are_refused(seeing: edgekv.Model, hearing: edgekv.Model) -> None:
    with seeing.session() as session:
        with pytest.raises(ValueError, match="takes pictures, got sound"):
            session.push(Sound(sound(0)))
        with pytest.raises(ValueError, match=r"want \(height, width, 3\) uint8 RGB"):
            session.push(np.zeros((4, 4), np.uint8), 0.0)
    with hearing.session() as session:
        with pytest.raises(ValueError, match="takes sound, got a picture"):
            session.push(Frame(picture(0), 0.0))
        for bad in (np.zeros(4), np.zeros((2, 2), np.float32), np.zeros(0, np.float32)):
            with pytest.raises(ValueError, match=r"want \(num_samples,\) float32 sound, got"):
                session.push(bad, 0.0)
        with pytest.raises(ValueError, match="not finite"):
            session.push(np.array([0, np.nan], np.float32), 0.0)
        assert cross(session).num_misses == 0


def test_a_model_that_hears_needs_a_sound_and_takes_no_text(hearing: edgekv.Model) -> None:
    with hearing.session() as session:
        with pytest.raises(edgekv.ContextError, match="push a sound first"):
            session.ask("")
        with pytest.raises(edgekv.ContextError, match="asked as a whole"):
            session.say("Hello.")
        session.push(Sound(sound(0)))
        assert asked(session, "") == heard(0)


def test_sound_for_a_model_without_cross_attention(session: edgekv.Session) -> None:
    with pytest.raises(ValueError, match="takes pictures, got sound"):
        session.push(Sound(sound(0)))
    assert session.stats().cross is None


def test_budgets(bundles: Path, bundle_path: Path) -> None:
    with pytest.raises(edgekv.BudgetError, match=r"fewer than 2 inputs .* 2\.0 KiB would do"):
        edgekv.load(bundles / "pictures", cross_budget=2047)
    with pytest.raises(ValueError, match="no cross-attention, so no cross_budget"):
        edgekv.load(bundle_path, cross_budget="1MiB")
