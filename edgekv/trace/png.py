"""A view as one PNG, with Pillow alone: the page's panels without its hover.

Owns: the layout of the picture. Guarantees: one width, and a height that no log makes much larger.
Does not know: where the view comes from.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from edgekv.trace.axis import axis_ticks, microseconds
from edgekv.trace.bars import CONTEXT, FORK, PROBE, QUESTION
from edgekv.trace.events import ANSWER, FRAME
from edgekv.trace.indexed import indexed
from edgekv.trace.labels import COLOURS
from edgekv.trace.lives import CACHED, PROBED
from edgekv.trace.page_map import PageMap
from edgekv.trace.png_map import FREE, KINDS, Colour, faded, map_pixels
from edgekv.trace.view import View, share_floor
from edgekv.trace.words import Words

WIDTH = 1280
_LEFT, _RIGHT, _MARGIN = 84, 24, 24
_INNER = WIDTH - _LEFT - _RIGHT
_LANE_HEIGHT, _GAP = 16, 30
_HEIGHTS = {"map": 420, "inputs": 96, "left": 40, "used": 64, "hits": 40, "share": 48, "alloc": 64}
_WHITE, _INK, _MUTED, _GRID = "#ffffff", "#1b1c1e", "#62666c", "#d9dad6"
_EVICT, _LEVEL, _FLIGHT, _LINE, _FORK = "#cc3d22", "#7d93b5", "#d9822b", "#22764f", "#d9822b"
_LEGEND: dict[str, Colour | str] = {
    **{name: KINDS[kind] for kind, (name, _) in COLOURS.items()},
    "free": FREE,
    "evict": _EVICT,
}
_ROLES: dict[int, Colour | str] = {
    CONTEXT: KINDS[FRAME],
    FORK: _FORK,
    QUESTION: KINDS[ANSWER],
    PROBE: KINDS[PROBED],
}
_PALE = {CONTEXT: "#c3d3ee", FORK: "#f1d3b0"}  # of contexts that take in no frames
# What Pillow's own font lacks, in words that it has.
_SPELT = {ord("µ"): "u", ord("→"): "to"}


def picture_png(view: View, words: Words) -> bytes:
    """The picture, encoded."""
    return _Picture(view, words).encoded()


class _Picture:
    def __init__(self, view: View, words: Words) -> None:
        self._view = view
        small, plain = _font(13), _font(15)
        story = _wrapped(words.story, plain, WIDTH - 2 * _MARGIN)
        notes = [line for n in words.notes for line in _wrapped(n, small, WIDTH - 2 * _MARGIN)]
        heights = {**_HEIGHTS, "lanes": min(len(view.bars.names), 8) * _LANE_HEIGHT}
        legend = _legend_places(words)
        top = 62 + 22 * len(story) + 20 + 20 * (legend[-1][1] + 1)
        panels = sum(heights[name] + _GAP for name in words.panels)
        height = top + panels + 56 + 18 * len(notes) + 12
        self._image = Image.new("RGB", (WIDTH, height), _WHITE)
        self._draw = ImageDraw.Draw(self._image)
        self._text(_MARGIN, 16, "edgekv page map", _MUTED, small)
        self._text(_MARGIN, 32, words.title, _INK, _font(22))
        for k, line in enumerate(story):
            self._text(_MARGIN, 64 + 22 * k, line, _INK, plain)
        for (name, text), (x, row) in zip(words.legend, legend, strict=True):
            self._entry(x, 72 + 22 * len(story) + 20 * row, name, text)
        y = self._panels(top, words.panels, heights)
        self._axis(y, words.axis)
        for k, line in enumerate(notes):
            self._text(_MARGIN, y + 56 + 18 * k, line, _MUTED, small)

    def _panels(self, y: int, titles: dict[str, str], heights: dict[str, int]) -> int:
        """All panels from ``y`` on down; where the last one ends."""
        paint = {
            "map": lambda y, high: self._map(y, high, self._view.map),
            "inputs": lambda y, high: self._map(y, high, self._view.inputs),
            "left": self._left,
            "lanes": self._bars,
            "used": self._used,
            "hits": self._hits,
            "share": self._share,
            "alloc": self._allocation,
        }
        for name, title in titles.items():
            high = heights[name]
            self._text(_LEFT, y + 9, title, _INK, _font(14))
            y += _GAP
            self._draw.rectangle((_LEFT, y, _LEFT + _INNER - 1, y + high - 1), fill=FREE)
            paint[name](y, high)
            y += high
        return y

    def encoded(self) -> bytes:
        out = BytesIO()
        named = [ImageColor.getrgb(c) if isinstance(c, str) else c for c in _LEGEND.values()]
        indexed(np.asarray(self._image), [colour[:3] for colour in named]).save(
            out, "PNG", optimize=True
        )
        return out.getvalue()

    # -- panels -----------------------------------------------------------------------------------

    def _map(self, y: int, high: int, pages: PageMap | None) -> None:
        assert pages is not None
        picture = Image.fromarray(map_pixels(self._view, pages, _INNER))
        self._image.paste(picture.resize((_INNER, high), Image.Resampling.NEAREST), (_LEFT, y))
        first = pages.first_pages()
        last = int(pages.pages[-1]) if pages.num_used else 0
        self._label(y, f"page {first[0]}")
        if pages.num_rows > 2:
            self._label(y + high // 2 - 8, str(first[pages.num_rows // 2]))
        if last != first[0]:
            self._label(y + high - 16, str(last))

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
        lane_height = high / len(bars.names)
        busy = (bars.busy_from_s, bars.busy_to_s)
        for k in range(bars.lane.size):
            x0 = _LEFT + (bars.from_s[k] - clock.begin_s) * scale
            x1 = max(_LEFT + (bars.to_s[k] - clock.begin_s) * scale - 1, x0 + 1)
            top = y + bars.lane[k] * lane_height + 2
            bottom, role = round(top + max(lane_height - 5, 0)), int(bars.role[k])
            fill = _PALE.get(role, _ROLES[role])
            self._draw.rectangle((round(x0), round(top), round(x1), bottom), fill=fill)
            if role in _PALE and bars.busy_from_s[k] == bars.busy_from_s[k]:
                b0, b1 = (_LEFT + (at[k] - clock.begin_s) * scale for at in busy)
                box = (round(b0), round(top), max(round(b1) - 1, round(b0) + 1), bottom)
                self._draw.rectangle(box, fill=_ROLES[role])
        if lane_height >= _LANE_HEIGHT:
            for lane, name in enumerate(bars.names):
                self._label(y + round(lane * lane_height), name)

    def _used(self, y: int, high: int) -> None:
        most = self._view.most_pages
        for values, fill in (
            (self._view.pages_used + self._view.pages_cached, KINDS[CACHED]),
            (self._view.pages_used, _LEVEL),
            (self._view.pages_in_flight, _FLIGHT),
        ):
            for x in range(_INNER):
                length = int(values[x * values.size // _INNER] * high / most)
                if length:
                    left = _LEFT + x
                    self._draw.line((left, y + high - length, left, y + high - 1), fill=fill)
        self._label(y, str(most))
        self._label(y + high - 16, "0")

    def _hits(self, y: int, high: int) -> None:
        rates = self._view.hit_rate
        for k in np.flatnonzero(~np.isnan(rates)).tolist():
            x0, x1 = (_LEFT + n * _INNER // rates.size for n in (k, k + 1))
            self._draw.rectangle((x0, y, x1 - 1, y + high - 1), fill=_GRID)
            if rates[k] > 0:
                top = y + high - max(round(rates[k] * high), 1)
                self._draw.rectangle((x0, top, x1 - 1, y + high - 1), fill=_LINE)
        self._label(y, "100%")
        self._label(y + high - 16, "0%")

    def _allocation(self, y: int, high: int) -> None:
        p50, p99 = self._view.allocation_p50_us, self._view.allocation_p99_us
        known = np.flatnonzero(~np.isnan(p50))
        if not known.size:
            return
        low = int(np.floor(np.log10(max(float(p50[known].min()), 0.1))))
        top = max(int(np.ceil(np.log10(max(float(p99[known].max()), 0.1)))), low + 1)

        def part(values: NDArray[np.float64]) -> NDArray[np.float64]:
            shares: NDArray[np.float64] = (np.log10(np.maximum(values, 0.1)) - low) / (top - low)
            return shares

        for c, share in zip(known.tolist(), part(p99[known]), strict=True):
            at = y + 2 + (high - 4) * (1 - share)
            self._draw.rectangle((self._x(c), at, self._x(c) + 1, at + 1), fill=_MUTED)
        self._curve(y, high, known, part(p50[known]))
        self._label(y, microseconds(top))
        self._label(y + high - 16, microseconds(low))

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

    def _entry(self, x: int, y: int, name: str, text: str) -> None:
        """One colour of the legend."""
        wide, fill = _swatch(name), _LEGEND[name]
        if name == "frame":
            ramp = faded(np.linspace(0, 1, wide)[None])
            self._image.paste(Image.fromarray(np.repeat(ramp, 12, axis=0)), (x, y + 3))
        else:
            outline = _GRID if name == "free" else None
            self._draw.rectangle((x, y + 3, x + wide - 1, y + 14), fill=fill, outline=outline)
        self._text(x + wide + 7, y, text, _INK, _font(13))

    # -- helpers ----------------------------------------------------------------------------------

    def _x(self, column: int) -> int:
        return _LEFT + column * _INNER // self._view.num_columns

    def _label(self, y: int, text: str) -> None:
        self._text(_LEFT - 8, y, text, _MUTED, _font(13), "ra")

    def _text(
        self, x: int, y: int, text: str, fill: str, font: ImageFont.FreeTypeFont, anchor: str = "la"
    ) -> None:
        self._draw.text((x, y), text.translate(_SPELT), fill=fill, font=font, anchor=anchor)


def _swatch(name: str) -> int:
    return 44 if name == "frame" else 14


def _legend_places(words: Words) -> list[tuple[int, int]]:
    """Where each entry of the legend stands: x and line."""
    x, line, places = _MARGIN, 0, list[tuple[int, int]]()
    for name, text in words.legend:
        wide = _swatch(name) + 7 + int(_font(13).getlength(text))
        if x > _MARGIN and x + wide > WIDTH - _MARGIN:
            x, line = _MARGIN, line + 1
        places.append((x, line))
        x += wide + 20
    return places


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
