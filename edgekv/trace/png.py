"""A view as a PNG: the same panels as in HTML, one below the other, in light colours.

Owns: the layout. Guarantees: the same text as in HTML; whose each page is has a map of its own,
where HTML has a switch. Does not know: where the view comes from, how a panel is drawn.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

from edgekv.trace.axis import axis_ticks
from edgekv.trace.colours import FREE, GRID, INK, MUTED, NAMED, PAINT
from edgekv.trace.indexed import indexed
from edgekv.trace.lives import RESERVED
from edgekv.trace.png_map import STRIPE, faded, striped
from edgekv.trace.png_panels import Panels, height_of
from edgekv.trace.png_sheet import INNER, LEFT, MARGIN, WIDTH, Sheet, font, wrapped
from edgekv.trace.view import View
from edgekv.trace.words import Words

_GAP = 30  # above a panel, for its title
_STORY, _SMALL, _LEGEND_LINE = 22, 18, 20  # lines' heights


def picture_png(view: View, words: Words) -> bytes:
    """The picture, encoded."""
    page, out = _Page(view, words), BytesIO()
    indexed(np.asarray(page.sheet.image), NAMED.values()).save(out, "PNG", optimize=True)
    return out.getvalue()


class _Page:
    def __init__(self, view: View, words: Words) -> None:
        self._view = view
        inner = WIDTH - 2 * MARGIN
        story = wrapped(words.story, 15, inner)
        accounts = [line for text in words.accounts for line in wrapped(text, 15, inner)]
        notes = [line for note in words.notes for line in wrapped(note, 13, inner)]
        legends = {"map": words.legend, "whose": words.session_legend}
        places = {name: _places(entries) for name, entries in legends.items()}
        tall = {name: _LEGEND_LINE * _num_lines(places.get(name, [])) for name in words.panels}
        panels = sum(height_of(name, view) + _GAP + tall[name] for name in words.panels)
        above = 70 + _STORY * (len(story) + len(accounts)) + 8
        self.sheet = Sheet(above + panels + 68 + _SMALL * len(notes))
        self.sheet.text(MARGIN, 16, "edgekv page map", MUTED, 13)
        self.sheet.text(MARGIN, 32, words.title, INK, 22)
        for k, line in enumerate(story):
            self.sheet.text(MARGIN, 64 + _STORY * k, line, INK, 15)
        for k, line in enumerate(accounts):
            self.sheet.text(MARGIN, 70 + _STORY * (len(story) + k), line, INK, 15)
        y, draw = above, Panels(self.sheet, view)
        for name, title in words.panels.items():
            self.sheet.text(LEFT, y + 9, title, INK, 14)
            for entry, (x, row) in zip(legends.get(name, ()), places.get(name, ()), strict=True):
                self._entry(x, y + _GAP + _LEGEND_LINE * row, *entry)
            y += _GAP + tall[name]
            high = height_of(name, view)
            self.sheet.box(LEFT, y, LEFT + INNER, y + high, FREE)
            draw.draw(name, y, high)
            y += high
        self._axis(y, words.axis)
        for k, line in enumerate(notes):
            self.sheet.text(MARGIN, y + 56 + _SMALL * k, line, MUTED, 13)

    def _axis(self, y: int, name: str) -> None:
        clock = self._view.clock
        for at, text in axis_ticks(clock.begin_s, clock.end_s, 10):
            x = LEFT + int((at - clock.begin_s) / (clock.end_s - clock.begin_s) * (INNER - 1))
            self.sheet.box(x, y, x + 1, y + 5, MUTED)
            self.sheet.text(x, y + 8, text, MUTED, 13, "ma")
        self.sheet.text(LEFT + INNER // 2, y + 28, name, INK, 13, "ma")

    def _entry(self, x: int, y: int, name: str, text: str) -> None:
        """One colour of a legend."""
        wide = _swatch(name)
        if name == "frame":
            ramp = faded(np.linspace(0, 1, wide)[None])
            self.sheet.image.paste(Image.fromarray(np.repeat(ramp, 12, axis=0)), (x, y + 1))
        elif stripes := {"reserved": (FREE, PAINT[RESERVED]), "shared": _SHARED}.get(name):
            pixels = striped([stripes], np.zeros((12, wide), np.intp))
            self.sheet.image.paste(Image.fromarray(pixels), (x, y + 1))
        else:
            outline = {"free": GRID, "asked": INK}.get(name)
            fill = NAMED["s1" if name == "asked" else name]
            self.sheet.draw.rectangle((x, y + 1, x + wide - 1, y + 12), fill=fill, outline=outline)
        self.sheet.text(x + wide + 7, y - 2, text, INK, 13)


_SHARED = (NAMED["s1"], NAMED["s2"])


def _swatch(name: str) -> int:
    return {"frame": 44, "shared": 6 * STRIPE, "reserved": 4 * STRIPE}.get(name, 14)


def _places(entries: tuple[tuple[str, str], ...]) -> list[tuple[int, int]]:
    """Where each entry of a legend stands: x and line."""
    x, line, places = LEFT, 0, list[tuple[int, int]]()
    for name, text in entries:
        wide = _swatch(name) + 7 + int(font(13).getlength(text))
        if x > LEFT and x + wide > WIDTH - MARGIN:
            x, line = LEFT, line + 1
        places.append((x, line))
        x += wide + 20
    return places


def _num_lines(places: list[tuple[int, int]]) -> int:
    return places[-1][1] + 1 if places else 0
