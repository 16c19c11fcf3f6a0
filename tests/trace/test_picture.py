"""The picture says what happened, stands alone, and stays small however long the log."""

from __future__ import annotations

import base64
import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgekv.cli import main
from edgekv.errors import TraceError
from edgekv.trace import TraceWriter, read_log
from edgekv.trace.axis import axis_ticks
from edgekv.trace.colours import EVICT, PAINT
from edgekv.trace.draw import draw
from edgekv.trace.events import ANSWER, SYSTEM, TEXT
from edgekv.trace.timeline import build_timeline
from edgekv.trace.view import MAX_CELLS, make_view
from edgekv.trace.words import describe
from tests.trace.streams import make_cache, stream, write_log


def page_data(html: str) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def column(packed: list[str]) -> np.ndarray:
    kinds = {"u1": np.uint8, "u2": np.uint16, "i4": np.int32, "f4": np.float32}
    return np.frombuffer(base64.b64decode(packed[1]), kinds[packed[0]])


def test_the_page_stands_alone_and_tells_the_story(tmp_path: Path) -> None:
    draw(read_log(write_log(tmp_path / "street <1>.trace")), tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text("utf-8")
    assert not re.search(r"(src|href)=|@import|url\(|https?:", html), "it must open offline"
    assert "<title>street &lt;1&gt;.trace" in html
    for said in (
        "100 frames came in over 50.0 s of stream",
        "No session held more than 20 frames at once; 80 were let go in 16 batches, "
        "by the rule “window” (the oldest first)",
        "80 were let go by the rule “window” (the oldest first), from 0:10 to 0:47; "
        "10 questions from 0:05 to 0:50",
        "10 questions were asked",
        "all answers together have 120 tokens",
        "At most 106 of 128 pages (83%)",
    ):
        assert said in html
    for name in ("frames", "frames let go", "questions", "most frames held", "peak pages"):
        assert f"<dt>{name}</dt>" in html
    data = page_data(html)
    assert (data["begin"], data["end"], data["axis"]) == (0.0, 50.0, "stream time")
    assert column(data["moves"]["count"]).sum() == 80
    assert column(data["levels"]["used"]).max() == 106
    pool = data["maps"]["map"]
    kinds = column(pool["lives"]["kind"])
    assert (kinds == 0).sum() == 1
    assert (kinds == 1).sum() == 100
    assert (kinds == 3).sum() == 10, "a question is seen, however short"
    assert sorted(column(pool["lives"]["index"])[kinds == 1]) == list(range(100))
    runs = {name: column(values) for name, values in pool["runs"].items()}
    assert (runs["start"] < runs["stop"]).all()
    first = column(pool["first"])
    assert first.tolist() == list(range(106)), "a row for each page that was ever used"
    assert runs["row"].max() == 105
    assert "106 pages holds that were ever used; 22 never were" in data["panels"]["map"]


def test_the_png_is_the_same_picture(tmp_path: Path) -> None:
    draw(read_log(write_log(tmp_path / "t")), tmp_path / "page.png")
    picture = Image.open(BytesIO((tmp_path / "page.png").read_bytes()))
    assert picture.format == "PNG"
    assert picture.width == 1280
    seen = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20) or []}
    assert {PAINT[SYSTEM], PAINT[TEXT], PAINT[ANSWER], EVICT} <= seen


def test_a_long_log_is_no_larger_a_picture(tmp_path: Path) -> None:
    cache = make_cache(800)
    log = TraceWriter(cache, tmp_path / "t")
    for k in range(7):  # each stays open
        stream(cache, 200, ask_every=50, start=200 * k)
    log.close()
    read = read_log(tmp_path / "t")
    view = make_view(build_timeline(read))
    assert view.map.num_rows * view.num_columns <= MAX_CELLS
    assert view.map.num_rows == 512
    shown = view.map.runs.life
    kinds = np.asarray(view.timeline.lives.kind)[shown]
    assert np.unique(shown[kinds == 3]).size == 28
    notes = " ".join(describe(read, view).notes)
    assert "One row stands for 1.41 pages" in notes
    assert "Downsampled by time" in notes


