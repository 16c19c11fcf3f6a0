"""Under ``least-attended`` what is asked about stays; other rules add up no attention."""

from __future__ import annotations

import numpy as np
import pytest

import edgekv
from edgekv.cache.retention import retention_rules
from edgekv.demo.needles import needle_streams
from tests.session.helpers import QUESTION, Picture


def heat(session: edgekv.Session) -> np.ndarray:
    """Of all but the pinned start, which sessions share, and its heat with it."""
    return session._live.sequence.heat()[1:]


def test_a_question_warms_every_frame_it_looks_at_by_one_share(
    model: edgekv.Model, picture: Picture
) -> None:
    num_heads = 6  # of the demo model
    with model.session(retain="least-attended") as session:
        for k in range(8):
            session.push(picture(1000 + k), k / 2)
        assert not heat(session).any()
        session.ask(QUESTION)
        once = heat(session)
        assert (once > 0).all()
        assert once.sum() < num_heads  # the question's own tokens have the rest
        session.ask(QUESTION)
        assert (heat(session) > once).all()


@pytest.mark.parametrize("rule", [r for r in retention_rules() if r != "least-attended"])
def test_other_rules_add_up_nothing(model: edgekv.Model, picture: Picture, rule: str) -> None:
    with model.session(retain=rule) as session:
        for k in range(4):
            session.push(picture(2000 + k), k / 2)
        session.ask(QUESTION)
        assert not heat(session).any()
        every = np.arange(model.figures().counts.num_pages, dtype=np.int32)
        assert not model._runner._decoder.take_mass(every).any()


def test_attention_changes_no_answer(model: edgekv.Model, picture: Picture) -> None:
    with model.session(retain="least-attended") as one, model.session() as other:
        for k in range(6):
            one.push(picture(k), k / 2)
            other.push(picture(k), k / 2)
        assert one.ask(QUESTION).token_ids == other.ask(QUESTION).token_ids


def test_a_question_that_failed_leaves_nothing_behind(
    model: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model.session(retain="least-attended") as session:
        for k in range(4):
            session.push(picture(3000 + k), k / 2)
        decoder = model._runner._decoder
        real = decoder.run

        def run(*arguments: object) -> np.ndarray:
            real(*arguments)  # the mass has been added when the step fails
            raise edgekv.ExecutorError("lost the device")

        with monkeypatch.context() as patch:
            patch.setattr(decoder, "run", run)
            with pytest.raises(edgekv.ExecutorError):
                session.ask(QUESTION)
        assert not heat(session).any()
        every = np.arange(model.figures().counts.num_pages, dtype=np.int32)
        assert not decoder.take_mass(every).any()


def test_what_is_asked_about_again_and_again_stays(model: edgekv.Model) -> None:
    (stream,) = needle_streams(1, 96)
    kept = {}
    for rule in ("window", "least-attended"):
        with model.session(retain=rule) as session:
            for k, pixels in enumerate(stream.clip.frames):
                session.push(pixels, k / 2)
                if k % 8 == 7:
                    session.ask(stream.about_needle()[0].text)
            kept[rule] = set(session.context_frames()) & set(stream.sightings)
    assert not kept["window"]
    assert kept["least-attended"]
