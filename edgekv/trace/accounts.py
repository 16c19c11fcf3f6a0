"""What each session did, in a line, and what sessions shared, kept and were promised, in sentences.

Guarantees: every number and time comes from the log. Does not know: pictures' colours, figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.reclaim import RECLAIM
from edgekv.trace.axis import tick_text
from edgekv.trace.events import FRAME, SYSTEM
from edgekv.trace.lives import RECALLED, RESERVED, SequenceLife
from edgekv.trace.phrases import listed, many, was
from edgekv.trace.view import View

MAX_SESSIONS = 6  # that have a line
MAX_RECALLS = 8  # questions of a session of which it says what they brought back
# What rules let go first.
_CHOICES = {
    "window": "the oldest first",
    "uniform": "thinned out evenly",
    "novelty": "those most like others first",
    "least-attended": "those that questions looked at least first",
}


class Times:
    """Moments of a view as text."""

    def __init__(self, view: View) -> None:
        self._clock = view.clock
        length = view.clock.end_s - view.clock.begin_s
        self._step = next((step for step in (1, 0.1, 0.01) if length > 20 * step), 0.001)

    def at(self, us: int) -> str:
        """``0:12``, or with a fraction where all is over soon."""
        return self.text(float(self._clock.at(np.array([us]))[0]))

    def text(self, seconds: float) -> str:
        """The same of a time on the axis."""
        return tick_text(float(seconds), self._step)

    def span(self, times_us: Sequence[int] | NDArray[np.int64]) -> str:
        """``at 0:10``, ``at 0:10 and 0:20``, ``8 times from 0:10 to 0:40``."""
        texts = list(dict.fromkeys(self.at(int(us)) for us in times_us))
        if len(texts) <= 4:
            return f"at {listed(texts)}"
        return f"from {texts[0]} to {texts[-1]}"


def accounts(view: View) -> Iterator[str]:
    """A line for each of the first sessions."""
    contexts = [life for life in view.timeline.sequences.values() if life.is_context]
    times = Times(view)
    for life in contexts[:MAX_SESSIONS]:
        yield f"Session {life.session} ({_when(view, life, times)}): {_did(view, life, times)}."
    if len(contexts) > MAX_SESSIONS:
        yield f"And {many(len(contexts) - MAX_SESSIONS, 'more session')}."


def _when(view: View, life: SequenceLife, times: Times) -> str:
    parent = view.timeline.sequences.get(life.parent)
    fork = "" if parent is None else f", began as a fork of session {parent.session}"
    if life.closed_us < 0:
        return f"opened {times.at(life.opened_us)}, still open at the end{fork}"
    return f"opened {times.at(life.opened_us)}, closed {times.at(life.closed_us)}{fork}"


def _did(view: View, life: SequenceLife, times: Times) -> str:
    parts = [f"{many(life.num_frames, 'frame')} came in"]
    drops = [d for d in view.timeline.drops if d.sequence == life.id and d.num_frames]
    for rule in dict.fromkeys(drop.rule for drop in drops):
        mine = [drop for drop in drops if drop.rule == rule]
        count = sum(drop.num_frames for drop in mine)
        parts.append(
            f"{count:,} {was(count)} let go {because(rule)}, {times.span([d.at_us for d in mine])}"
        )
    if life.num_frames and not drops:
        parts.append("none was let go")
    questions = [
        other
        for other in view.timeline.sequences.values()
        if other.is_question and other.session == life.session
    ]
    if questions:
        asked = times.span([question.opened_us for question in questions])
        parts.append(f"{many(len(questions), 'question')} {asked}")
    if back := sum(question.num_recalled for question in questions):
        which = [q.opened_us for q in questions if q.num_recalled]
        who = f"{many(len(which), 'question')}, {times.span(which)},"
        if len(which) == len(questions):
            who = "they" if len(which) > 1 else "it"
        parts.append(
            f"{who} brought {many(back, 'old frame')} back from disk: {_recalls(view, questions)}"
        )
    return "; ".join(parts)


def _recalls(view: View, questions: list[SequenceLife]) -> str:
    """Which frames each question brought back, by when they had been seen; of many questions, and
    without stream times, how many."""
    lives, times = view.timeline.lives, Times(view)
    is_recalled = np.asarray(lives.kind, np.int8) == RECALLED
    sequence, seen_s = np.asarray(lives.sequence, np.int64), np.asarray(lives.time_s, np.float64)
    parts = []
    for question in [q for q in questions if q.num_recalled][: MAX_RECALLS + 1]:
        seen = seen_s[is_recalled & (sequence == question.id)]
        what = f"at {times.at(question.opened_us)} {seen.size:,}"
        if view.clock.is_stream and np.isfinite(seen).all():
            texts = list(dict.fromkeys(times.text(at) for at in np.sort(seen)))
            when = listed(texts) if len(texts) <= 4 else f"{texts[0]} to {texts[-1]}"
            what += f" (seen {when})"
        parts.append(what)
    return ", ".join(parts[:MAX_RECALLS]) + (" …" if len(parts) > MAX_RECALLS else "")


def because(rule: str) -> str:
    """Who wanted frames to leave."""
    if rule in ("", RECLAIM):
        return "because another session needed room" if rule else "by the caller"
    return f"by the rule “{rule}”" + (f" ({_CHOICES[rule]})" if rule in _CHOICES else "")


def pages_of_note(view: View) -> Iterator[str]:
    """What was shared by sessions, cached, and reserved."""
    yield from _shared(view)
    levels, times = view.timeline.levels, Times(view)
    cached = np.asarray(levels.cached, np.int64)
    if cached.any():
        first = times.at(levels.at_us[int(np.flatnonzero(cached)[0])])
        yield (
            f"From {first} on pages were cached, at most {int(cached.max()):,} at once: no session "
            "held them any more, and they were kept in case the same came again."
        )
        if any(drop.num_frames for drop in view.timeline.drops):
            yield "Once a session had let frames go, what came to it was its own, and never cached."
    if (reserved := _most_reserved(view)) > 0:
        yield (
            f"At most {many(reserved, 'page')} at once {was(reserved)} reserved: promised to what "
            "was to be written, and empty until then."
        )


def _most_reserved(view: View) -> int:
    """Pages that were reserved at once."""
    spans, kinds = view.timeline.holders.spans, np.asarray(view.timeline.lives.kind, np.int8)
    reserved = kinds[np.asarray(spans.life, np.int64)] == RESERVED
    begun = np.sort(np.asarray(spans.from_us, np.int64)[reserved])
    ended = np.sort(np.asarray(spans.to_us, np.int64)[reserved])
    open_before = np.arange(1, begun.size + 1) - np.searchsorted(ended, begun, side="right")
    return int(open_before.max(initial=0))


def _shared(view: View) -> Iterator[str]:
    """Pages that several sessions held at once."""
    spans, times = view.timeline.holders.spans, Times(view)
    is_shared = np.array([len(held) > 1 for held in view.map.sets], np.bool_)
    shared = np.flatnonzero(is_shared[np.asarray(spans.holders, np.int64)])
    if not shared.size:
        return
    lives = np.asarray(spans.life, np.int64)[shared]
    pages = np.asarray(spans.page, np.int64)[shared]
    kinds = np.asarray(view.timeline.lives.kind, np.int8)[lives]
    distinct = set(zip(kinds.tolist(), lives.tolist(), pages.tolist(), strict=True))
    names = {SYSTEM: "instructions", FRAME: "frames", RECALLED: "frames"}
    what = Counter(names.get(kind, "text") for kind, _, _ in distinct)
    held = listed([f"{many(count, 'page')} of {name}" for name, count in what.items()])
    sessions = sorted({s for k in shared for s in view.map.sets[spans.holders[k]]})
    who = listed([str(number) for number in sessions]) if len(sessions) <= 6 else str(len(sessions))
    since = times.at(min(spans.from_us[k] for k in shared))
    until = times.at(max(spans.to_us[k] for k in shared))
    yield f"From {since} to {until} sessions {who} held {held} together, stored once."
