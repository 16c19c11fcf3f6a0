"""Whose a page is: by session, shared ones visibly shared, and those that nobody holds."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

from edgekv.cache.reclaim import RECLAIM
from edgekv.trace import TraceWriter, read_log
from edgekv.trace.colours import FORCED, INK, NAMED, PAINT
from edgekv.trace.draw import draw
from edgekv.trace.lives import CACHED, IN_FLIGHT
from edgekv.trace.moves import CHOSEN
from edgekv.trace.moves import FORCED as FOR_OTHERS
from edgekv.trace.page_map import BRIEF
from edgekv.trace.png_map import kind_pixels, session_pixels
from edgekv.trace.timeline import build_timeline
from edgekv.trace.view import View, make_view
from edgekv.trace.words import Words, describe
from tests.cache.helpers import add
from tests.trace.streams import make_cache, write_log


def write_two(path: Path) -> None:
    """Session 1 computes instructions, session 2 finds them; each has frames and a question of its
    own; 1 closes first."""
    cache = make_cache(32)
    log = TraceWriter(cache, path)
    one = cache.open()
    add(cache, one, "system", 40)
    one.keep(b"instructions")
    for k in range(8):
        add(cache, one, "frame", 16, index=k, time_s=k)
    other = cache.open()
    found = other.find("system", b"instructions")
    assert found is not None
    other.take(found)
    for k in range(8, 16):
        for sequence in (one, other):
            add(cache, sequence, "frame", 16, index=k, time_s=k)
            with sequence.fork(purpose="question") as fork:
                add(cache, fork, "text", 5)
    one.close()
    for k in range(16, 20):
        add(cache, other, "frame", 16, index=k, time_s=k)
    other.close()
    log.close()


def seen(path: Path) -> tuple[View, Words]:
    log = read_log(path)
    view = make_view(build_timeline(log))
    return view, describe(log, view)


def holders(view: View, page: int) -> list[tuple[int, ...]]:
    """Who holds a page, one after the other."""
    runs = view.map.runs
    here = view.map.pages[runs.row] == page
    return [view.map.sets[number] for number in runs.holders[here]]


def test_holders_of_a_page_are_known_at_any_time(tmp_path: Path) -> None:
    write_two(tmp_path / "t")
    view, _ = seen(tmp_path / "t")
    assert view.timeline.sequences.num_sessions == 2
    assert holders(view, 0) == [(1,), (1, 2), (2,), ()]
    assert holders(view, 3)[0] == (1,), "a frame of session 1, whoever asks"
    prefix = view.timeline.lives.left_us[0]
    assert prefix == view.timeline.sequences[1].closed_us, "when the last one let go"
    lanes = dict(zip(view.bars.sequence.tolist(), view.bars.lane.tolist(), strict=True))
    for life in view.timeline.sequences.values():
        assert lanes[life.id] == life.session - 1, "a question stands in its session's lane"


def test_words_say_whose_and_what_is_shared(tmp_path: Path) -> None:
    write_two(tmp_path / "t")
    _, words = seen(tmp_path / "t")
    assert "sessions 1 and 2 held 3 pages of instructions together, stored once" in words.story
    assert "pages were cached, at most 3 at once" in words.story
    assert words.accounts == (
        "Session 1 (opened 0.0 s, closed 15.8 s): 16 frames came in; none was let go; "
        "8 questions from 8.0 s to 15.0 s.",
        "Session 2 (opened 7.4 s, closed 19.6 s): 12 frames came in; none was let go; "
        "8 questions from 8.3 s to 15.2 s.",
    )
    names = [name for name, _ in words.session_legend]
    assert names == ["s1", "s2", "shared", "cached", "asked", "free"]


def test_the_png_shows_both_sessions_and_what_they_share(tmp_path: Path) -> None:
    write_two(tmp_path / "t")
    view, words = seen(tmp_path / "t")
    draw(read_log(tmp_path / "t"), tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.width == 1280
    assert "whose" in words.panels
    by_session = session_pixels(view, view.map, 800, view.map.num_rows)
    colours = [{tuple(c) for c in row.tolist()} for row in by_session]
    assert {NAMED["s1"], NAMED["s2"], PAINT[CACHED]} <= colours[0], "one after the other"
    asked = view.map.runs.row[np.isin(view.map.runs.kind, BRIEF)]
    assert asked.size
    assert all(INK in colours[row] for row in asked), "what came for a question has edges"
    assert INK not in colours[0]
    before = by_session[3, :600].tolist()
    assert NAMED["s2"] not in {tuple(c) for c in before}, "until session 1 has closed"
    both = by_session[0, 350:550]
    assert {tuple(c) for c in both.tolist()} == {NAMED["s1"], NAMED["s2"]}, "in turn"
    assert kind_pixels(view, view.map, 800, 300).shape == (300, 800, 3)


def test_what_had_to_go_for_another_session_is_told_apart(tmp_path: Path) -> None:
    cache = make_cache(32)
    log = TraceWriter(cache, tmp_path / "t")
    one, other = cache.open(), cache.open()
    for k in range(6):
        for sequence in (one, other):
            add(cache, sequence, "frame", 16, index=k, time_s=k)
    one.drop([0, 1], rule="window")
    other.drop([0], rule=RECLAIM)
    log.close()
    view, words = seen(tmp_path / "t")
    moves = view.moves
    left = zip(*(column.tolist() for column in (moves.kind, moves.lane, moves.count)), strict=True)
    assert sorted(left) == [(CHOSEN, 0, 2), (FOR_OTHERS, 1, 1)]
    assert words.panels["left"] == (
        "Frames let go by the session itself (red), let go for another session (violet); "
        "the longest bar is 2 frames"
    )
    draw(read_log(tmp_path / "t"), tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as picture:
        shown = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20) or []}
    assert FORCED in shown


def test_the_page_has_a_switch_where_there_are_several_sessions(tmp_path: Path) -> None:
    write_two(tmp_path / "t")
    draw(read_log(tmp_path / "t"), tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text("utf-8")
    assert 'name="by" value="session"' in html
    assert '<i class="shared"></i>' in html
    draw(read_log(write_log(tmp_path / "one", 10)), tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text("utf-8")
    assert 'name="by" value="session"' not in html
    assert "whose" not in seen(tmp_path / "one")[1].panels


def test_a_question_that_was_open_before_the_log_is_its_sessions(tmp_path: Path) -> None:
    cache = make_cache(32)
    one, other = cache.open(), cache.open()
    add(cache, one, "frame", 16)
    add(cache, other, "frame", 16)
    question = other.fork(purpose="question")
    log = TraceWriter(cache, tmp_path / "t")
    add(cache, question, "text", 5)
    question.close()
    log.close()
    sequences = build_timeline(read_log(tmp_path / "t")).sequences
    assert sequences[question.id].session == sequences[other.id].session == 2


def test_pages_in_flight_are_nobodys(tmp_path: Path) -> None:
    """A session closes while a step still reads its pages."""
    cache = make_cache(32)
    log = TraceWriter(cache, tmp_path / "t")
    one, other = cache.open(), cache.open()
    step = cache.begin_step([one.append("frame", 40), other.append("frame", 40)])
    other.close()
    for _ in range(20):
        cache.open().close()
    step.commit()
    one.close()
    log.close()
    view, words = seen(tmp_path / "t")
    runs = view.map.runs
    assert set(runs.row[runs.kind == IN_FLIGHT].tolist()) == {3, 4, 5}
    assert ("flight", "in flight: let go, but a step still reads it") in words.legend
    assert len(words.accounts) == 7
    assert words.accounts[-1] == "And 16 more sessions."


def test_many_sessions_take_turns_with_the_colours(tmp_path: Path) -> None:
    cache = make_cache(32)
    log = TraceWriter(cache, tmp_path / "t")
    for k in range(20):
        with cache.open() as sequence:
            add(cache, sequence, "frame", 16, index=k, time_s=k)
    log.close()
    view, words = seen(tmp_path / "t")
    assert ("s4", "session 4, 12 …") in words.session_legend
    assert ("s5", "session 5, 13 …") in words.session_legend
    assert view.bars.names == ("sessions",)
    draw(read_log(tmp_path / "t"), tmp_path / "page.png")


def test_both_formats_have_the_same_colours() -> None:
    css = files("edgekv.trace").joinpath("page.css").read_text("utf-8")
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", css[: css.index("@media")]))
    light["frame"] = light["frame-new"]
    for name, colour in NAMED.items():
        assert light[name] == "#{:02x}{:02x}{:02x}".format(*colour), name
    assert np.unique([NAMED[f"s{k}"] for k in range(1, 9)], axis=0).shape == (8, 3)
