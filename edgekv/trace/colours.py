"""The light colours of a picture, as a PNG has them; ``page.css`` names the same ones.

Guarantees: sessions have colours that colour-blind eyes tell apart (after Okabe and Ito); what is
small and rare, as a recalled frame is, stands out from the blue of frames; the first seven sessions
have no colour that a page map uses for something else.
Does not know: what is drawn.
"""

from __future__ import annotations

from edgekv.trace.events import ANSWER, FRAME, SYSTEM, TEXT
from edgekv.trace.labels import MEANINGS
from edgekv.trace.lives import CACHED, IN_FLIGHT, INPUT, PROBED, RECALLED, RESERVED

Colour = tuple[int, int, int]
WHITE: Colour = (255, 255, 255)
INK: Colour = (27, 28, 30)
MUTED: Colour = (98, 102, 108)
GRID: Colour = (217, 218, 214)
FREE: Colour = (242, 242, 239)
EVICT: Colour = (204, 61, 34)
FORCED: Colour = (72, 16, 122)
LEVEL: Colour = (125, 147, 181)
LINE: Colour = (34, 118, 79)
OLD_FRAME: Colour = (189, 210, 244)
PAINT: dict[int, Colour] = {  # of a page, by the kind of what it holds
    SYSTEM: (89, 98, 115),
    FRAME: (27, 92, 203),
    TEXT: (27, 28, 30),
    ANSWER: (196, 38, 127),
    CACHED: (168, 205, 178),
    RECALLED: (240, 120, 0),
    PROBED: (150, 138, 100),
    INPUT: (15, 132, 140),
    RESERVED: (104, 109, 118),  # in stripes
    IN_FLIGHT: (133, 84, 28),
}
_SESSIONS: tuple[Colour, ...] = (
    (0, 114, 178),
    (204, 121, 167),
    (0, 130, 96),
    (86, 180, 233),
    (120, 105, 10),
    (90, 60, 140),
    (150, 60, 40),
    (230, 159, 0),
)
NAMED: dict[str, Colour] = {
    **{name: PAINT[kind] for kind, (name, _) in MEANINGS.items()},
    **{f"s{k}": colour for k, colour in enumerate(_SESSIONS, 1)},
    "free": FREE,
    "evict": EVICT,
    "forced": FORCED,
    "level": LEVEL,
    "line": LINE,
}


def paler(colour: Colour, share: float) -> Colour:
    """So much of the way to white."""
    red, green, blue = (round(part + (255 - part) * share) for part in colour)
    return red, green, blue


def readable_on(colour: Colour) -> Colour:
    """Black or white."""
    red, green, blue = colour
    return WHITE if 0.3 * red + 0.6 * green + 0.1 * blue < 140 else INK
