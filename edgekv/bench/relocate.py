"""``edgekv bench relocate``: relocated pages against keys stored unrotated.

Two runs of the same decoder over the same endless input. One is edgekv's: keys are written once,
rotated, and moved by page shifts. The other keeps its keys unrotated (``unrotated.py``). With the
same tokens in the context both must give the same logits (design: 1e-4 with float32 pools, 2e-2
with float16), under every position scheme: evictions take middle frames too, so pages end up
shuffled, partly filled and shifted in many steps. At each checkpoint a fork lets go other frames
than its parent, so that shared pages stand at different shifts in the two.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from edgekv.bench.report import BenchResult, machine
from edgekv.bench.scheme_decoder import HIDDEN, write_decoder
from edgekv.bench.schemes import SCHEMES, Scheme
from edgekv.bench.unrotated import UnrotatedRun
from edgekv.bundle import Bundle
from edgekv.cache import PageCache, Sequence
from edgekv.config import KVDtype, KVGeometry, Rotation
from edgekv.executors import choose_device, create_decoder
from edgekv.generate import Runner
from edgekv.types import SegmentKind

CHECKPOINTS = (1, 100, 5000)
BOUNDS: dict[KVDtype, float] = {"float32": 1e-4, "float16": 2e-2}
MODEL = "model"  # the scheme of the bundle itself
_NUM_FRAMES = 12  # in the window
_NUM_PINNED = 5  # tokens; not a multiple of the page size: a partly filled page stands first


@dataclass(frozen=True)
class Subject:
    """A decoder to try: where its graph is, how its keys turn, how its frames stand."""

    graph: Path
    geometry: KVGeometry
    rotations: list[Rotation]  # one per layer
    frame: NDArray[np.int64]  # (A, tokens of a frame) positions from where the frame begins
    frames_move: tuple[int, ...]  # (A,) how far the next position moves
    draw: Callable[[np.random.Generator, int], NDArray[np.float32]]  # embeddings (n, hidden)


def run(
    path: Path,
    *,
    schemes: tuple[str, ...] = (MODEL,),
    evictions: int = CHECKPOINTS[-1],
    console: Console,
) -> BenchResult:
    """Compare at evictions 1, 100 and 5,000, float32 and float16 pools, under each scheme.

    Bounded is the largest |Δlogit| at those evictions, forks included. Reported beside it: the
    largest over all evictions, and the medians of the first and the last hundred, which would show
    a drift.
    """
    figures: dict[str, float] = {}
    bounds: dict[str, tuple[str, float]] = {}
    checkpoints = sorted({k for k in CHECKPOINTS if k <= evictions} | {evictions})
    for scheme in schemes:
        for dtype, bound in BOUNDS.items():
            with open_subject(path, scheme, dtype) as subject:
                title = f"{scheme}, {dtype} pools"
                live, forked = compare(subject, evictions, checkpoints, title, console)
            prefix = f"{scheme}_{dtype}_dlogit"
            for eviction, fork in zip(checkpoints, forked, strict=True):
                figures[f"{prefix}_at_{eviction}"] = float(max(live[eviction - 1], fork))
                bounds[f"{prefix}_at_{eviction}"] = ("<=", bound)
            figures[f"{prefix}_median_first_100"] = float(np.median(live[:100]))
            figures[f"{prefix}_median_last_100"] = float(np.median(live[-100:]))
            figures[f"{prefix}_largest_of_all"] = float(live.max())
    baseline = {"run": "keys stored unrotated"}
    rows = tuple(f"{scheme}_{dtype}_dlogit" for scheme in schemes for dtype in BOUNDS)
    return BenchResult("relocate", machine(), figures, baseline, bounds, rows=rows)


@contextmanager
def open_subject(path: Path, scheme: str, dtype: KVDtype) -> Iterator[Subject]:
    """The bundle's own decoder, or a small one of another scheme, made for the occasion."""
    if scheme == MODEL:
        yield _of_bundle(Bundle.open(path), dtype)
        return
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "decoder.onnx"
        write_decoder(graph, SCHEMES[scheme], dtype)
        yield _of_scheme(graph, SCHEMES[scheme], dtype)


