"""The panels of a PNG, each drawn into a box of its own.

Guarantees: nothing is drawn outside a panel's box but its labels. Does not know: where boxes are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgekv.trace.axis import microseconds
from edgekv.trace.bars import FORK, PROBE
from edgekv.trace.colours import (
    EVICT,
    FORCED,
    GRID,
    INK,
    LEVEL,
    LINE,
    MUTED,
    NAMED,
    PAINT,
    Colour,
    paler,
    readable_on,
)
from edgekv.trace.events import TEXT
from edgekv.trace.labels import session_colour
from edgekv.trace.lives import CACHED, IN_FLIGHT, PROBED, RECALLED
from edgekv.trace.moves import BACK
from edgekv.trace.page_map import PageMap
from edgekv.trace.png_map import kind_pixels, session_pixels
from edgekv.trace.png_sheet import INNER, LEFT, Sheet, font
from edgekv.trace.view import View, share_floor

LANE_HEIGHT, MOVES_HEIGHT, MAX_LANES = 26, 34, 8  # of more lanes each is lower
_HEIGHTS = {
    "map": 420,
    "whose": 300,
    "inputs": 96,
    "used": 64,
    "hits": 40,
    "share": 48,
    "alloc": 96,
}
_MOVES: tuple[Colour, ...] = (EVICT, FORCED, PAINT[RECALLED])  # CHOSEN, FORCED, BACK
_BAR, _BELOW = 14, 8  # pixels of a lane for its session, and for the questions


class Panels:
    """Draws a view's panels on a sheet."""

    def __init__(self, sheet: Sheet, view: View) -> None:
        self._sheet = sheet
        self._view = view
        self._paint: dict[str, Callable[[int, int], None]] = {
            "map": lambda y, high: self._map(y, high, view.map, kind_pixels),
            "whose": lambda y, high: self._map(y, high, view.map, session_pixels),
            "inputs": lambda y, high: self._map(y, high, view.inputs, kind_pixels),
            "left": self._left,
            "lanes": self._lanes,
            "used": self._used,
            "hits": self._hits,
            "share": self._share,
            "alloc": self._allocation,
        }

    def draw(self, name: str, y: int, high: int) -> None:
        """One panel from ``y`` on down."""
        self._paint[name](y, high)

    def _map(
        self,
        y: int,
        high: int,
        pages: PageMap | None,
        pixels: Callable[[View, PageMap, int, int], NDArray[np.uint8]],
    ) -> None:
        assert pages is not None
        picture = Image.fromarray(pixels(self._view, pages, INNER, high))
        self._sheet.image.paste(picture, (LEFT, y))
        first = pages.first_pages()
        last = int(pages.pages[-1]) if pages.num_used else 0
        self._sheet.label(y, f"page {first[0]}")
        if pages.num_rows > 2:
            self._sheet.label(y + high // 2 - 8, str(first[pages.num_rows // 2]))
        if last != first[0]:
            self._sheet.label(y + high - 16, str(last))

    def _left(self, y: int, high: int) -> None:
        """In each lane frames that left hang from a line, those that came back stand on it."""
        moves, both = self._view.moves, self._view.moves.num(BACK) > 0
        names = self._view.bars.sessions
        lane_height = high / len(names)
        room = lane_height - 4
        below = room / 2 if both else room
        scale = below / moves.most
        for lane in range(len(names)):
            at = y + lane * lane_height + 2 + room - below
            self._sheet.box(LEFT, at, LEFT + INNER, at + 1, MUTED if both else GRID)
        for k, kind in enumerate(moves.kind.tolist()):
            x = self._x(moves.column[k])
            zero = y + moves.lane[k] * lane_height + 2 + room - below
            near, far = (float(n) * scale for n in (moves.base[k], moves.base[k] + moves.count[k]))
            top, bottom = (zero - far, zero) if kind == BACK else (zero + near, zero + far)
            self._sheet.box(x, top, x + 3, bottom + 1, _MOVES[kind])
        self._names(y, lane_height, names)

    def _lanes(self, y: int, high: int) -> None:
        bars, clock = self._view.bars, self._view.clock
        lane_height = high / len(bars.names)
        scale = lane_height / LANE_HEIGHT

        def place(at_s: NDArray[np.float64], k: int) -> float:
            return LEFT + float(at_s[k] - clock.begin_s) / (clock.end_s - clock.begin_s) * INNER

        for k, role in enumerate(bars.role.tolist()):
            x0, x1 = place(bars.from_s, k), place(bars.to_s, k)
            top = y + bars.lane[k] * lane_height + 1
            bottom = top + _BAR * scale
            if role > FORK:
                fill = PAINT[PROBED if role == PROBE else TEXT]
                top = bottom + 1 if role != PROBE else top
                self._sheet.box(x0, top, max(x1, x0 + 3), top + _BELOW * scale, fill)
                continue
            fill = NAMED[session_colour(int(bars.session[k]))]
            self._sheet.box(x0, top, max(x1, x0 + 2), bottom, paler(fill, 0.7))
            name = f"session {bars.session[k]}"
            if bars.busy_from_s[k] == bars.busy_from_s[k]:
                x0, x1 = place(bars.busy_from_s, k), place(bars.busy_to_s, k)
                self._sheet.box(x0, top, max(x1, x0 + 2), bottom, fill)
                if (
                    bars.names[bars.lane[k]] == "sessions"
                    and font(11).getlength(name) + 12 < x1 - x0
                ):
                    colour = readable_on(fill)
                    self._sheet.text(round(x0) + 6, round(top) + 1, name, colour, 11)
        self._names(y, lane_height, bars.names)

    def _names(self, y: int, lane_height: float, names: tuple[str, ...]) -> None:
        for lane, name in enumerate(names if lane_height >= 14 else ()):
            self._sheet.label(y + round(lane * lane_height), name)

    def _used(self, y: int, high: int) -> None:
        most = self._view.most_pages
        for values, fill in (
            (self._view.pages_used + self._view.pages_cached, PAINT[CACHED]),
            (self._view.pages_used, LEVEL),
            (self._view.pages_in_flight, PAINT[IN_FLIGHT]),
        ):
            for x in range(INNER):
                length = int(values[x * values.size // INNER] * high / most)
                if length:
                    self._sheet.box(LEFT + x, y + high - length, LEFT + x + 1, y + high, fill)
        self._sheet.label(y, str(most))
        self._sheet.label(y + high - 16, "0")

    def _hits(self, y: int, high: int) -> None:
        rates = self._view.hit_rate
        for k in np.flatnonzero(~np.isnan(rates)).tolist():
            x0, x1 = (LEFT + n * INNER // rates.size for n in (k, k + 1))
            self._sheet.box(x0, y, x1, y + high, GRID)
            if rates[k] > 0:
                self._sheet.box(x0, y + high - max(round(rates[k] * high), 1), x1, y + high, LINE)
        self._sheet.label(y, "100%")
        self._sheet.label(y + high - 16, "0%")

    def _allocation(self, y: int, high: int) -> None:
        p50, p99 = self._view.allocation_p50_us, self._view.allocation_p99_us
        known = np.flatnonzero(~np.isnan(p50))
        if not known.size:
            return
        low = int(np.floor(np.log10(max(float(p50[known].min()), 0.1))))
        top = max(int(np.ceil(np.log10(max(float(p99[known].max()), 0.1)))), low + 1)

        def part(values: NDArray[np.float64]) -> NDArray[np.float64]:
            shares: NDArray[np.float64] = (np.log10(np.maximum(values, 0.1)) - low) / (top - low)
            return shares

        every = max(-(-16 * (top - low) // high), 1)
        for power in range(low, top + 1, every):
            at = y + high - (power - low) * high // (top - low)
            if low < power < top:
                self._sheet.box(LEFT, at, LEFT + INNER, at + 1, GRID)
            self._sheet.label(min(max(at - 8, y), y + high - 16), microseconds(power))
        self._steps(y, high, known, part(p50[known]))
        slow = known[p99[known] > 1.2 * p50[known]]
        for c, share in zip(slow.tolist(), part(p99[slow]), strict=True):
            at = y + (high - 4) * (1 - share)
            self._sheet.box(self._x(c) - 1, at, self._x(c) + 3, at + 4, INK)

    def _share(self, y: int, high: int) -> None:
        shares = self._view.utilisation
        low = share_floor(self._view)
        self._steps(y, high, np.arange(shares.size), (shares - low) / (1 - low))
        self._sheet.label(y, "100%")
        self._sheet.label(y + high - 16, f"{low:.0%}")

    def _steps(
        self, y: int, high: int, columns: NDArray[np.integer], part: NDArray[np.float64]
    ) -> None:
        """Steps at ``part`` (n,), 0 to 1 of the panel's height, each from its column in
        ``columns`` (n,) to the next."""
        ys = np.repeat(y + 2 + (high - 4) * (1 - part.clip(0, 1)), 2).tolist()
        xs = [self._x(int(c)) for c in columns for _ in range(2)]
        if xs:
            points = list(zip([*xs[1:], LEFT + INNER - 1], ys, strict=True))
            self._sheet.draw.line(points, fill=LINE, width=1)

    def _x(self, column: int) -> int:
        return LEFT + int(column) * INNER // self._view.num_columns


def height_of(name: str, view: View) -> int:
    """Pixels of a panel."""
    if name == "lanes":
        return min(len(view.bars.names), MAX_LANES) * LANE_HEIGHT
    if name == "left":
        return max(min(len(view.bars.sessions), MAX_LANES) * MOVES_HEIGHT, 48)
    return _HEIGHTS[name]
