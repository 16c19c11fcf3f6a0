"""A view as one PNG, with Pillow alone: the page's panels without its hover.

Owns: the layout and the light colours of the picture. Guarantees: same size whatever the log.
Does not know: where the view comes from.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from edgekv.trace.axis import axis_ticks
from edgekv.trace.events import ANSWER, FRAME, SYSTEM, TEXT
from edgekv.trace.lives import CACHED
from edgekv.trace.view import View, share_floor, typical_life_s
from edgekv.trace.words import Words

WIDTH = 1280
_LEFT, _RIGHT, _MARGIN = 84, 24, 24
_INNER = WIDTH - _LEFT - _RIGHT
_MAP_HEIGHT, _LANE_HEIGHT, _GAP = 420, 16, 30
_WHITE, _INK, _MUTED, _GRID, _FREE = "#ffffff", "#1b1c1e", "#62666c", "#d9dad6", "#f2f2ef"
_EVICT, _LEVEL, _FLIGHT, _LINE, _FORK = "#cc3d22", "#7d93b5", "#d9822b", "#22764f", "#d9822b"
_KINDS = {SYSTEM: (89, 98, 115), FRAME: (27, 92, 203), TEXT: (227, 154, 0), ANSWER: (196, 38, 127)}
_OLD_FRAME = (189, 210, 244)
_CACHED = (168, 205, 178)


def picture_png(view: View, words: Words) -> bytes:
    """The picture, encoded."""
    return _Picture(view, words).encoded()


class _Picture:
    def __init__(self, view: View, words: Words) -> None:
        self._view = view
        self._lanes = min(view.num_lanes, 8) * _LANE_HEIGHT
        small, plain = _font(13), _font(15)
        story = _wrapped(words.story, plain, WIDTH - 2 * _MARGIN)
        notes = [line for n in words.notes for line in _wrapped(n, small, WIDTH - 2 * _MARGIN)]
        heights = (_MAP_HEIGHT, 40, self._lanes, 64, 48, 64)
        top = 62 + 22 * len(story) + 40
        height = top + sum(heights) + _GAP * len(heights) + 56 + 18 * len(notes) + 12
        self._image = Image.new("RGB", (WIDTH, height), _WHITE)
        self._draw = ImageDraw.Draw(self._image)
        self._text(_MARGIN, 16, "edgekv page map", _MUTED, small)
        self._text(_MARGIN, 32, words.title, _INK, _font(22))
        for k, line in enumerate(story):
            self._text(_MARGIN, 64 + 22 * k, line, _INK, plain)
        self._legend(72 + 22 * len(story))
        asked = "; questions in the last row" if view.bars.is_question.any() else ""
        panels = (
            ("Page map: what each page of the pool holds", self._map),
            ("Frames evicted", self._left),
            (f"Contexts and forks{asked}", self._bars),
            ("Pages in use, and cached", self._used),
            ("Utilisation: slots of live pages that hold a token", self._share),
            ("Allocation latency in microseconds: median of each column", self._allocation),
        )
        y = top
        for (title, paint), high in zip(panels, heights, strict=True):
            self._text(_LEFT, y + 9, title, _INK, _font(14))
            y += _GAP
            self._draw.rectangle((_LEFT, y, _LEFT + _INNER - 1, y + high - 1), fill=_FREE)
            paint(y, high)
            y += high
        self._axis(y, words.axis)
        for k, line in enumerate(notes):
            self._text(_MARGIN, y + 56 + 18 * k, line, _MUTED, small)

    def encoded(self) -> bytes:
        out = BytesIO()
        self._image.quantize(128, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        return out.getvalue()

    # -- panels -----------------------------------------------------------------------------------

    def _map(self, y: int, high: int) -> None:
        view = self._view
        picture = Image.fromarray(_map_pixels(view))
        # Rows of equal height where they fit, so that no page looks thicker than its neighbour.
        self._image.paste(picture.resize((_INNER, high), Image.Resampling.NEAREST), (_LEFT, y))
        self._label(y, "page 0")
        self._label(y + high // 2 - 8, str((view.timeline.num_pages - 1) // 2))
        self._label(y + high - 16, str(view.timeline.num_pages - 1))

    def _left(self, y: int, high: int) -> None:
        most = int(self._view.frames_left.max(initial=0))
        for c in np.flatnonzero(self._view.frames_left):
            length = max(2, int(self._view.frames_left[c] * (high - 4) / most))
            x = self._x(int(c))
            self._draw.rectangle((x, y + high - length, x + 1, y + high - 1), fill=_EVICT)
        self._label(y, str(max(most, 1)))
        self._label(y + high - 16, "0")

    def _bars(self, y: int, high: int) -> None:
        bars, clock = self._view.bars, self._view.clock
        scale = _INNER / (clock.end_s - clock.begin_s)
        lane_height = high / self._view.num_lanes
        for k in range(bars.lane.size):
            x0 = _LEFT + (bars.from_s[k] - clock.begin_s) * scale
            x1 = max(_LEFT + (bars.to_s[k] - clock.begin_s) * scale - 1, x0 + 1)
            top = y + bars.lane[k] * lane_height + 2
            fill = _KINDS[FRAME] if bars.parent[k] < 0 else _FORK
            if bars.is_question[k]:
                fill = _KINDS[ANSWER]
            box = (round(x0), round(top), round(x1), round(top + max(lane_height - 5, 0)))
            self._draw.rectangle(box, fill=fill)
        if bars.is_question.any():
            self._label(y + high - _LANE_HEIGHT, "asked")
        for lane in range(self._view.num_lanes - bool(bars.is_question.any())):
            self._label(y + round(lane * lane_height), f"{lane + 1}")

    def _used(self, y: int, high: int) -> None:
        num_pages = self._view.timeline.num_pages
        for values, fill in (
            (self._view.pages_used + self._view.pages_cached, _CACHED),
            (self._view.pages_used, _LEVEL),
            (self._view.pages_in_flight, _FLIGHT),
        ):
            for x in range(_INNER):
                length = int(values[x * values.size // _INNER] * high / num_pages)
                if length:
                    left = _LEFT + x
                    self._draw.line((left, y + high - length, left, y + high - 1), fill=fill)
        self._label(y, str(num_pages))
        self._label(y + high - 16, "0")

    def _allocation(self, y: int, high: int) -> None:
        took = self._view.allocation_p50_us
        known = np.flatnonzero(~np.isnan(took))
        if not known.size:
            return
        logs = np.log10(np.maximum(took[known], 0.1))
        low = int(np.floor(logs.min()))
        top = max(int(np.ceil(logs.max())), low + 1)
        self._curve(y, high, known, (logs - low) / (top - low))
        self._label(y, f"{10.0**top:g}")
        self._label(y + high - 16, f"{10.0**low:g}")

    def _share(self, y: int, high: int) -> None:
        shares = self._view.utilisation
        low = share_floor(self._view)
        self._curve(y, high, np.arange(shares.size), (shares - low) / (1 - low))
        self._label(y, "100%")
        self._label(y + high - 16, f"{low:.0%}")

    def _curve(
        self, y: int, high: int, columns: NDArray[np.integer], part: NDArray[np.float64]
    ) -> None:
        """A line through ``part`` (n,), 0 to 1 of the panel's height, at ``columns`` (n,)."""
        ys = y + 2 + (high - 4) * (1 - part.clip(0, 1))
        points = [(self._x(int(c)), float(at)) for c, at in zip(columns, ys, strict=True)]
        if len(points) > 1:
            self._draw.line(points, fill=_LINE, width=1)

    def _axis(self, y: int, name: str) -> None:
        clock = self._view.clock
        for at, text in axis_ticks(clock.begin_s, clock.end_s, 10):
            x = _LEFT + int((at - clock.begin_s) / (clock.end_s - clock.begin_s) * (_INNER - 1))
            self._draw.line((x, y, x, y + 4), fill=_MUTED)
            self._text(x, y + 8, text, _MUTED, _font(13), "ma")
        self._text(_LEFT + _INNER // 2, y + 28, name, _INK, _font(13), "ma")

    def _legend(self, y: int) -> None:
        x = _MARGIN
        entries = (
            ("system, pinned", _KINDS[SYSTEM]),
            ("frame, from new to old", None),
            ("text of a question", _KINDS[TEXT]),
            ("answer", _KINDS[ANSWER]),
            ("cached: left, can be found again", _CACHED),
            ("free", _FREE),
            ("frames evicted", _EVICT),
        )
        for name, fill in entries:
            wide = 14
            if fill is None:
                wide = 44
                ramp = _mixed(np.linspace(0, 1, wide)[None])
                self._image.paste(Image.fromarray(np.repeat(ramp, 12, axis=0)), (x, y + 3))
            else:
                outline = _GRID if fill == _FREE else None
                self._draw.rectangle((x, y + 3, x + wide - 1, y + 14), fill=fill, outline=outline)
            self._text(x + wide + 7, y, name, _INK, _font(13))
            x += wide + 27 + int(_font(13).getlength(name))

    # -- helpers ----------------------------------------------------------------------------------

    def _x(self, column: int) -> int:
        return _LEFT + column * _INNER // self._view.num_columns

    def _label(self, y: int, text: str) -> None:
        self._text(_LEFT - 8, y, text, _MUTED, _font(13), "ra")

    def _text(
        self, x: int, y: int, text: str, fill: str, font: ImageFont.FreeTypeFont, anchor: str = "la"
    ) -> None:
        self._draw.text((x, y), text, fill=fill, font=font, anchor=anchor)


def _mixed(age: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colours of frames (…, 3) from new (0) to old (1)."""
    new, old = np.array(_KINDS[FRAME]), np.array(_OLD_FRAME)
    mixed = new + np.clip(age, 0, 1)[..., None] * (old - new)
    # Few shades, so that the file stays small.
    shades: NDArray[np.uint8] = (np.round(mixed / 6) * 6).clip(0, 255).astype(np.uint8)
    return shades


def _map_pixels(view: View) -> NDArray[np.uint8]:
    """(rows, _INNER, 3) the page map."""
    colours = np.empty((view.num_rows, _INNER, 3), np.uint8)
    colours[:] = tuple(int(_FREE[k : k + 2], 16) for k in (1, 3, 5))
    lives, clock, runs = view.timeline.lives, view.clock, view.runs
    kinds = np.asarray(lives.kind, np.int8)
    came = clock.at(np.asarray(lives.came_us, np.int64))
    seconds = clock.begin_s + np.arange(_INNER) / _INNER * (clock.end_s - clock.begin_s)
    life_s = max(typical_life_s(view), 1e-9)
    starts = runs.start * _INNER // view.num_columns
    stops = np.maximum(runs.stop * _INNER // view.num_columns, starts + 1)
    asked = np.isin(kinds[runs.life], (TEXT, ANSWER))
    stops = np.where(asked, np.maximum(stops, np.minimum(starts + 2, _INNER)), stops)
    for k in np.argsort(asked, kind="stable"):
        life, row, start, stop = runs.life[k], runs.row[k], starts[k], stops[k]
        if kinds[life] == FRAME:
            colours[row, start:stop] = _mixed((seconds[start:stop] - came[life]) / life_s)
        else:
            kind = int(kinds[life])
            colours[row, start:stop] = _CACHED if kind == CACHED else _KINDS[kind]
    return colours


def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return font


def _wrapped(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """Lines no longer than ``width`` pixels."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
