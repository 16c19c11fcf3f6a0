"""Drawn video: a few coloured shapes that come, move, rest and go in front of a camera.

Owns what is in the picture and where. Guarantees: a scene is a pure function of its seed, it never
ends, and reading it in pieces of any size gives the same frames; at any time each (colour, shape)
pair is in the picture at most once. Does not know which questions are asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgekv.demo import render
from edgekv.demo.render import COLOURS, FRAME_SIZE, SHAPES

NUM_IDENTITIES: Final = len(COLOURS) * len(SHAPES)

_WARM_UP: Final = 40  # frames lived before the first one shown, so that it is like any other
_MAX_SPEED: Final = 9.0
_MIN_SPEED: Final = 3.5


def identity_name(identity: int) -> str:
    """For example ``"red circle"``."""
    return f"{COLOURS[identity // len(SHAPES)]} {SHAPES[identity % len(SHAPES)]}"


@dataclass(frozen=True)
class Clip:
    """Frames and what is true in each of them; ``n`` frames, 18 identities."""

    frames: NDArray[np.uint8]  # (n, 64, 64, 3), RGB
    visible: NDArray[np.float32]  # (n, 18), part of the object's area that can be seen, 0..1
    inside: NDArray[np.float32]  # (n, 18), the same if no other object stood in front
    centres: NDArray[np.float32]  # (n, 18, 2), x and y in pixels, NaN where there is no object
    owners: NDArray[np.int8]  # (n, 64, 64), identity seen in each pixel, -1 = background

    def __len__(self) -> int:
        return len(self.frames)

    def part(self, first: int, last: int) -> Clip:
        """The frames ``first`` to ``last``, both included, as views."""
        cut = slice(first, last + 1)
        return Clip(
            self.frames[cut],
            self.visible[cut],
            self.inside[cut],
            self.centres[cut],
            self.owners[cut],
        )


@dataclass(frozen=True)
class _Track:
    """One object from the frame it enters to the frame it has left."""

    identity: int
    radius: float
    angle: float
    rgb: NDArray[np.float32]  # (3,), 0..255
    first: int
    centres: NDArray[np.float32]  # (n, 2), one row per frame from `first`

    @property
    def end(self) -> int:
        return self.first + len(self.centres)


class Scene:
    """An endless drawn video, read from front to back."""

    def __init__(self, seed: int) -> None:
        # Three generators, each consumed strictly in frame order: pieces of any size agree.
        self._plan, self._light, self._noise = (
            np.random.default_rng((seed, part)) for part in range(3)
        )
        self._background = render.draw_background(self._light)  # (64, 64, 3) float32
        self._noise_level = float(self._light.uniform(1.5, 7.0))
        self._gain_centre = float(self._light.uniform(0.88, 1.1))
        self._gain = self._gain_centre
        slots = int(self._plan.choice((1, 2, 3), p=(0.15, 0.35, 0.5)))
        self._pace = float(self._plan.choice((2.0, 5.0, 10.0)))
        self._free_at = [-_WARM_UP + self._pause() for _ in range(slots)]
        self._tracks: list[_Track] = []
        self._planned = -_WARM_UP
        self._next = 0
        self._advance_plan(0)

    @property
    def position(self) -> int:
        """Number of the frame that the next ``read`` begins with."""
        return self._next

    def read(self, count: int) -> Clip:
        """The next ``count`` frames."""
        if count < 1:
            raise ValueError(f"need at least 1 frame, asked for {count}")
        first = self._next
        self._advance_plan(first + count)
        self._next += count
        clip = self._draw(first, count)
        self._tracks = [t for t in self._tracks if t.end > self._next]
        return clip

    def _advance_plan(self, end: int) -> None:
        """Let objects enter in every frame before ``end``."""
        for frame in range(self._planned, end):
            for slot, free_at in enumerate(self._free_at):
                if free_at <= frame:
                    track = self._spawn(frame)
                    self._tracks.append(track)
                    self._free_at[slot] = track.end + self._pause()
        self._planned = max(self._planned, end)
        self._tracks = [t for t in self._tracks if t.end > self._next]

    def _pause(self) -> int:
        return int(self._plan.geometric(1 / self._pace))

    def _spawn(self, frame: int) -> _Track:
        rng = self._plan
        taken = {t.identity for t in self._tracks if t.end > frame - 2}
        identity = int(rng.choice([i for i in range(NUM_IDENTITIES) if i not in taken]))
        radius = float(rng.uniform(6.5, 10))
        rgb = render.colour_rgb(identity // len(SHAPES))
        return _Track(
            identity=identity,
            radius=radius,
            angle=float(rng.uniform(-0.22, 0.22)),
            rgb=np.clip(rgb + rng.uniform(-14, 14, 3), 0, 245).astype(np.float32),
            first=frame,
            centres=_draw_path(rng, radius),
        )

    def _draw(self, first: int, count: int) -> Clip:
        frames = np.repeat(self._background[None], count, axis=0)
        alive = [t for t in self._tracks if t.first < first + count and t.end > first]
        owners = np.full((count, FRAME_SIZE, FRAME_SIZE), -1, np.int8)
        inside = np.zeros((count, NUM_IDENTITIES), np.float32)
        visible = np.zeros((count, NUM_IDENTITIES), np.float32)
        centres = np.full((count, NUM_IDENTITIES, 2), np.nan, np.float32)
        for track in alive:
            begin, end = max(track.first, first), min(track.end, first + count)
            rows = slice(begin - first, end - first)
            where = track.centres[begin - track.first : end - track.first]
            shape = track.identity % len(SHAPES)
            cover = render.shape_coverage(shape, track.radius, track.angle, where)
            at = np.nonzero(cover)  # few pixels: blending whole frames would take most of the time
            below = frames[rows]
            below[at] += cover[at][:, None] * (track.rgb - below[at])
            mask = cover > 0.5
            owners[rows][mask] = track.identity
            area = render.shape_area(shape, track.radius)
            inside[rows, track.identity] = np.minimum(mask.sum((1, 2)) / area, 1)
            centres[rows, track.identity] = where
        for track in alive:
            rows = slice(max(track.first - first, 0), min(track.end - first, count))
            area = render.shape_area(track.identity % len(SHAPES), track.radius)
            seen = (owners[rows] == track.identity).sum((1, 2)) / area
            visible[rows, track.identity] = np.minimum(seen, 1)
        return Clip(self._expose(frames), visible, inside, centres, owners)

    def _expose(self, frames: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Apply the drifting gain and the sensor's noise to (n, 64, 64, 3) levels."""
        for frame in frames:
            self._gain += 0.1 * (self._gain_centre - self._gain)
            self._gain += 0.012 * float(self._light.standard_normal())
            frame *= np.float32(np.clip(self._gain, 0.8, 1.16))
        noise = self._noise.standard_normal(frames.shape, dtype=np.float32)
        frames += noise * np.float32(self._noise_level)
        return np.asarray(np.clip(frames + np.float32(0.5), 0, 255), np.uint8)


