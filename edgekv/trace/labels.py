"""What panels and colours of a picture are called.

Guarantees: only what occurs in the picture has a name; the same in HTML and PNG.
Does not know: sentences, figures, which colours they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgekv.trace.bars import PROBE, QUESTION, RECALLING
from edgekv.trace.events import ANSWER, FRAME, SYSTEM, TEXT
from edgekv.trace.lives import CACHED, IN_FLIGHT, INPUT, PROBED, RECALLED, RESERVED
from edgekv.trace.page_map import PageMap
from edgekv.trace.view import View

NUM_SESSION_COLOURS = 8  # after which they come again
# Of what a page holds, by its kind: the name of its colour, and what it means.
COLOURS = {
    SYSTEM: ("system", "instructions: stay from first to last"),
    FRAME: ("frame", "frame of video: new → old"),
    RECALLED: ("recalled", "old frame, brought back from disk for one question"),
    TEXT: ("text", "text, of a question or said"),
    ANSWER: ("answer", "answer"),
    CACHED: ("cached", "cached: no session holds it, kept in case the same comes again"),
    INPUT: ("input", "input of cross-attention, held"),
    PROBED: ("probed", "a tier’s probe: it measures, or finds what a question is about"),
    RESERVED: ("reserved", "reserved: promised, still empty"),
    IN_FLIGHT: ("flight", "in flight: let go, but a step still reads it"),
}


def legend(view: View) -> Iterator[tuple[str, str]]:
    """Names of colours with what they mean, of all that is shown."""
    shown: set[int] = set()
    for pages in (view.map, view.inputs):
        if pages is not None:
            shown.update(np.unique(pages.runs.kind).tolist())
    if view.pages_in_flight.any():
        shown.add(IN_FLIGHT)
    yield from (name for kind, name in COLOURS.items() if kind in shown)
    yield "free", "free: nobody’s"


def session_colour(session: int) -> str:
    """The name of a session's colour, ``s1`` to ``s8``; ``probed`` for what is nobody's."""
    return f"s{(session - 1) % NUM_SESSION_COLOURS + 1}" if session else "probed"


def session_legend(view: View) -> Iterator[tuple[str, str]]:
    """Names of colours with whose they are, where there are several sessions."""
    count = view.timeline.num_sessions
    if count < 2:
        return
    for number in range(1, min(count, NUM_SESSION_COLOURS) + 1):
        text = f"session {number}"
        if number + NUM_SESSION_COLOURS <= count:
            text += f", {number + NUM_SESSION_COLOURS} …"
        yield session_colour(number), text
    held = [view.map.sets[k] for k in np.unique(view.map.runs.holders)]
    if any(len(sessions) > 1 for sessions in held):
        yield "shared", "colours in turn: all those sessions hold the one page"
    if 0 in {session for sessions in held for session in sessions}:
        yield "probed", "no session’s: a tier measures itself"
    for kind in (CACHED, IN_FLIGHT):
        if (view.map.runs.kind == kind).any():
            yield COLOURS[kind]
    yield "free", "free: nobody’s"


def panel_titles(view: View) -> dict[str, str]:
    """What each panel shows, from top to bottom."""
    titles = {"map": "Page map: " + _pages(view.map)}
    if view.timeline.num_sessions > 1:
        titles["whose"] = "The same pages by session: whose each one is"
    if view.inputs is not None:
        titles["inputs"] = "Cross-attention’s own pool: " + _pages(view.inputs)
    titles["lanes"] = _lanes(view)
    titles["left"] = "Frames evicted (red, down)"
    if view.frames_back.any():
        titles["left"] += ", brought back for a question (violet, up)"
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
    title = "Sessions, pale where no frames come in"
    if roles & {QUESTION, RECALLING}:
        title += "; below each, its questions (pink)"
    title += ", violet if they brought frames back" if RECALLING in roles else ""
    return title + ("; a tier’s probes" if PROBE in roles else "")
