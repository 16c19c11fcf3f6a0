"""What a saved session sees by cross-attention, it sees when it is restored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import edgekv
from tests.session.cross_model import (
    QUESTION,
    cross,
    picture,
    sound,
    watch,
)


@pytest.mark.parametrize("kind", ["pictures", "sounds"])
def test_a_saved_session_sees_what_it_saw(
    bundles: Path, tmp_path: Path, runs: list[int], kind: str
) -> None:
    def load() -> edgekv.Model:
        return edgekv.load(bundles / kind, kv_budget="64KiB", num_threads=1)

    path, content = tmp_path / "file", picture(1) if kind == "pictures" else sound(1)
    with load() as model, model.session() as session:
        session.push(content, 0.0)
        if kind == "pictures":
            session.say("Two.")
        expected = session.logits(QUESTION)
        session.save(path)
        with model.restore(path) as again:  # in the cache still
            np.testing.assert_array_equal(again.logits(QUESTION), expected)
            assert cross(again).num_hits == 1
    with load() as model:
        with model.restore(path) as session:
            np.testing.assert_array_equal(session.logits(QUESTION), expected)
            assert cross(session).live == len(runs) * (2 if kind == "pictures" else 1)
            with model.session() as other:
                other.push(content, 5.0)  # found by its content
                assert cross(other).live == cross(session).live
            session.push(content, 9.0)
        assert len(runs) == 1


def test_a_damaged_source_is_refused_and_leaves_nothing(bundles: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with (
        edgekv.load(bundles / "pictures", kv_budget="64KiB", num_threads=1) as model,
        model.session() as session,
    ):
        session.push(picture(1), 0.0)
        session.save(path)
    data = bytearray(path.read_bytes())
    header = 48 + int.from_bytes(data[12:16], "little")
    blocks = json.loads(data[48:header])["blocks"]
    data[header + blocks["source.pages"]["offset"] + 5] ^= 1
    path.write_bytes(data)
    with edgekv.load(bundles / "pictures", kv_budget="64KiB", num_threads=1) as model:
        with pytest.raises(edgekv.SessionFileError, match=r"source\.pages.*SHA-256 differs"):
            model.restore(path)
        with model.session() as session:
            counts = cross(session)
            assert (counts.live, counts.cached) == (0, 0)


def test_a_restore_that_finds_no_room_for_its_source_leaves_nothing(
    bundles: Path, tmp_path: Path
) -> None:
    path, budget = tmp_path / "file", 4 * 512
    with edgekv.load(bundles / "pictures", cross_budget=budget, num_threads=1) as model:
        with watch(model) as session:
            session.push(picture(1), 0.0)
            session.save(path)
        with watch(model) as one, watch(model) as two:
            one.push(picture(2), 0.0)
            two.push(picture(5), 0.0)
            live = one.stats().pages_live
            with pytest.raises(edgekv.BudgetError, match="needs 2 pages of cross-attention, 0"):
                model.restore(path)
            assert one.stats().pages_live == live
            assert cross(one).live == 4
