"""Answers agree with a second, slow reading of the scene that shares no code with the first."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from edgekv.demo import (
    KINDS,
    MAX_FRAMES,
    YES_NO_KINDS,
    Clip,
    Kind,
    Question,
    Scene,
    Window,
    ask,
    ask_window,
    draw_clip,
    identity_name,
)
from edgekv.demo.clip import MIN_FRAMES, demo_clip
from edgekv.demo.questions import WORDINGS

CLIPS = [draw_clip(seed, 24) for seed in range(40)]
NAMES = {identity_name(i): i for i in range(18)}


def state(clip: Clip, frame: int, identity: int) -> str:
    if clip.visible[frame, identity] >= 0.7:
        return "there"
    return "away" if clip.inside[frame, identity] <= 0.1 else "unclear"


def objects_in(clip: Clip, frame: int) -> list[str]:
    return [name for name, i in NAMES.items() if state(clip, frame, i) == "there"]


def asked_about(question: Question) -> str:
    """The words that were filled into the wording."""
    for wording in WORDINGS[question.kind]:
        head, _, tail = wording.partition("{}")
        if question.text.startswith(head) and question.text.endswith(tail):
            return question.text[len(head) : len(question.text) - len(tail)]
    raise AssertionError(f"no wording for {question.text!r}")


def moving(clip: Clip, frame: int, name: str) -> str:
    (x0, y0), (x1, y1) = clip.centres[frame - 1 : frame + 1, NAMES[name]]
    if abs(x1 - x0) < 0.5 and abs(y1 - y0) < 0.5:
        return "not moving"
    if abs(x1 - x0) > abs(y1 - y0):
        return "right" if x1 > x0 else "left"
    return "down" if y1 > y0 else "up"


def second_reading(clip: Clip, q: Question) -> str:
    """The answer, found frame by frame."""
    readings = {
        "visible": read_yes_no,
        "seen": read_yes_no,
        "appeared": read_appeared,
        "shape": read_shape_or_colour,
        "colour": read_shape_or_colour,
        "count": lambda c, q: ["none", "one", "two", "three"][len(objects_in(c, q.last))],
        "list": lambda c, q: ", ".join(objects_in(c, q.last)) or "nothing",
        "where": read_where,
        "direction": lambda c, q: moving(c, q.last, asked_about(q)),
        "first": lambda c, q: next(n for f in frames_of(q) for n in objects_in(c, f)),
        "gone": read_gone,
        "caption": read_caption,
    }
    return readings[q.kind](clip, q)


def frames_of(q: Question) -> range:
    return range(q.first, q.last + 1)


def objects_seen(clip: Clip, q: Question) -> list[str]:
    return [n for n in NAMES if any(n in objects_in(clip, f) for f in frames_of(q))]


def read_yes_no(clip: Clip, q: Question) -> str:
    known = objects_in(clip, q.last) if q.kind == "visible" else objects_seen(clip, q)
    return "yes" if asked_about(q) in known else "no"


def read_appeared(clip: Clip, q: Question) -> str:
    away = False
    for f in frames_of(q):
        here = state(clip, f, NAMES[asked_about(q)])
        if away and here == "there":
            return "yes"
        away = away or here == "away"
    return "no"


def read_shape_or_colour(clip: Clip, q: Question) -> str:
    known, wanted = (0, 1) if q.kind == "shape" else (1, 0)
    names = [n.split() for n in objects_in(clip, q.last)]
    return next(n[wanted] for n in names if n[known] == asked_about(q))


def read_where(clip: Clip, q: Question) -> str:
    x, y = clip.centres[q.last, NAMES[asked_about(q)]]
    row = "top" if y < 64 / 3 else "bottom" if y > 128 / 3 else ""
    column = "left" if x < 64 / 3 else "right" if x > 128 / 3 else ""
    return f"{row} {column}".strip() or "centre"


def read_gone(clip: Clip, q: Question) -> str:
    now = objects_in(clip, q.last)
    return ", ".join(n for n in objects_seen(clip, q) if n not in now) or "nothing"


def read_caption(clip: Clip, q: Question) -> str:
    parts = []
    for name in objects_in(clip, q.last):
        way = moving(clip, q.last, name)
        parts.append(f"a {name} " + ("is not moving" if way == "not moving" else f"moves {way}"))
    return ", ".join(parts) or "nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_answers_agree_with_a_second_reading(kind: Kind) -> None:
    rng = np.random.default_rng(1)
    asked = 0
    for seed, clip in enumerate(CLIPS):
        for first, last in ((0, 0), (0, 1), (0, 9), (5, 20), (0, 23), (22, 23)):
            question = ask(rng, clip, kind, first, last)
            if question is not None:
                assert question.answer == second_reading(clip, question), (seed, question)
                assert (question.first, question.last) == (first, last)
                asked += 1
    assert asked > 30


@pytest.mark.parametrize("kind", YES_NO_KINDS)
def test_yes_and_no_are_balanced(kind: Kind) -> None:
    rng = np.random.default_rng(2)
    answers: Counter[str] = Counter()
    for clip in CLIPS:
        for last in range(0, 24, 2):
            question = ask(rng, clip, kind, 0, last)
            if question is not None:
                answers[question.answer] += 1
    assert set(answers) == {"yes", "no"}
    assert 0.4 < answers["yes"] / answers.total() < 0.6


def test_an_answer_needs_only_the_window() -> None:
    for seed in range(10):
        clip = draw_clip(seed, 30)
        for kind in KINDS:
            inside = ask(np.random.default_rng(seed), clip, kind, 8, 21)
            alone = ask(np.random.default_rng(seed), clip.part(8, 21), kind, 0, 13)
            assert (inside is None) == (alone is None)
            if inside is not None and alone is not None:
                assert (inside.text, inside.answer) == (alone.text, alone.answer)


def test_nothing_is_asked_about_an_object_half_out_of_the_picture() -> None:
    rng = np.random.default_rng(3)
    half_seen = 0
    for clip in CLIPS:
        for frame in range(24):
            unclear = {n for n, i in NAMES.items() if state(clip, frame, i) == "unclear"}
            if not unclear:
                continue
            half_seen += 1
            window = Window(clip, 0, frame)
            for kind in ("visible", "where", "direction"):
                question = ask_window(rng, window, kind)
                assert question is None or asked_about(question) not in unclear
            for kind in ("count", "list", "gone", "caption"):
                assert ask_window(rng, window, kind) is None
    assert half_seen > 100


def test_a_window_outside_the_clip_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no window 3\.\.10 in a clip of 10 frames"):
        Window(draw_clip(0, 10), 3, 10)


def test_answers_of_the_built_in_clip_are_true_however_much_is_kept() -> None:
    facts = demo_clip()
    scene = Scene(facts.seed)
    if facts.first_frame:
        scene.read(facts.first_frame)
    clip = scene.read(facts.num_frames)
    for asked in facts.questions:
        last = round(asked.time_s * facts.fps)
        for held in range(min(MIN_FRAMES, last + 1), min(MAX_FRAMES, last + 1) + 1):
            question = Question(asked.kind, asked.text, asked.answer, last + 1 - held, last)
            assert question.answer == second_reading(clip, question)
