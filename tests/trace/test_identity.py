"""What is shared and cached is logged, replays, and is drawn in a colour of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import edgekv
from edgekv.cache import PageCache, Sequence
from edgekv.cache.identity import SegmentIndex
from edgekv.errors import TraceError
from edgekv.trace import TraceWriter, read_log
from edgekv.trace.draw import draw
from edgekv.trace.lives import CACHED
from edgekv.trace.replay import replay
from edgekv.trace.timeline import build_timeline
from edgekv.trace.view import make_view
from tests.cache.helpers import add
from tests.trace.streams import make_cache

Picture = Callable[[int], NDArray[np.uint8]]


def watch(cache: PageCache, sequence: Sequence, first: int, count: int) -> None:
    """Frames of 77 tokens, found or else computed and kept."""
    for k in range(first, first + count):
        found = sequence.find("frame", str(k).encode())
        if found is not None:
            sequence.take(found, index=k, time_s=k / 2)
            continue
        add(cache, sequence, "frame", 77, index=k, time_s=k / 2)
        sequence.keep(str(k).encode())


def shared_stream(path: Path) -> PageCache:
    """Two contexts see the same, one after another; a third one takes the pages of both."""
    cache = make_cache(64)
    log = TraceWriter(cache, path)
    one = cache.open()
    watch(cache, one, 0, 6)
    other = cache.open()
    watch(cache, other, 0, 4)
    one.close()
    other.close()
    again = cache.open()
    watch(cache, again, 0, 2)
    watch(cache, again, 100, 9)
    log.close()
    return cache


def test_a_log_says_what_was_found_cached_and_given_up(tmp_path: Path) -> None:
    counts = shared_stream(tmp_path / "t").counts
    timeline = build_timeline(read_log(tmp_path / "t"))
    assert timeline.lookups.num_found == 6
    assert max(timeline.levels.cached) == 30
    assert (timeline.levels.free[-1], timeline.levels.cached[-1]) == (counts.free, counts.cached)
    assert timeline.levels.peak == counts.peak == 55
    assert timeline.levels.tokens[-1] == 11 * 77
    rates = make_view(timeline).hit_rate
    known = rates[~np.isnan(rates)]
    assert known.size > 1
    assert known.min() == 0.0
    assert known.max() == 1.0
    kinds = np.asarray(timeline.lives.kind)
    frames = np.asarray(timeline.lives.index)[kinds == 1].tolist()
    assert frames == [*range(6), 0, 1, *range(100, 109)], "a cached frame that is found lives anew"
    assert replay(read_log(tmp_path / "t")).difference is None


def test_an_index_that_gives_up_something_else_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_stream(tmp_path / "t")
    real = SegmentIndex.give_up

    def give_up(self: SegmentIndex, num_pages: int) -> NDArray[np.int32]:
        self._ranks *= -1
        return real(self, num_pages)

    monkeypatch.setattr(SegmentIndex, "give_up", give_up)
    assert "pages given up: the log says" in str(replay(read_log(tmp_path / "t")).difference)


def test_an_index_that_finds_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_stream(tmp_path / "t")
    monkeypatch.setattr(SegmentIndex, "find", lambda *_: None)
    assert "does not find what the log says" in str(replay(read_log(tmp_path / "t")).difference)


def test_cached_pages_have_a_colour_of_their_own(tmp_path: Path) -> None:
    shared_stream(tmp_path / "t")
    draw(read_log(tmp_path / "t"), tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text("utf-8")
    assert re.search(r'<li><i class="cached"></i>cached', html)
    assert "6 pieces, a frame, picture or instructions, were found in memory" in html
    assert "<dt>found in memory</dt><dd>29% of 21</dd>" in html.replace("\n", "")
    assert "found there (green)" in html
    draw(read_log(tmp_path / "t"), tmp_path / "page.png")
    picture = Image.open(BytesIO((tmp_path / "page.png").read_bytes())).convert("RGB")
    seen = {colour for _, colour in picture.getcolors(1 << 20) or []}
    assert (168, 205, 178) in seen


def test_a_log_that_begins_with_kept_pages_is_drawn_but_not_replayed(tmp_path: Path) -> None:
    cache = shared_stream(tmp_path / "before")
    for sequence in cache.sequences:
        sequence.close()
    log = TraceWriter(cache, tmp_path / "t")
    with cache.open() as sequence:
        watch(cache, sequence, 0, 2)
    log.close()
    with pytest.raises(TraceError, match="pages were kept before the log"):
        replay(read_log(tmp_path / "t"))
    timeline = build_timeline(read_log(tmp_path / "t"))
    assert timeline.levels.cached[0] == cache.counts.cached
    assert (timeline.levels.free[-1], timeline.levels.cached[-1]) == (
        cache.counts.free,
        cache.counts.cached,
    )
    assert np.count_nonzero(np.asarray(timeline.lives.kind) == CACHED) == 1


def test_sessions_that_share_replay(bundle_path: Path, picture: Picture, tmp_path: Path) -> None:
    path = tmp_path / "t"
    with edgekv.load(bundle_path, kv_budget="640KiB", num_threads=1, trace=path) as model:
        for turn in range(3):
            with (
                model.session(instructions="You watch.", reserve_tokens=64) as one,
                model.session(instructions="You watch.", reserve_tokens=64) as other,
            ):
                for k in range(turn, 30):
                    one.push(picture(k), k / 4)
                    other.push(picture(k), k / 4)
                stats = one.stats()
    assert stats.shared.hits > 10
    assert stats.shared.given_up > 10
    result = replay(read_log(path))
    assert result.difference is None
    assert build_timeline(read_log(path)).lookups.num_found == stats.shared.hits
