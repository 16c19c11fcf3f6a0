"""What cross-attention sees is logged, replays, and is drawn in a panel of its own."""

from __future__ import annotations

import random
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

import edgekv
from edgekv.cache import CrossCache, CrossInput
from edgekv.errors import CacheError, OutOfPagesError, TraceError
from edgekv.trace import TraceWriter, read_log
from edgekv.trace.draw import draw
from edgekv.trace.events import Changed
from edgekv.trace.lives import CACHED, INPUT
from edgekv.trace.replay import replay
from edgekv.trace.timeline import build_timeline
from edgekv.trace.view import make_view
from tests.session.cross_bundle import save_cross_bundle
from tests.session.cross_model import SHORT, picture
from tests.trace.inputs import make_caches, show, write_inputs


def test_a_log_says_what_became_of_each_input(tmp_path: Path) -> None:
    cross = write_inputs(tmp_path / "t")
    changes = [e for e in read_log(tmp_path / "t").events() if isinstance(e, Changed)]
    assert [(e.how, e.pages) for e in changes[:8]] == [
        ("reserved", (0, 1, 2)),
        ("published", (0,)),
        ("reserved", (3, 4, 5)),
        ("published", (3,)),
        ("let go", (0,)),
        ("found", (0,)),
        ("let go", (3,)),
        ("given up", (3,)),
    ]
    assert changes[-3].how == "reserved"
    assert [e.how for e in changes[-2:]] == ["withdrawn", "let go"]
    inputs = build_timeline(read_log(tmp_path / "t")).inputs
    counts = cross.counts
    assert inputs is not None
    assert inputs.lookups.num_found == counts.num_hits == 2
    assert len(inputs.lookups.found) - inputs.lookups.num_found == counts.num_misses
    assert inputs.num_given_up == counts.num_evicted > 1
    pages = inputs.holders
    assert (pages.num_free, pages.num_cached, pages.num_used) == (counts.free, counts.cached, 0)
    result = replay(read_log(tmp_path / "t"))
    assert result.difference is None
    assert result.num_input_changes == len(changes)


@pytest.mark.parametrize("seed", range(4))
def test_random_lives_of_inputs_replay(tmp_path: Path, seed: int) -> None:
    chance, (cache, cross) = random.Random(seed), make_caches(12)  # noqa: S311 - to be repeatable
    log = TraceWriter(cache, tmp_path / "t")
    held: list[CrossInput] = []
    for _ in range(300):
        if held and chance.random() < 0.5:
            held.pop(chance.randrange(len(held))).release()
            continue
        try:
            held.append(show(cross, bytes([chance.randrange(9)]), chance.randrange(1, 14)))
        except OutOfPagesError:
            held.pop().release()
    log.close()
    assert cross.counts.num_evicted > 10
    assert replay(read_log(tmp_path / "t")).difference is None
    inputs = build_timeline(read_log(tmp_path / "t")).inputs
    assert inputs is not None
    assert (inputs.holders.num_free, inputs.holders.num_cached) == (
        cross.counts.free,
        cross.counts.cached,
    )


def test_a_cross_cache_that_gives_up_another_input_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(tmp_path / "t", num_pages=10)
    assert replay(read_log(tmp_path / "t")).difference is None
    real = CrossCache.release

    def release(self: CrossCache, source: CrossInput) -> None:
        real(self, source)
        self._idle = dict(sorted(self._idle.items(), reverse=True))

    monkeypatch.setattr(CrossCache, "release", release)
    assert "inputs given up: the log says" in str(replay(read_log(tmp_path / "t")).difference)


