"""The needle test gives every rule the room it says, and the cost of mass is of three graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import edgekv
from edgekv import names
from edgekv.bench import mass, retention
from edgekv.bench.rule_cost import rule_costs
from edgekv.cache import PageCache
from edgekv.cache.retention import retention_rules
from edgekv.executors import choose_device, create_decoder


def test_every_rule_takes_part() -> None:
    names_of_all = [contender.name for contender in retention.CONTENDERS]
    assert names_of_all == [*retention_rules(), "recall"]


@pytest.mark.parametrize("contender", retention.CONTENDERS, ids=lambda c: c.name)
def test_a_context_holds_one_eighth_of_the_stream_or_one_window(
    contender: retention.Contender,
    model: edgekv.Model,
    picture: Callable[[int], np.ndarray],
    tmp_path: Path,
) -> None:
    most = 0
    with contender.open(model, 12, tmp_path) as session:
        for k in range(30):
            session.push(picture(k), float(k))
            most = max(most, session.stats().num_context_frames)
    assert most == (12 * retention.WINDOW // 8 if contender.recall == "off" else retention.WINDOW)


def test_what_a_rule_costs_is_timed_in_batches_and_leaves_the_model_as_it_was(
    bundle_path: Path,
) -> None:
    with edgekv.load(bundle_path, kv_budget="4MiB", num_threads=1) as model:
        figures = rule_costs(model, num_timed=12, num_rounds=1)
        with model.session() as session:
            assert "room" not in vars(session._live.runner.sharing)
    for rule in retention_rules():
        assert figures[f"{rule}_batch_frames"] >= 1
        assert figures[f"{rule}_batch_ms"] > 0
        assert figures[f"{rule}_push_ms"] > 0


def test_a_stream_longer_than_the_model_knows_is_refused(model: edgekv.Model) -> None:
    with pytest.raises(ValueError, match="up to 24 windows of 8 frames"):
        retention.run(model.bundle.path, num_streams=1, windows=(25,), console=Console())


def test_a_graph_without_mass_takes_none_and_answers_the_same(
    model: edgekv.Model, tmp_path: object
) -> None:
    bundle = model.bundle
    stripped = mass._without_mass(bundle.decoder_path, tmp_path)
    assert stripped is not None
    assert names.PAGE_MASS.encode() not in stripped.read_bytes()
    logits = []
    for path in (bundle.decoder_path, stripped):
        decoder = create_decoder(choose_device("cpu"), path, bundle.geometry, num_pages=4)
        cache = PageCache(bundle.geometry, 4)
        embeds = np.ones((5, bundle.manifest.hidden_size), np.float32)
        with cache.begin_step([cache.open().append("text", 5, mass_weight=1.0)]) as step:
            logits.append(decoder.run(embeds, step.tables, np.array([4])))
        fell = decoder.take_mass(np.arange(4, dtype=np.int32)).sum()
        assert fell == (0 if path == stripped else pytest.approx(5 * 6, rel=1e-3))
        assert not decoder.take_mass(np.arange(4, dtype=np.int32)).any()
        decoder.close()
    np.testing.assert_array_equal(*logits)
