"""What a tier does by itself is told apart from the stream's frames and from questions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import edgekv
from edgekv.trace import TraceLog, read_log
from edgekv.trace.bars import PROBE, QUESTION, RECALLING
from edgekv.trace.colours import PAINT
from edgekv.trace.draw import draw
from edgekv.trace.lives import PROBED, RECALLED
from edgekv.trace.moves import BACK
from edgekv.trace.replay import replay
from edgekv.trace.timeline import build_timeline
from edgekv.trace.view import make_view
from edgekv.trace.words import describe

pytestmark = pytest.mark.usefixtures("quick_disk")

Picture = Callable[[int], NDArray[np.uint8]]
NUM_FRAMES = 50


@pytest.fixture
def log(bundle_path: Path, picture: Picture, tmp_path: Path) -> TraceLog:
    """Fifty frames, a question without recalling and two with it."""
    options = edgekv.SamplingOptions(max_new_tokens=2)
    with edgekv.load(bundle_path, kv_budget="1MiB", num_threads=1, trace=tmp_path / "t") as model:
        with model.session(tier=tmp_path / "tier", tier_limit="1MiB") as session:
            for k in range(NUM_FRAMES):
                session.push(picture(k), k / 2)
            session.ask("What do you see?", options)
            for _ in range(2):
                session.ask("Is there a red circle?", options, recall="auto")
            tier = session.stats().tier
        assert model.trace_problem is None
    assert tier is not None
    assert tier.num_recalled > 0, tier.recall_off
    return read_log(tmp_path / "t")


def test_probes_and_recalls_are_neither_frames_nor_questions(log: TraceLog) -> None:
    timeline = build_timeline(log)
    assert timeline.frames.num == NUM_FRAMES
    assert list(timeline.frames.stream_s) == [k / 2 for k in range(NUM_FRAMES)]
    sequences = timeline.sequences.values()
    assert sum(life.is_question for life in sequences) == 3
    assert sum(life.is_probe for life in sequences) == 1 + 2, "measured once, ranked twice"
    assert sum(life.is_context for life in sequences) == 1
    assert replay(log).difference is None


def test_the_picture_says_so(log: TraceLog) -> None:
    view = make_view(build_timeline(log))
    words = describe(log, view)
    figures = dict(words.figures)
    assert figures["frames"] == str(NUM_FRAMES)
    assert (figures["questions"], figures["probes"]) == ("3", "3")
    assert figures["recalled frames"] == str(view.timeline.frames.num_recalled) != "0"
    assert f"{figures['recalled frames']} old frames were recalled" in words.story
    assert "2 questions, at" in words.accounts[0]
    assert (
        f"brought {figures['recalled frames']} old frames back from disk: at 0:"
        in words.accounts[0]
    )
    assert view.moves.num(BACK) == view.timeline.frames.num_recalled
    assert view.clock.is_stream, "a tier's own frames have no place in the stream"
    assert [name for name, _ in words.legend if name in ("recalled", "probed")] == [
        "recalled",
        "probed",
    ]
    kinds = view.map.runs.kind
    assert np.count_nonzero(kinds == RECALLED) > 0
    assert np.count_nonzero(kinds == PROBED) > 0
    assert view.bars.names == ("session 1", "probes")
    assert np.count_nonzero(view.bars.role == QUESTION) == 1
    assert np.count_nonzero(view.bars.role == RECALLING) == 2
    assert np.count_nonzero(view.bars.role == PROBE) == 3


def test_a_recalled_frame_is_seen(log: TraceLog, tmp_path: Path) -> None:
    """However short the question, in five pixels of a colour that nothing else has."""
    draw(log, tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    lilac = (pixels == PAINT[RECALLED]).all(axis=2)
    edges = np.flatnonzero(np.diff(lilac.astype(np.int8), axis=1).any(axis=1))
    assert edges.size
    longest = 0
    for row in lilac[edges]:
        ends = np.flatnonzero(np.diff(row.astype(np.int8)))
        longest = max(longest, int(np.diff(ends)[::2].max()))
    assert longest >= 5
