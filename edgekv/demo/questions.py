"""Questions about drawn video, each with its one right answer.

Owns the kinds of question, their wordings and what makes an answer true. Guarantees: an answer
follows from the frames of the window alone, and whatever cannot be decided from them (an object
half out of the picture or half hidden, a slanting movement, a place on a border line) is not asked.
Yes and no come equally often in every yes/no kind. Does not know how pictures are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgekv.demo.render import COLOURS, FRAME_SIZE, SHAPES
from edgekv.demo.scenes import NUM_IDENTITIES, Clip, identity_name

Kind = Literal[
    "visible",
    "shape",
    "colour",
    "count",
    "list",
    "where",
    "direction",
    "appeared",
    "seen",
    "first",
    "gone",
    "caption",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
YES_NO_KINDS: Final[tuple[Kind, ...]] = ("visible", "appeared", "seen")

PRESENT: Final = 0.7  # an object is visible if at least this part of it is seen
ABSENT: Final = 0.1  # and not there if at most this part is inside the picture

WORDINGS: Final[dict[Kind, tuple[str, ...]]] = {
    "visible": ("Is there a {} now?", "Is a {} visible?", "Do you see a {}?"),
    "shape": ("What shape is the {} object?", "Which shape is {}?"),
    "colour": ("What colour is the {}?", "What color is the {}?"),
    "count": ("How many objects are there?", "How many objects do you see?"),
    "list": ("What do you see?", "Which objects are there?", "What is there now?"),
    "where": ("Where is the {}?", "In which part of the picture is the {}?"),
    "direction": ("Which way is the {} moving?", "Where is the {} going?"),
    "appeared": ("Did a {} appear?", "Has a {} come in?"),
    "seen": ("Was there a {}?", "Have you seen a {}?"),
    "first": ("Which object was seen first?", "What did you see first?"),
    "gone": ("What is no longer visible?", "Which objects have left?"),
    "caption": ("What is happening?", "Describe the video."),
}
NUMBERS: Final = ("none", "one", "two", "three")
DIRECTIONS: Final = ("right", "down", "left", "up", "not moving")
NOTHING: Final = "nothing"
# A window where nothing can be answered yes is asked seldom, and the others lean to yes by as much.
_SKIPPED_NO: Final = 0.85
_YES_SHARE: Final = 0.53
_ROWS: Final = ("top", "", "bottom")
_COLUMNS: Final = ("left", "", "right")


@dataclass(frozen=True)
class Question:
    """A question on the frames ``first`` to ``last`` (both included), and its answer."""

    kind: Kind
    text: str
    answer: str
    first: int
    last: int


class Window:
    """What can be told from the frames ``first`` to ``last`` of a clip."""

    def __init__(self, clip: Clip, first: int, last: int) -> None:
        if not 0 <= first <= last < len(clip):
            raise ValueError(f"no window {first}..{last} in a clip of {len(clip)} frames")
        self.first, self.last = first, last
        self.present = clip.visible[first : last + 1] >= PRESENT  # (n, 18) bool
        self.absent = clip.inside[first : last + 1] <= ABSENT  # (n, 18) bool
        self.centres = clip.centres[first : last + 1]  # (n, 18, 2) float32
        self.now = np.flatnonzero(self.present[-1])  # (k,) identities, in the order of their names
        self.clear_now = bool((self.present[-1] | self.absent[-1]).all())
        self.ever = np.asarray(self.present.any(0))  # (18,) bool
        self.never = np.asarray(self.absent.all(0))  # (18,) bool
        self.all_clear = bool((self.ever | self.never).all())

    def direction(self, identity: int) -> int | None:
        """Index into DIRECTIONS of the movement in the last step, None where it is not clear."""
        if len(self.present) < 2 or not self.present[-2:, identity].all():
            return None
        dx, dy = (self.centres[-1, identity] - self.centres[-2, identity]).tolist()
        if max(abs(dx), abs(dy)) < 0.3:
            return 4
        along, across = max(abs(dx), abs(dy)), min(abs(dx), abs(dy))
        if along < 2.5 or along < 1.8 * across:
            return None
        if abs(dx) > abs(dy):
            return 0 if dx > 0 else 2
        return 1 if dy > 0 else 3

    def appeared(self, identity: int) -> bool | None:
        """Whether it came into the picture within the window, None where it is not clear."""
        absent, present = self.absent[:, identity], self.present[:, identity]
        if present.any() and (np.flatnonzero(absent)[:1] < np.flatnonzero(present)[-1]).any():
            return True
        return False if absent.all() or present[0] else None


_Asked = tuple[tuple[str, ...], str] | None  # words to fill in, answer
_Asker = Callable[[np.random.Generator, Window], _Asked]


def ask(rng: np.random.Generator, clip: Clip, kind: Kind, first: int, last: int) -> Question | None:
    """A question of one kind on the frames ``first`` to ``last``; None if nothing can be asked."""
    return ask_window(rng, Window(clip, first, last), kind)


def ask_window(rng: np.random.Generator, window: Window, kind: Kind) -> Question | None:
    """The same for a window that was already read."""
    asked = _ASKERS[kind](rng, window)
    if asked is None:
        return None
    words, answer = asked
    wordings = WORDINGS[kind]
    text = wordings[rng.integers(len(wordings))].format(*words)
    return Question(kind, text, answer, window.first, window.last)


def _visible(rng: np.random.Generator, w: Window) -> _Asked:
    if _says_yes(rng, len(w.now) > 0):
        return _about(_pick(rng, w.now), "yes")
    if not len(w.now) and rng.random() < _SKIPPED_NO:
        return None
    gone = w.ever & w.absent[-1]
    if gone.any() and rng.random() < 0.35:
        return _about(_pick(rng, np.flatnonzero(gone)), "no")
    return _about(_pick_near(rng, w.absent[-1], w.now), "no")


def _seen(rng: np.random.Generator, w: Window) -> _Asked:
    if not _says_yes(rng, bool(w.ever.any())):
        if not w.ever.any() and rng.random() < _SKIPPED_NO:
            return None
        return _about(_pick_near(rng, w.never, np.flatnonzero(w.ever)), "no")
    gone = np.flatnonzero(w.ever & w.absent[-1])
    pool = gone if len(gone) and rng.random() < 0.7 else np.flatnonzero(w.ever)
    return _about(_pick(rng, pool), "yes")


def _appeared(rng: np.random.Generator, w: Window) -> _Asked:
    if len(w.present) < 2:
        return None
    states = {int(i): w.appeared(int(i)) for i in np.flatnonzero(w.ever)}
    came = np.array([i for i, state in states.items() if state], np.intp)
    there = np.array([i for i, state in states.items() if state is False], np.intp)
    if _says_yes(rng, len(came) > 0):
        return _about(_pick(rng, came), "yes")
    if not len(came) and rng.random() < _SKIPPED_NO:
        return None
    if len(there) and rng.random() < 0.65:
        return _about(_pick(rng, there), "no")
    return _about(_pick_near(rng, w.never, np.flatnonzero(w.ever)), "no")


def _shape(rng: np.random.Generator, w: Window) -> _Asked:
    identity = _pick(rng, w.now)
    if identity is None:
        return None
    colour, shape = divmod(identity, len(SHAPES))
    there = ~w.absent[-1].reshape(len(COLOURS), len(SHAPES))  # (6, 3) bool
    return ((COLOURS[colour],), SHAPES[shape]) if there[colour].sum() == 1 else None


def _colour(rng: np.random.Generator, w: Window) -> _Asked:
    identity = _pick(rng, w.now)
    if identity is None:
        return None
    colour, shape = divmod(identity, len(SHAPES))
    there = ~w.absent[-1].reshape(len(COLOURS), len(SHAPES))
    return ((SHAPES[shape],), COLOURS[colour]) if there[:, shape].sum() == 1 else None


def _count(rng: np.random.Generator, w: Window) -> _Asked:
    return ((), NUMBERS[len(w.now)]) if w.clear_now else None


def _list(rng: np.random.Generator, w: Window) -> _Asked:
    return ((), _names(w.now)) if w.clear_now else None


def _where(rng: np.random.Generator, w: Window) -> _Asked:
    identity = _pick(rng, w.now)
    if identity is None:
        return None
    place = w.centres[-1, identity] * (3 / FRAME_SIZE)  # (2,), 0..3 inside the picture
    if (np.abs(place[:, None] - np.array([1, 2])) < 0.12).any():
        return None
    column, row = np.clip(place.astype(np.intp), 0, 2)
    return (identity_name(identity),), f"{_ROWS[row]} {_COLUMNS[column]}".strip() or "centre"


def _direction(rng: np.random.Generator, w: Window) -> _Asked:
    identity = _pick(rng, w.now)
    direction = None if identity is None else w.direction(identity)
    if direction is None:
        return None
    return _about(identity, DIRECTIONS[direction])


def _first(rng: np.random.Generator, w: Window) -> _Asked:
    if not w.all_clear or not w.ever.any():
        return None
    shown = np.where(w.ever, w.present.argmax(0), len(w.present))  # (18,) frame it is visible from
    entered = np.where(w.ever, (~w.absent).argmax(0), len(w.present))
    winner = int(shown.argmin())
    others = np.delete(entered, winner)
    return ((), identity_name(winner)) if (others > shown[winner]).all() else None


def _gone(rng: np.random.Generator, w: Window) -> _Asked:
    gone = np.flatnonzero(w.ever & w.absent[-1])
    if not w.all_clear or not w.clear_now or len(gone) > 2:
        return None
    return (), _names(gone)


def _caption(rng: np.random.Generator, w: Window) -> _Asked:
    if not w.clear_now or len(w.present) < 2:
        return None
    parts = []
    for identity in w.now.tolist():
        direction = w.direction(identity)
        if direction is None:
            return None
        verb = "is not moving" if direction == 4 else f"moves {DIRECTIONS[direction]}"
        parts.append(f"a {identity_name(identity)} {verb}")
    return (), ", ".join(parts) or NOTHING


_ASKERS: Final[dict[Kind, _Asker]] = {
    "visible": _visible,
    "shape": _shape,
    "colour": _colour,
    "count": _count,
    "list": _list,
    "where": _where,
    "direction": _direction,
    "appeared": _appeared,
    "seen": _seen,
    "first": _first,
    "gone": _gone,
    "caption": _caption,
}


def _says_yes(rng: np.random.Generator, possible: bool) -> bool:
    return possible and bool(rng.random() < _YES_SHARE)


def _about(identity: int | None, answer: str) -> _Asked:
    return None if identity is None else ((identity_name(identity),), answer)


def _names(identities: NDArray[np.intp]) -> str:
    return ", ".join(identity_name(i) for i in identities.tolist()) or NOTHING


def _pick(rng: np.random.Generator, identities: NDArray[np.intp]) -> int | None:
    return int(identities[rng.integers(len(identities))]) if len(identities) else None


def _pick_near(
    rng: np.random.Generator, allowed: NDArray[np.bool_], like: NDArray[np.intp]
) -> int | None:
    """One of the allowed identities, two times out of three one that shares colour or shape."""
    if len(like) and rng.random() < 0.67:
        others = np.arange(NUM_IDENTITIES)
        colours, shapes = np.divmod(like, len(SHAPES))
        near = np.isin(others // len(SHAPES), colours) | np.isin(others % len(SHAPES), shapes)
        if (near & allowed).any():
            return _pick(rng, np.flatnonzero(near & allowed))
    return _pick(rng, np.flatnonzero(allowed))
