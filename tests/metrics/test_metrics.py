"""Figures for Prometheus: read back through its own parser, from a page that is really served."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import edgekv
from edgekv.metrics import ModelCollector, serve_metrics
from tests.session.cross_bundle import save_cross_bundle
from tests.waiting import HANG_S

Picture = Callable[[int], NDArray[np.uint8]]
Samples = dict[tuple[str, ...], float]


def read(text: str) -> Samples:
    """(name, label value, …) -> value, the model's own name left out."""
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "model")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(model: edgekv.Model) -> Samples:
    registry = CollectorRegistry()
    registry.register(ModelCollector(model))
    return read(generate_latest(registry).decode())


def test_figures_are_those_of_the_model(model: edgekv.Model, picture: Picture) -> None:
    before = scrape(model)
    with model.session() as session:
        for k in range(40):
            session.push(picture(7000 + k), float(k))  # seen by no other test, so not shared
        session.ask("What do you see?")
        stats, now = session.stats(), scrape(model)
    assert now["edgekv_kv_pages", "live"] == stats.pages_live
    assert now["edgekv_kv_pages", "free"] == stats.pages_free
    assert sum(now["edgekv_kv_pages", s] for s in ("free", "live", "cached", "in_flight")) == (
        stats.num_pages
    )
    assert now["edgekv_kv_pool_bytes",] == stats.pool_bytes
    layers = [value for key, value in now.items() if key[0] == "edgekv_kv_layer_bytes"]
    assert len(layers) == model.bundle.geometry.num_layers
    assert sum(layers) == stats.pages_live * model.bundle.geometry.page_bytes

    def grew(*key: str) -> float:
        return now[key] - before.get(key, 0)

    assert grew("edgekv_kv_tokens_total", "frame") == 40 * 16
    assert grew("edgekv_kv_evicted_segments_total", "window") == stats.num_evicted_frames > 0
    assert grew("edgekv_kv_forks_total") >= 1
    assert now["edgekv_kv_lookups_total", "hit"] == stats.shared.hits
    assert now["edgekv_kv_lookups_total", "miss"] == stats.shared.misses > 0
    assert now["edgekv_kv_given_up_segments_total",] == stats.shared.given_up
    assert grew("edgekv_encoder_lookups_total", "miss") == 40
    assert now["edgekv_encoder_lookups_total", "hit"] == stats.encoder_cache.hits
    assert now["edgekv_encoder_evictions_total",] == stats.encoder_cache.evictions
    assert now["edgekv_encoder_cache_bytes",] == stats.encoder_cache.num_bytes > 0
    assert grew("edgekv_decoder_steps_total") >= 42
    assert grew("edgekv_kv_allocation_seconds_count") >= 42
    assert grew("edgekv_kv_allocation_seconds_sum") > 0
    assert (
        now["edgekv_kv_allocation_seconds_bucket", "+Inf"]
        == (now["edgekv_kv_allocation_seconds_count",])
    )
    assert now["edgekv_process_anonymous_bytes",] > 2**20


def test_what_was_found_and_each_open_session(model: edgekv.Model, picture: Picture) -> None:
    before = scrape(model)
    with model.session() as first, model.session() as second:
        for session in (first, second):
            for k in range(3):
                session.push(picture(900 + k), float(k))
        first.ask("What do you see?")
        now = scrape(model)
        numbers = sorted(key[1] for key in now if key[0] == "edgekv_session_context_frames")
        assert len(numbers) == 2
        assert [now["edgekv_session_frames_total", number] for number in numbers] == [3, 3]
        assert [now["edgekv_session_questions_total", number] for number in numbers] == [1, 0]
        pages = first.stats().pages_live
        assert [now["edgekv_session_context_pages", number] for number in numbers] == [pages] * 2
    found = "edgekv_kv_lookups_total", "hit"
    assert now[found] - before[found] >= 3  # the second session takes what the first computed
    assert not any(key[0] == "edgekv_session_frames_total" for key in scrape(model))


def test_figures_of_cross_attention(model: edgekv.Model, tmp_path: Path) -> None:
    bundle = save_cross_bundle(tmp_path / "bundle", "sounds")
    with edgekv.load(bundle, kv_budget="64KiB", num_threads=1) as hearing:
        with hearing.session() as session:
            for k in (1, 2, 1):
                session.push(np.full(999, k / 4, np.float32), 0.0)
            now = scrape(hearing)
        pages = [now["edgekv_cross_pages", state] for state in ("live", "cached", "free")]
        assert pages == [1, 1, 2]
        assert (now["edgekv_cross_hits_total",], now["edgekv_cross_misses_total",]) == (1, 2)
        assert now["edgekv_cross_evicted_inputs_total",] == 0
    assert not any(key[0].startswith("edgekv_cross") for key in scrape(model))


def test_a_served_page_holds_them_until_it_is_closed(model: edgekv.Model) -> None:
    server = serve_metrics(model, 0)
    url = server.url
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # to here, past any proxy
    with opener.open(url, timeout=HANG_S) as page:
        served = read(page.read().decode())
    assert served["edgekv_kv_pool_bytes",] > 0
    with pytest.raises(edgekv.MetricsError, match=f"on 127.0.0.1:{server.port}: "):
        serve_metrics(model, server.port)
    server.close()
    with pytest.raises(OSError, match="refused"):
        opener.open(url, timeout=HANG_S)


def test_without_the_library_one_line_says_what_to_install(
    model: edgekv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(edgekv.MetricsError, match=r"pip install 'edgekv\[metrics\]'"):
        serve_metrics(model, 0)