@pytest.mark.parametrize("num_frames", [0, 1, 2])
def test_short_logs_have_a_picture_too(tmp_path: Path, num_frames: int) -> None:
    log = read_log(write_log(tmp_path / "t", num_frames, ask_every=1))
    for name in ("page.html", "page.png"):
        words = draw(log, tmp_path / name)
        assert f"{num_frames} frame" in words.story
    empty = TraceWriter(make_cache(), tmp_path / "empty")
    empty.close()
    draw(read_log(tmp_path / "empty"), tmp_path / "page.png")


@pytest.mark.parametrize("name", ["t.html", "link.html", "other.png"])
def test_no_log_is_replaced_by_a_picture(tmp_path: Path, name: str) -> None:
    log = write_log(tmp_path / "t.html")
    output = tmp_path / name
    if name == "link.html":
        output.symlink_to(log)
    elif output != log:
        write_log(output, 3)
    before = output.read_bytes()
    with pytest.raises(TraceError, match="holds a log and is not replaced by a picture"):
        draw(read_log(log), output)
    assert output.read_bytes() == before


def test_two_streams_have_no_common_stream_time(tmp_path: Path) -> None:
    cache = make_cache(256)
    log = TraceWriter(cache, tmp_path / "t")
    stream(cache, 10)
    stream(cache, 10)
    log.close()
    words = draw(read_log(tmp_path / "t"), tmp_path / "page.html")
    assert words.axis == "time since the log began"
    assert words.story.startswith("20 frames came in to 2 sessions within")


def test_ticks_are_few_and_inside() -> None:
    for end in (0.01, 0.5, 7.0, 61.0, 3599.0, 86_400.0, 3e6):
        ticks = axis_ticks(0.0, end, 12)
        assert 2 <= len(ticks) <= 13
        assert all(0 <= at <= end * 1.001 for at, _ in ticks)
        assert len({text for _, text in ticks}) == len(ticks)


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "t")

    def run(*arguments: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["trace", *map(str, arguments)])
        shown = capfd.readouterr()
        return ended.value.code, shown.out, shown.err

    code, out, err = run(log)
    assert (code, err) == (0, "")
    assert "100 frames came in" in out
    assert "peak pages" in out
    figures = [line for line in out.splitlines() if line.startswith("  ") and "  " in line[2:]]
    assert len({len(line) - len(line[2:].split("  ")[-1].lstrip()) for line in figures}) == 1
    assert any(line.startswith("  taking pages amid all else, ") for line in figures)
    code, out, err = run(log, "--replay", "-o", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert "replayed the same" in out
    assert f"{tmp_path / 'page.html'}:" in out.splitlines()
    assert all(len(line) <= 100 for line in out.split("page.html:")[1].splitlines())
    assert "100 frames came in" in out
    assert (tmp_path / "page.html").is_file()
    log.write_bytes(log.read_bytes()[:-1])
    code, out, err = run(log)
    assert code == 0
    assert "ends early" in err
    for arguments, said, expected in (
        ((log, "-o", tmp_path / "page.gif"), ".html or .png", 2),
        ((log, "-o", tmp_path / "no" / "page.png"), "no does not exist", 2),
        ((tmp_path / "none",), "No such file", 1),
        ((tmp_path / "page.html",), "not a trace", 1),
    ):
        code, out, err = run(*arguments)
        assert code == expected
        assert said in err
        assert len(err.splitlines()) == 1


def test_events_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """Whole records that cannot be true."""
    log = TraceWriter(make_cache(), tmp_path / "t")
    stranger = make_cache().open()
    log.removed(stranger, "close", np.empty(0, np.int64), "")  # it was never opened here
    log.close()
    with pytest.raises(TraceError, match=f"not fit those before it: no sequence {stranger.id}"):
        draw(read_log(tmp_path / "t"), tmp_path / "page.html")
