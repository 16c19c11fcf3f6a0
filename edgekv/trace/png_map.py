"""A page map as pixels: by what a page holds, and by whose it is.

Guarantees: what belongs to a question is at least three pixels wide, a recalled frame five with a
light edge; a page that several sessions hold has stripes of all their colours.
Does not know: layout, text.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.trace.colours import FREE, INK, NAMED, OLD_FRAME, PAINT, WHITE, Colour
from edgekv.trace.events import FRAME
from edgekv.trace.labels import session_colour
from edgekv.trace.lives import CACHED, IN_FLIGHT, RECALLED, RESERVED
from edgekv.trace.page_map import BRIEF, PageMap
from edgekv.trace.view import View, typical_life_s

STRIPE = 5  # pixels
_BRIEF, _RECALLED = 3, 5  # least pixels


def faded(age: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colours of frames (…, 3) from new (0) to old (1)."""
    new, old = np.array(PAINT[FRAME]), np.array(OLD_FRAME)
    mixed = new + np.clip(age, 0, 1)[..., None] * (old - new)
    # Few shades, so that the file stays small.
    shades: NDArray[np.uint8] = (np.round(mixed / 6) * 6).clip(0, 255).astype(np.uint8)
    return shades


def striped(stripes: list[tuple[Colour, ...]], which: NDArray[np.intp]) -> NDArray[np.uint8]:
    """(height, width, 3): of ``which`` (height, width) stripes a pixel is part."""
    sizes = np.array([len(colours) for colours in stripes])
    starts = np.cumsum(sizes) - sizes
    flat = np.array([colour for colours in stripes for colour in colours], np.uint8)
    height, width = which.shape
    place = (np.arange(height)[:, None] + np.arange(width)) // STRIPE
    pixels: NDArray[np.uint8] = flat[starts[which] + place % sizes[which]]
    return pixels


def kind_pixels(view: View, pages: PageMap, width: int, height: int) -> NDArray[np.uint8]:
    """(height, width, 3) of one pool, by what its pages hold."""
    colours = np.empty((pages.num_rows, width, 3), np.uint8)
    colours[:] = FREE
    reserved = np.zeros((pages.num_rows, width), np.intp)
    came = view.clock.at(np.asarray(pages.lives.came_us, np.int64))
    begin, end = view.clock.begin_s, view.clock.end_s
    seconds = begin + np.arange(width) / width * (end - begin)
    life_s = max(typical_life_s(view), 1e-9)
    starts, stops = _places(view, pages, width)
    kinds, row = pages.runs.kind, pages.runs.row
    for k in np.argsort(np.isin(kinds, BRIEF), kind="stable"):
        here = row[k], slice(starts[k], stops[k])
        reserved[here] = kinds[k] == RESERVED
        if kinds[k] == FRAME:
            colours[here] = faded((seconds[here[1]] - came[pages.runs.life[k]]) / life_s)
            continue
        if kinds[k] == RECALLED:
            colours[row[k], max(starts[k] - 1, 0) : stops[k] + 1] = WHITE
        colours[here] = PAINT[int(kinds[k])]
    rows = np.arange(height) * pages.num_rows // height
    stripes = striped([(FREE,), (FREE, PAINT[RESERVED])], reserved[rows])
    return np.where(reserved[rows][..., None] > 0, stripes, colours[rows])


def session_pixels(view: View, pages: PageMap, width: int, height: int) -> NDArray[np.uint8]:
    """(height, width, 3) of one pool, by who holds its pages. A light line is where a page begins
    to show something else; what came for a question has dark edges."""
    stripes = [tuple(NAMED[session_colour(number)] for number in held) for held in pages.sets]
    stripes += [(FREE,), (PAINT[CACHED],), (PAINT[IN_FLIGHT],)]
    free, cached, in_flight = range(len(pages.sets), len(stripes))
    stripes[0] = (FREE,)
    which = np.full((pages.num_rows, width), free, np.intp)
    # 0 = as it is, 1 = a light line, 2 = a dark edge
    edges = np.zeros((pages.num_rows, width), np.int8)
    runs, (starts, stops) = pages.runs, _places(view, pages, width)
    shown = np.where(runs.kind == CACHED, cached, runs.holders)
    shown = np.where(runs.kind == IN_FLIGHT, in_flight, shown)
    for k in np.argsort(np.isin(runs.kind, BRIEF), kind="stable"):
        which[runs.row[k], starts[k] : stops[k]] = shown[k]
        is_brief = runs.kind[k] in BRIEF
        edges[runs.row[k], starts[k] : stops[k]] = 0
        edges[runs.row[k], starts[k]] = 2 * is_brief or stops[k] - starts[k] > _RECALLED
        edges[runs.row[k], stops[k] - 1] += 2 * is_brief
    rows = np.arange(height) * pages.num_rows // height
    colours = striped(stripes, which[rows])
    lighter = (colours.astype(np.int16) + 2 * 255) // 3
    colours = np.where(edges[rows][..., None] == 1, lighter, colours)
    return np.where(edges[rows][..., None] >= 2, INK, colours).astype(np.uint8)


def _places(view: View, pages: PageMap, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First pixel, and the one behind the last, of each run."""
    runs = pages.runs
    starts = runs.start.astype(np.int64) * width // view.num_columns
    stops = np.maximum(runs.stop.astype(np.int64) * width // view.num_columns, starts + 1)
    least = np.where(np.isin(runs.kind, BRIEF), _BRIEF, 1)
    least = np.where(runs.kind == RECALLED, _RECALLED, least)
    return starts, np.minimum(np.maximum(stops, starts + least), width)
