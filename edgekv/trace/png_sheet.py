"""A sheet to draw on: text in Pillow's own font, the panels' left and right edges.

Guarantees: only text that the font has. Does not know: what is drawn.
"""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

from edgekv.trace.colours import MUTED, WHITE, Colour

WIDTH, MARGIN = 1280, 24
LEFT, _RIGHT = 84, 24
INNER = WIDTH - LEFT - _RIGHT  # of a panel
# What the font lacks, in words that it has.
_SPELT = {ord("µ"): "u", ord("→"): "to"}


class Sheet:
    """White, so high."""

    def __init__(self, height: int) -> None:
        self.image = Image.new("RGB", (WIDTH, height), WHITE)
        self.draw = ImageDraw.Draw(self.image)

    def text(self, x: int, y: int, text: str, fill: Colour, size: int, anchor: str = "la") -> None:
        """One line; ``anchor`` is Pillow's."""
        self.draw.text((x, y), text.translate(_SPELT), fill=fill, font=font(size), anchor=anchor)

    def label(self, y: int, text: str) -> None:
        """A name at the left of a panel."""
        self.text(LEFT - 8, y, text, MUTED, 13, "ra")

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: Colour) -> None:
        """A filled box that ends before ``x1`` and ``y1``; at least a pixel."""
        left, top = round(x0), round(y0)
        right, bottom = max(round(x1) - 1, left), max(round(y1) - 1, top)
        self.draw.rectangle((left, top, right, bottom), fill=fill)


def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's own."""
    found = ImageFont.load_default(size)
    assert isinstance(found, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return found


def wrapped(text: str, size: int, width: int) -> list[str]:
    """Lines no longer than ``width`` pixels."""
    letters, lines = font(size), [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and letters.getlength(longer.translate(_SPELT)) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
