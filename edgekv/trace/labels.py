"""What panels and colours of a picture are called.

Guarantees: only what occurs in the picture has a name; the same in HTML and PNG.
Does not know: sentences, figures.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgekv.trace.bars import FORK, PROBE, QUESTION
from edgekv.trace.events import ANSWER, FRAME, SYSTEM, TEXT
from edgekv.trace.lives import CACHED, INPUT, PROBED, RECALLED
from edgekv.trace.page_map import PageMap
from edgekv.trace.view import View

# Of what a page holds, by its kind: the name of its colour, and what it means.
COLOURS = {
    SYSTEM: ("system", "system: the pinned start"),
    FRAME: ("frame", "frame: new → old"),
    RECALLED: ("recalled", "frame recalled from a tier"),
    TEXT: ("text", "text, of a question or said"),
    ANSWER: ("answer", "answer"),
    CACHED: ("cached", "cached: held by nobody, can be found"),
    INPUT: ("input", "input of cross-attention, held"),
    PROBED: ("probed", "a tier’s probe"),
}


def legend(view: View) -> Iterator[tuple[str, str]]:
    """Names of colours with what they mean, of all that is shown."""
    shown: set[int] = set()
    for pages in (view.map, view.inputs):
        if pages is not None:
            kinds = np.asarray(pages.lives.kind, np.int8)[pages.runs.life]
            shown.update(np.unique(kinds).tolist())
    yield from (name for kind, name in COLOURS.items() if kind in shown)
    yield "free", "free"
    if view.frames_left.any():
        yield "evict", "frames evicted"


def panel_titles(view: View) -> dict[str, str]:
    """What each panel shows, from top to bottom."""
    titles = {"map": "Page map: " + _pages(view.map)}
    if view.inputs is not None:
        titles["inputs"] = "Cross-attention’s own pool: " + _pages(view.inputs)
    titles["left"] = "Frames evicted"
    titles["lanes"] = _lanes(view)
    titles["used"] = "Pages in use (grey-blue)"
    if view.pages_cached.any():
        titles["used"] += ", cached on top (green)"
    if view.pages_in_flight.any():
        titles["used"] += ", in flight (orange)"
    titles["used"] += f", of {view.timeline.num_pages:,}"
    if view.timeline.lookups.found:
        titles["hits"] = "Hit rate: segments found in the pool (green), of those looked for (grey)"
    titles["share"] = "Utilisation: slots of live pages that hold a token"
    titles["alloc"] = "Allocation latency: median (line), 99th percentile (dots), logarithmic"
    return titles


def _pages(pages: PageMap) -> str:
    unused = pages.num_pages - pages.num_used
    if not unused:
        return f"what each of the {pages.num_pages:,} pages holds"
    if not pages.num_used:
        return f"none of the {pages.num_pages:,} pages was ever used"
    shown = f"what each of the {pages.num_used:,} pages holds that were ever used"
    return f"{shown}; {unused:,} never were, and are not shown"


def _lanes(view: View) -> str:
    roles = set(view.bars.role.tolist())
    title = "Contexts (blue)"
    title += " and forks (orange)" if FORK in roles else ""
    title += ", pale where no frames come in"
    title += ", questions (row “asked”)" if QUESTION in roles else ""
    return title + (", a tier’s probes (row “probes”)" if PROBE in roles else "")