def _draw_path(rng: np.random.Generator, radius: float) -> NDArray[np.float32]:
    """Centres (n, 2) from entering to having left: way in, a rest or none, way out."""
    style = rng.choice(
        ("cross", "visit", "pop", "pop-in", "pop-out"), p=(0.4, 0.28, 0.12, 0.1, 0.1)
    )
    turning = rng.uniform(radius, FRAME_SIZE - radius, 2)
    way_in = _step(rng)
    way_out = way_in if style == "cross" else _step(rng)
    rest = 1 if style == "cross" else int(rng.integers(4, 15))
    path = np.repeat(turning[None], rest, axis=0)
    if style not in ("pop", "pop-in"):
        path = np.concatenate([_leave(turning, -way_in, radius)[::-1], path])
    if style not in ("pop", "pop-out"):
        path = np.concatenate([path, _leave(turning, way_out, radius)])
    return path.astype(np.float32)


def _step(rng: np.random.Generator) -> NDArray[np.float64]:
    """Movement in one frame, (2,), within 18 degrees of right, down, left or up."""
    angle = rng.integers(4) * (np.pi / 2) + rng.uniform(-0.32, 0.32)
    return rng.uniform(_MIN_SPEED, _MAX_SPEED) * np.array([np.cos(angle), np.sin(angle)])


def _leave(
    start: NDArray[np.float64], step: NDArray[np.float64], radius: float
) -> NDArray[np.float64]:
    """Centres (n, 2) from one step after ``start`` until nothing of the object is in the frame."""
    reach = 1.35 * radius
    count = 1
    while np.all((start + count * step > -reach) & (start + count * step < FRAME_SIZE + reach)):
        count += 1
    return start + step * np.arange(1, count + 1)[:, None]


def draw_clip(seed: int, count: int) -> Clip:
    """The first ``count`` frames of the scene ``seed``."""
    return Scene(seed).read(count)
