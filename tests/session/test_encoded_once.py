"""A picture is encoded once, however often it is asked about or comes again."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import edgekv
from edgekv.executors.ort_cpu import OrtVision
from edgekv.inputs import InputEncoder
from tests.session.helpers import QUESTION, SHORT, Picture, count_calls, push

STREET = "You watch a street. Say what moves, and where it goes."


@pytest.mark.parametrize("num_questions", [1, 10, 100])
def test_questions_on_one_frame_cost_one_copy_of_it(
    shared: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch, num_questions: int
) -> None:
    encoded = count_calls(monkeypatch, OrtVision, "encode")
    with shared.session(instructions=STREET) as session:
        session.push(picture(0), 0.0)
        live = session.stats().pages_live
        pieces = [session.ask_iter(QUESTION, SHORT) for _ in range(num_questions)]
        question = InputEncoder(shared.bundle, None).question_ids(QUESTION, frames=True)
        # Each holds its own question and the room of its answer, and not one page more.
        pages_for = shared.bundle.geometry.pages_for
        own = pages_for(len(question)) + pages_for(SHORT.max_new_tokens - 1)
        assert session.stats().pages_live == live + num_questions * own
        assert len({"".join(answer) for answer in pieces}) == 1
        del pieces
        gc.collect()
        assert session.stats().pages_live == live
        assert session.stats().num_questions == num_questions
    assert len(encoded) == 1


def test_a_picture_that_comes_again_is_encoded_once(
    shared: edgekv.Model, alone: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone.session() as own:
        push(own, picture, 0, 40)
        own.push(picture(39), 20.0)
        expected = own.logits(QUESTION)
    encoded = count_calls(monkeypatch, OrtVision, "encode")
    with shared.session() as session:
        push(session, picture, 0, 40)
        session.push(picture(39).copy(), 20.0)
        np.testing.assert_array_equal(session.logits(QUESTION), expected)
        stats = session.stats().encoder_cache
        assert (stats.hits, stats.misses, len(encoded)) == (1, 40, 40)
        assert 0 < stats.num_bytes <= stats.max_bytes


def test_encoder_outputs_keep_to_their_bytes_and_can_be_switched_off(
    bundle_path: Path, picture: Picture
) -> None:
    with (
        edgekv.load(bundle_path, num_threads=1, encoder_cache="30KiB") as model,
        model.session() as session,
    ):
        push(session, picture, 0, 5)
        stats = session.stats().encoder_cache
        assert (stats.num_pictures, stats.evictions) == (2, 3)
        assert stats.num_bytes <= 30 * 1024
    with (
        edgekv.load(bundle_path, num_threads=1, encoder_cache=0) as model,
        model.session() as session,
    ):
        push(session, picture, 0, 2)
        stats = session.stats().encoder_cache
        assert (stats.misses, stats.num_pictures, stats.num_bytes) == (0, 0, 0)
    with pytest.raises(ValueError, match="encoder_cache must"):
        edgekv.load(bundle_path, encoder_cache=-1)