def test_a_log_that_begins_with_inputs_is_drawn_but_not_replayed(tmp_path: Path) -> None:
    cache, cross = make_caches()
    held, _ = show(cross, b"a", 10), show(cross, b"b", 3).release()
    log = TraceWriter(cache, tmp_path / "t")
    show(cross, b"b", 3).release()
    held.release()
    log.close()
    with pytest.raises(TraceError, match="inputs of cross-attention were there before the log"):
        replay(read_log(tmp_path / "t"))
    inputs = build_timeline(read_log(tmp_path / "t")).inputs
    assert inputs is not None
    assert (inputs.holders.num_free, inputs.holders.num_cached) == (4, 4)
    assert inputs.lookups.rate == 1.0


def test_a_log_does_not_begin_while_an_input_is_written(tmp_path: Path) -> None:
    cache, cross = make_caches()
    source = cross.reserve(b"a", 3)
    with pytest.raises(CacheError, match="an input is being written"):
        TraceWriter(cache, tmp_path / "t")
    cross.publish(source)
    TraceWriter(cache, tmp_path / "t").close()


def test_parts_fit_together_and_stay_within_the_limit(tmp_path: Path) -> None:
    limit, (cache, cross) = 64 * 2**10, make_caches()
    log = TraceWriter(cache, tmp_path / "t", max_bytes=limit)
    sequence = cache.open()
    for k in range(3000):
        source = show(cross, b"%d" % (k // 2), 10)
        sequence.look_at(source)
        source.release()
        sequence.append("text", 3).abort()
        assert sum(part.stat().st_size for part in tmp_path.iterdir()) <= limit
    log.close()
    read = read_log(tmp_path / "t")
    assert len(read.parts) == 2
    inputs = build_timeline(read).inputs
    assert inputs is not None
    assert (inputs.holders.num_free, inputs.holders.num_used) == (2, 3)
    assert inputs.lookups.num_found > 300


def test_inputs_have_a_panel_and_colours_of_their_own(tmp_path: Path) -> None:
    write_inputs(tmp_path / "t", num_pages=40)
    words = draw(read_log(tmp_path / "t"), tmp_path / "page.png")
    assert "14 pages holds that were ever used; 26 never were" in words.panels["inputs"]
    assert "4 inputs of cross-attention were written, 3 found again" in words.story
    assert {"input", "cached"} <= {name for name, _ in words.legend}
    picture = Image.open(BytesIO((tmp_path / "page.png").read_bytes())).convert("RGB")
    assert (15, 132, 140) in {colour for _, colour in picture.getcolors(1 << 20) or []}
    inputs = make_view(build_timeline(read_log(tmp_path / "t"))).inputs
    assert inputs is not None
    kinds = {inputs.lives.kind[life] for life in inputs.runs.life.tolist()}
    assert kinds == {INPUT, CACHED}
    draw(read_log(tmp_path / "t"), tmp_path / "page.html")
    assert '<i class="input"></i>' in (tmp_path / "page.html").read_text("utf-8")


def test_sessions_that_look_at_pictures_replay(tmp_path: Path) -> None:
    save_cross_bundle(tmp_path / "pictures", "pictures")
    path = tmp_path / "t"
    with edgekv.load(tmp_path / "pictures", kv_budget="64KiB", num_threads=1, trace=path) as model:
        with model.session() as one, model.session() as other:
            for k in range(8):
                one.push(picture(k), k / 2)
                other.push(picture(k // 2), k / 2)
                one.ask("What?", SHORT)
            counts = one.stats().cross
            model.trace(tmp_path / "later")
            one.push(picture(20), 20.0)
        assert model.trace_problem is None
    assert counts is not None
    result = replay(read_log(path))
    assert result.difference is None
    assert result.num_input_changes > 8
    inputs = build_timeline(read_log(path)).inputs
    assert inputs is not None
    assert inputs.lookups.num_found == counts.num_hits > 3
    assert len(inputs.lookups.found) == counts.num_hits + counts.num_misses
    assert inputs.num_given_up == counts.num_evicted > 0
    later = [e.how for e in read_log(tmp_path / "later").events() if isinstance(e, Changed)]
    assert "carried held" in later
    assert later.count("reserved") == later.count("published") == 1
