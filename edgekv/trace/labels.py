"""What panels and colours of a picture are called.

Guarantees: only what occurs in the picture has a name; the same in HTML and PNG.
Does not know: sentences, figures, which colours they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgekv.trace.axis import clock_text
from edgekv.trace.bars import PROBE, QUESTION, RECALLING
from edgekv.trace.events import ANSWER, FRAME, SYSTEM, TEXT
from edgekv.trace.lives import CACHED, IN_FLIGHT, INPUT, PROBED, RECALLED, RESERVED
from edgekv.trace.moves import BACK, CHOSEN, FORCED
from edgekv.trace.page_map import BRIEF, PageMap
from edgekv.trace.phrases import many
from edgekv.trace.view import View, typical_life_s

NUM_SESSION_COLOURS = 8  # after which they come again
# Of what a page holds, by its kind: the name of its colour, and what it means.
MEANINGS = {
    SYSTEM: ("system", "instructions: stay from first to last"),
    FRAME: ("frame", "frame of video, fading: left = new, right = {age} old or more"),
    RECALLED: ("recalled", "old frame, brought back from disk for one question"),
    TEXT: ("text", "text of a question, or said"),
    ANSWER: ("answer", "answer"),
    CACHED: ("cached", "cached: no session holds it, kept in case the same comes again"),
    INPUT: ("input", "picture’s input that cross-attention layers read, held"),
    PROBED: (
        "probed",
        "probe: a short trial that times the disk, or finds what a question needs",
    ),
    RESERVED: ("reserved", "reserved: promised to what comes next, still empty"),
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
    age = clock_text(typical_life_s(view))
    for kind, (name, text) in MEANINGS.items():
        if kind in shown:
            yield name, text.format(age=age)
    yield "free", "free: nobody’s"


def session_colour(session: int) -> str:
    """The name of a session's colour, ``s1`` to ``s8``; ``probed`` for what is nobody's."""
    return f"s{(session - 1) % NUM_SESSION_COLOURS + 1}" if session else "probed"


def session_legend(view: View) -> Iterator[tuple[str, str]]:
    """Names of colours with whose they are, where there are several sessions."""
    count = view.timeline.sequences.num_sessions
    if count < 2:
        return
    for number in range(1, min(count, NUM_SESSION_COLOURS) + 1):
        text = f"session {number}"
        if number + NUM_SESSION_COLOURS <= count:
            text += f", {number + NUM_SESSION_COLOURS} …"
        yield session_colour(number), text
    held = [view.map.sets[k] for k in np.unique(view.map.runs.holders)]
    if any(len(sessions) > 1 for sessions in held):
        yield "shared", "both colours in stripes: these sessions hold the one page together"
    if 0 in {session for sessions in held for session in sessions}:
        yield "probed", "no session’s: a probe that times the disk"
    for kind in (CACHED, IN_FLIGHT):
        if (view.map.runs.kind == kind).any():
            yield MEANINGS[kind]
    if np.isin(view.map.runs.kind, BRIEF).any():
        yield "asked", "with edges: text, or there for one question"
    yield "free", "free: nobody’s"


def panel_titles(view: View) -> dict[str, str]:
    """What each panel shows, from top to bottom."""
    titles = {"map": "Page map: " + _pages(view.map)}
    if view.timeline.sequences.num_sessions > 1:
        titles["whose"] = "The same pages by session: whose each one is"
    if view.inputs is not None:
        titles["inputs"] = "Cross-attention’s own pool: " + _pages(view.inputs)
    titles["lanes"] = _lanes(view)
    titles["left"] = _left(view)
    titles["used"] = "Pages in use (grey-blue)"
    if view.pages_cached.any():
        titles["used"] += ", cached on top (green)"
    if view.pages_in_flight.any():
        titles["used"] += ", in flight (brown)"
    titles["used"] += f", of {view.timeline.num_pages:,}"
    if view.timeline.lookups.found:
        titles["hits"] = "Looked for in memory before computing (grey), and found there (green)"
        if view.moves.num(CHOSEN) + view.moves.num(FORCED):
            titles["hits"] += "; a session that has let frames go looks no more"
    titles["share"] = "How full the pages in use are: 100% = no place for a token is empty"
    titles["alloc"] = (
        "Allocation latency, time to hand out pages amid all else, logarithmic: median (green "
        "steps, each until the next), slowest 1% where it differs (dots)"
    )
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
        title += "; below each, its questions"
    return title + (
        "; probes: short trials of the disk, or of a question" if PROBE in roles else ""
    )


def _left(view: View) -> str:
    """What left and came back: only the colours that occur."""
    moves = view.moves
    colours = []
    if moves.num(CHOSEN):
        colours.append("let go by the session itself (red)")
    if moves.num(FORCED):
        colours.append("let go for another session (violet)")
    if moves.num(BACK):
        colours.append("brought back for a question (orange, up)")
    if not colours:
        return "Frames let go: none"
    return f"Frames {', '.join(colours)}; the longest bar is {many(moves.most, 'frame')}"
