"""A view as one HTML file that needs nothing else: no network, no fonts, no libraries.

Owns: how numbers get into the page; ``page.html``, ``.css`` and ``.js`` beside this module are the
page. Guarantees: whatever a log's name or rules contain is text there, never markup.
Does not know: where the view comes from.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.trace.axis import axis_ticks
from edgekv.trace.labels import MEANINGS, NUM_SESSION_COLOURS
from edgekv.trace.lives import ENDS, Lives
from edgekv.trace.page_map import PageMap
from edgekv.trace.view import View, share_floor, typical_life_s
from edgekv.trace.words import Words

_SCRIPTS = ("page_data.js", "page_draw.js", "page_hover.js")
_SWITCH = """<fieldset class="switch"><legend>Colour the page map by</legend>
<label><input type="radio" name="by" value="kind" checked> what a page holds</label>
<label><input type="radio" name="by" value="session"> whose it is</label></fieldset>"""
_TYPES = {"u1": np.uint8, "u2": np.uint16, "i4": np.int32, "f4": np.float32}


def page_html(view: View, words: Words) -> str:
    """The whole page."""
    parts = files("edgekv.trace")
    figures = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in words.figures
    )
    return Template(parts.joinpath("page.html").read_text("utf-8")).substitute(
        title=escape(words.title),
        story=escape(words.story),
        figures=figures,
        accounts=_items(escape(account) for account in words.accounts),
        switch=_SWITCH if words.session_legend else "",
        legend=_legend(words.legend),
        session_legend=_legend(words.session_legend),
        notes="\n".join(f"<p>{escape(note)}</p>" for note in words.notes),
        css=parts.joinpath("page.css").read_text("utf-8"),
        js="\n".join(parts.joinpath(name).read_text("utf-8") for name in _SCRIPTS),
        data=json.dumps(_data(view, words), separators=(",", ":")).replace("<", "\\u003c"),
    )


def _items(texts: Iterable[str]) -> str:
    return "\n".join(f"<li>{text}</li>" for text in texts)


def _legend(entries: tuple[tuple[str, str], ...]) -> str:
    return _items(f'<i class="{name}"></i>{escape(text)}' for name, text in entries)


def _packed(kind: str, values: NDArray[Any]) -> list[str]:
    data = np.ascontiguousarray(values, np.dtype(_TYPES[kind]).newbyteorder("<"))
    return [kind, base64.b64encode(data.tobytes()).decode()]


def _data(view: View, words: Words) -> dict[str, Any]:
    maps = {"map": view.map, "inputs": view.inputs}
    bars = view.bars
    return {
        "columns": view.num_columns,
        "pages": view.timeline.num_pages,
        "most": view.most_pages,
        "begin": view.clock.begin_s,
        "end": view.clock.end_s,
        "window_s": typical_life_s(view),
        "axis": words.axis,
        "ticks": axis_ticks(view.clock.begin_s, view.clock.end_s, 12),
        "panels": {name: title for name, title in words.panels.items() if name != "whose"},
        "whose": words.panels.get("whose", ""),
        "session_colours": NUM_SESSION_COLOURS,
        "lanes": bars.names,
        "sessions": bars.sessions,
        "share_from": share_floor(view),
        "ends": ENDS,
        "kinds": [MEANINGS[kind][0] for kind in range(len(MEANINGS))],
        "maps": {name: _map(view, pages) for name, pages in maps.items() if pages is not None},
        "levels": {
            "used": _packed("i4", view.pages_used),
            "cached": _packed("i4", view.pages_cached),
            "flight": _packed("i4", view.pages_in_flight),
            "share": _packed("f4", view.utilisation),
            "p50": _packed("f4", view.allocation_p50_us),
            "p99": _packed("f4", view.allocation_p99_us),
            "hits": _packed("f4", view.hit_rate),
        },
        "most_moved": view.moves.most,
        "moves": {
            "kind": _packed("u1", view.moves.kind),
            "lane": _packed("i4", view.moves.lane),
            "column": _packed("i4", view.moves.column),
            "count": _packed("i4", view.moves.count),
            "base": _packed("i4", view.moves.base),
        },
        "bars": {
            "lane": _packed("i4", bars.lane),
            "from": _packed("f4", bars.from_s),
            "to": _packed("f4", bars.to_s),
            "busy_from": _packed("f4", bars.busy_from_s),
            "busy_to": _packed("f4", bars.busy_to_s),
            "role": _packed("u1", bars.role),
            "session": _packed("i4", bars.session),
            "sequence": _packed("i4", bars.sequence),
            "parent": _packed("i4", bars.parent),
            "tokens": _packed("i4", bars.num_answer_tokens),
        },
    }


def _map(view: View, pages: PageMap) -> dict[str, Any]:
    shown, life = np.unique(pages.runs.life, return_inverse=True)
    sets, holders = np.unique(pages.runs.holders, return_inverse=True)
    return {
        "first": _packed("i4", pages.first_pages()),
        "last": int(pages.pages[-1]) if pages.num_used else 0,
        "runs": {
            "row": _packed("u2", pages.runs.row),
            "start": _packed("u2", pages.runs.start),
            "stop": _packed("u2", pages.runs.stop),
            "life": _packed("i4", life),
            "kind": _packed("u1", pages.runs.kind),
            "holders": _packed("i4", holders),
        },
        "sets": [pages.sets[number] for number in sets],
        "lives": _lives(view, pages.lives, shown),
    }


def _lives(view: View, lives: Lives, shown: NDArray[np.int32]) -> dict[str, list[str]]:
    """The segments that a map shows, as columns."""
    left_us = np.asarray(lives.left_us, np.int64)[shown]
    left = np.where(left_us < 0, np.nan, view.clock.at(left_us))
    return {
        "kind": _packed("u1", np.asarray(lives.kind, np.int8)[shown]),
        "sequence": _packed("i4", np.asarray(lives.sequence, np.int64)[shown]),
        "index": _packed("i4", np.asarray(lives.index, np.int64)[shown]),
        "time": _packed("f4", np.asarray(lives.time_s, np.float64)[shown]),
        "tokens": _packed("i4", np.asarray(lives.num_tokens, np.int64)[shown]),
        "pages": _packed("i4", np.asarray(lives.num_pages, np.int64)[shown]),
        "came": _packed("f4", view.clock.at(np.asarray(lives.came_us, np.int64)[shown])),
        "left": _packed("f4", left),
        "end": _packed("u1", np.asarray(lives.end, np.int8)[shown]),
    }
