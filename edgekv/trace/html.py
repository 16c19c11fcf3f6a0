"""A view as one HTML file that needs nothing else: no network, no fonts, no libraries.

Owns: how numbers get into the page; ``page.html``, ``.css`` and ``.js`` beside this module are the
page. Guarantees: whatever a log's name or rules contain is text there, never markup.
Does not know: where the view comes from.
"""

from __future__ import annotations

import base64
import json
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.trace.axis import axis_ticks
from edgekv.trace.lives import ENDS
from edgekv.trace.view import View, share_floor, typical_life_s
from edgekv.trace.words import Words

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
        notes="\n".join(f"<p>{escape(note)}</p>" for note in words.notes),
        css=parts.joinpath("page.css").read_text("utf-8"),
        js=parts.joinpath("page.js").read_text("utf-8"),
        data=json.dumps(_data(view, words), separators=(",", ":")).replace("<", "\\u003c"),
    )


def _packed(kind: str, values: NDArray[Any]) -> list[str]:
    data = np.ascontiguousarray(values, np.dtype(_TYPES[kind]).newbyteorder("<"))
    return [kind, base64.b64encode(data.tobytes()).decode()]


def _data(view: View, words: Words) -> dict[str, Any]:
    shown, life = np.unique(view.runs.life, return_inverse=True)
    return {
        "columns": view.num_columns,
        "rows": view.num_rows,
        "pages": view.timeline.num_pages,
        "begin": view.clock.begin_s,
        "end": view.clock.end_s,
        "window_s": typical_life_s(view),
        "axis": words.axis,
        "ticks": axis_ticks(view.clock.begin_s, view.clock.end_s, 12),
        "lanes": view.num_lanes,
        "questions": bool(view.bars.is_question.any()),
        "share_from": share_floor(view),
        "ends": ENDS,
        "runs": {
            "row": _packed("u2", view.runs.row),
            "start": _packed("u2", view.runs.start),
            "stop": _packed("u2", view.runs.stop),
            "life": _packed("i4", life),
        },
        "lives": _lives(view, shown),
        "levels": {
            "used": _packed("i4", view.pages_used),
            "cached": _packed("i4", view.pages_cached),
            "flight": _packed("i4", view.pages_in_flight),
            "share": _packed("f4", view.utilisation),
            "left": _packed("i4", view.frames_left),
            "p50": _packed("f4", view.allocation_p50_us),
            "p99": _packed("f4", view.allocation_p99_us),
        },
        "bars": {
            "lane": _packed("i4", view.bars.lane),
            "from": _packed("f4", view.bars.from_s),
            "to": _packed("f4", view.bars.to_s),
            "question": _packed("u1", view.bars.is_question),
            "sequence": _packed("i4", view.bars.sequence),
            "parent": _packed("i4", view.bars.parent),
            "tokens": _packed("i4", view.bars.num_answer_tokens),
        },
    }


def _lives(view: View, shown: NDArray[np.int32]) -> dict[str, list[str]]:
    """The segments that the map shows, as columns."""
    lives = view.timeline.lives
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
