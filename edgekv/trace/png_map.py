"""A page map as pixels, in the light colours of the picture.

Guarantees: what belongs to a question is at least two pixels wide. Does not know: layout, text.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.trace.events import ANSWER, FRAME, SYSTEM, TEXT
from edgekv.trace.lives import CACHED, INPUT, PROBED, RECALLED
from edgekv.trace.page_map import BRIEF, PageMap
from edgekv.trace.view import View, typical_life_s

Colour = tuple[int, int, int]
FREE: Colour = (242, 242, 239)
KINDS: dict[int, Colour] = {
    SYSTEM: (89, 98, 115),
    FRAME: (27, 92, 203),
    TEXT: (227, 154, 0),
    ANSWER: (196, 38, 127),
    CACHED: (168, 205, 178),
    RECALLED: (122, 63, 196),
    PROBED: (150, 138, 100),
    INPUT: (15, 132, 140),
}
_OLD_FRAME = (189, 210, 244)


def faded(age: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colours of frames (…, 3) from new (0) to old (1)."""
    new, old = np.array(KINDS[FRAME]), np.array(_OLD_FRAME)
    mixed = new + np.clip(age, 0, 1)[..., None] * (old - new)
    # Few shades, so that the file stays small.
    shades: NDArray[np.uint8] = (np.round(mixed / 6) * 6).clip(0, 255).astype(np.uint8)
    return shades


def map_pixels(view: View, pages: PageMap, width: int) -> NDArray[np.uint8]:
    """(rows, width, 3) of one pool."""
    colours = np.empty((pages.num_rows, width, 3), np.uint8)
    colours[:] = FREE
    lives, clock, runs = pages.lives, view.clock, pages.runs
    kinds = np.asarray(lives.kind, np.int8)
    came = clock.at(np.asarray(lives.came_us, np.int64))
    seconds = clock.begin_s + np.arange(width) / width * (clock.end_s - clock.begin_s)
    life_s = max(typical_life_s(view), 1e-9)
    starts = runs.start * width // view.num_columns
    stops = np.maximum(runs.stop * width // view.num_columns, starts + 1)
    brief = np.isin(kinds[runs.life], BRIEF)
    stops = np.where(brief, np.maximum(stops, np.minimum(starts + 2, width)), stops)
    for k in np.argsort(brief, kind="stable"):
        life, row, start, stop = runs.life[k], runs.row[k], starts[k], stops[k]
        if kinds[life] == FRAME:
            colours[row, start:stop] = faded((seconds[start:stop] - came[life]) / life_s)
        else:
            colours[row, start:stop] = KINDS[int(kinds[life])]
    return colours