def _of_bundle(bundle: Bundle, dtype: KVDtype) -> Subject:
    manifest, geometry = bundle.manifest, bundle.geometry_for(dtype)
    num_axes, num_frame = max(geometry.num_rope_axes, 1), bundle.tokens_per_image
    num_frame = num_frame or geometry.page_size

    def draw(random: np.random.Generator, count: int) -> NDArray[np.float32]:
        return bundle.embed(random.integers(0, manifest.vocab_size, count))

    return Subject(
        graph=bundle.decoder_path_for(dtype),
        geometry=geometry,
        rotations=[manifest.rotations[place] for place in manifest.layer_rotations],
        frame=np.arange(num_frame)[None].repeat(num_axes, 0),
        frames_move=(num_frame,) * num_axes,
        draw=draw,
    )


def _of_scheme(graph: Path, scheme: Scheme, dtype: KVDtype) -> Subject:
    def draw(random: np.random.Generator, count: int) -> NDArray[np.float32]:
        return random.standard_normal((count, HIDDEN)).astype(np.float32)

    return Subject(
        graph=graph,
        geometry=scheme.geometry(dtype),
        rotations=list(scheme.rotations),
        frame=scheme.frame_positions(),
        frames_move=scheme.frame_moves(),
        draw=draw,
    )


class _Pair:
    """The two runs side by side, given the same tokens; a fork of a pair shares its pages."""

    def __init__(
        self, subject: Subject, runner: Runner, sequence: Sequence, reference: UnrotatedRun
    ) -> None:
        self._subject = subject
        self._runner = runner
        self.sequence = sequence
        self._reference = reference

    def fork(self) -> _Pair:
        """The same context on both sides, to go on with otherwise."""
        return _Pair(self._subject, self._runner, self.sequence.fork(), self._reference.copy())

    def feed(self, kind: SegmentKind, embeds: NDArray[np.float32]) -> float:
        """Append to both; the largest difference of their logits."""
        subject, num_tokens = self._subject, len(embeds)
        start = self.sequence.next_position.astype(np.int64)[:, None]
        if kind == "frame":
            positions, move = subject.frame, subject.frames_move
        else:
            num_axes = len(start)
            positions = np.arange(num_tokens)[None].repeat(num_axes, 0)
            move = (num_tokens,) * num_axes
        got = self._runner.feed(self.sequence, kind, embeds, positions=positions, advance=move)
        return float(np.abs(got - self._reference.feed(embeds, start + positions)).max())

    def drop(self, which: int) -> None:
        """Drop frame number ``which`` of the window from both."""
        self.sequence.drop([int(self.sequence.segment_table().ids[1 + which])])
        num_frame = self._subject.frame.shape[1]
        self._reference.drop(_NUM_PINNED + which * num_frame, num_frame, self._subject.frames_move)


@contextmanager
def _pair(subject: Subject) -> Iterator[_Pair]:
    geometry = subject.geometry
    frame_pages = geometry.pages_for(subject.frame.shape[1])
    num_pages = geometry.pages_for(_NUM_PINNED) + (_NUM_FRAMES + 3) * frame_pages
    decoders = [
        create_decoder(choose_device("cpu"), subject.graph, geometry, num_pages=num_pages)
        for _ in range(2)
    ]
    try:
        runner = Runner(decoders[0], PageCache(geometry, num_pages))
        reference = UnrotatedRun(decoders[1], geometry, subject.rotations)
        yield _Pair(subject, runner, runner.cache.open(), reference)
    finally:
        for decoder in decoders:
            decoder.close()


def compare(
    subject: Subject, evictions: int, checkpoints: list[int], title: str, console: Console
) -> tuple[NDArray[np.float64], list[float]]:
    """Largest |Δlogit| after each eviction (evictions,), and of a fork at each checkpoint.

    Every third eviction takes a middle frame.
    """
    random, num_frame = np.random.default_rng(0), subject.frame.shape[1]
    live, forked = np.zeros(evictions), []
    with _pair(subject) as pair:
        pair.feed("system", subject.draw(random, _NUM_PINNED))
        for _ in range(_NUM_FRAMES):
            pair.feed("frame", subject.draw(random, num_frame))
        for k in track(range(evictions), title, console=console, transient=True):
            pair.drop(int(random.integers(_NUM_FRAMES)) if k % 3 == 2 else 0)
            live[k] = pair.feed("frame", subject.draw(random, num_frame))
            if k + 1 in checkpoints:
                fork = pair.fork()
                for which in (7, 3):
                    fork.drop(which)
                forked.append(fork.feed("text", subject.draw(random, num_frame)))
                fork.sequence.close()
    return live, forked
