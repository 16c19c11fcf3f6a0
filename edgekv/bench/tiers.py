"""``edgekv bench tiers``: frames on disk and back, on the demo model.

- size and error of each format: of single numbers, relative to the largest of their token and head
  (mean and maximum), and of the logits of a question with the frames recalled, against ``exact``
- cost of storing a frame, beside the whole ``push`` that it leaves by
- reading a frame from the disk against encoding it again, the baseline
- ranking: streams in which a frame that shows the needle is among the first 1, 4 and 8 of the
  hundreds in the tier, beside what a random order would give
- what recalling adds to the time to the first token, nothing cached by the system, and the part
  of reading that is hidden behind the question's own prefill
- needle: "yes" to an object seen only in the first window and to one that never came, with the live
  context at one window; beside the same without recall
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

import edgekv
from edgekv.bench.report import BenchResult, machine
from edgekv.cache import Sequence
from edgekv.demo import MAX_FRAMES
from edgekv.demo.needles import NeedleStream, needle_streams
from edgekv.generate import Runner
from edgekv.questions import Recalling
from edgekv.recall import looks_for
from edgekv.session import Session
from edgekv.tier.codec import TierFormat
from edgekv.tier.store import Tier, state_of

FORMATS: tuple[TierFormat, ...] = get_args(TierFormat)
_RANKS = (1, 4, 8)
_SHORT = edgekv.SamplingOptions(max_new_tokens=16)
_ONE = edgekv.SamplingOptions(max_new_tokens=1)
_NUM_QUESTIONS = 20


def run(path: Path, *, num_streams: int, length: int, console: Console) -> BenchResult:
    """``num_streams`` needle streams of ``length`` windows of 24 frames."""
    figures: dict[str, float] = {}
    ranks, shares = [], []
    needles: list[tuple[bool, bool]] = []  # yes to the needle, yes to what never came
    blind: list[tuple[bool, bool]] = []  # the same without recall, the baseline
    with (
        edgekv.load(path, kv_budget="4MiB", num_threads=1) as model,
        tempfile.TemporaryDirectory() as folder,
    ):
        streams = needle_streams(num_streams, length * MAX_FRAMES)
        for stream in track(streams, "streams", num_streams, console=console, transient=True):
            place = Path(folder) / "bench.tier"
            with model.session(tier=place, tier_limit="32MiB") as session:
                push_ms = _watch(session, stream)
                ranks.append(_rank(session, stream))
                needles.append(needle_answers(session, stream, "auto"))
                blind.append(needle_answers(session, stream, "off"))
                shares.append(len(stream.sightings) / tier_of(session).num_stored)
                if not figures:
                    figures = {"push_ms": push_ms, **_costs(session, stream)}
                    figures |= _errors(session, Path(folder))
    baseline: dict[str, str | float] = {
        "reading_ms": figures["encoding_ms"],
        "recall_ttft_ms": figures["plain_ttft_ms"],
    }
    for count in _RANKS:
        figures[f"found_first_{count}"] = 100 * float(np.mean(np.array(ranks) < count))
        chance = 1 - (1 - np.array(shares)) ** count
        baseline[f"found_first_{count}"] = 100 * float(np.mean(chance))
    for part, name in enumerate(("needle_found", "needle_false_alarms")):
        figures[name] = 100 * float(np.mean([answers[part] for answers in needles]))
        baseline[name] = 100 * float(np.mean([answers[part] for answers in blind]))
    figures["store_percent"] = 100 * figures["store_ms"] / figures["push_ms"]
    bounds = {
        "needle_found": (">=", 95.0),
        "found_first_8": (">=", 95.0),
        "int8_logit_error": ("<=", 0.5),
    }
    return BenchResult("tiers", machine(), figures, baseline, bounds)


def needle_answers(session: Session, stream: NeedleStream, recall: Recalling) -> tuple[bool, bool]:
    """Whether a session says yes to the needle, and to what never came."""
    needle, stranger = (
        session.ask(question.text, _SHORT, recall=recall).text.strip() == "yes"
        for question in stream.about_needle()
    )
    return needle, stranger


def tier_of(session: Session) -> Tier:
    """The tier behind a session that has one."""
    assert session._live.tier is not None
    tier = session._live.tier.tier
    assert tier is not None
    return tier


def _watch(session: Session, stream: NeedleStream) -> float:
    """Push all frames: milliseconds each, the median."""
    seconds = []
    for k, pixels in enumerate(stream.clip.frames):
        began = time.perf_counter()
        session.push(pixels, k / 2)
        seconds.append(time.perf_counter() - began)
    return 1e3 * median(seconds)


def _rank(session: Session, stream: NeedleStream) -> int:
    """How many frames in the tier come before the first that shows the needle."""
    tier, inputs = tier_of(session), session._live.inputs
    ids = inputs.question_ids(stream.about_needle()[0].text, frames=True)
    live = session._live.sequence
    query = looks_for(tier, session._live.runner, live, inputs.embed(ids))
    scale = tier.plan.model.geometry.head_dim**-0.5
    order = tier.index.best(query, scale, tier.max_frames, live.segment_table().ids)
    shows = np.isin(tier.index.frames["index"][order], stream.sightings)
    return int(shows.argmax()) if shows.any() else order.size


def _costs(session: Session, stream: NeedleStream) -> dict[str, float]:
    """Milliseconds, medians: storing a frame, reading one, a question with and without recall."""
    tier, runner, live = tier_of(session), session._live.runner, session._live.sequence
    stats = session.stats().tier
    assert stats is not None
    scratch = Tier.create(tier.path.with_name("store.tier"), tier.plan)
    store_s = []
    for segment in live.segment_table().ids[1:]:
        began = time.perf_counter()
        scratch.store(live, np.array([segment]), runner.read_pages)
        store_s.append(time.perf_counter() - began)
    scratch.close()
    question = stream.about_needle()[0].text
    plain, recalled = [], []
    for _ in range(_NUM_QUESTIONS):
        plain.append(session.ask(question, _ONE).ttft_s)
        tier.forget_cached()
        recalled.append(session.ask(question, _ONE, recall="auto").ttft_s)
    after = session.stats().tier
    assert after is not None
    return {
        "record_bytes": tier.num_bytes / len(tier.index),
        "store_ms": 1e3 * median(store_s),
        "reading_ms": stats.reading_ms,
        "encoding_ms": stats.encoding_ms,
        "plain_ttft_ms": 1e3 * median(plain),
        "recall_ttft_ms": 1e3 * median(recalled),
        "recall_frames": after.num_recalled / _NUM_QUESTIONS,
        "recall_reading_ms": after.recall_reading_ms / _NUM_QUESTIONS,
        "recall_waiting_ms": after.recall_waiting_ms / _NUM_QUESTIONS,
        "hidden_percent": 100 * (1 - after.recall_waiting_ms / after.recall_reading_ms),
    }


def _errors(session: Session, folder: Path) -> dict[str, float]:
    """What each format loses: of the numbers of the frames in the window, and of the logits of a
    question when half of them come back from it."""
    figures: dict[str, float] = {}
    runner, live = session._live.runner, session._live.sequence
    segments = live.segment_table()
    ids = segments.ids[1 : 1 + len(segments) // 2]
    inputs = session._live.inputs
    rows = inputs.embed(inputs.question_ids("What do you see?", frames=True))
    truth: NDArray[np.float32] | None = None
    pages: dict[str, NDArray[np.float64]] = {}
    for name in sorted(FORMATS):  # exact first
        plan = replace(tier_of(session).plan, format=name)
        with closing(Tier.create(folder / f"{name}.tier", plan)) as tier:
            tier.store(live, ids, runner.read_pages)
            logits, numbers = _recalled(runner, live, ids, tier, rows)
        pages[name] = numbers
        if truth is None:
            truth = logits
            continue
        figures[f"{name}_logit_error"] = float(np.abs(logits - truth).max())
        size = np.abs(pages["exact"]).max(axis=-1, keepdims=True)
        error = np.abs(numbers - pages["exact"]) / np.maximum(size, 1e-9)
        for part, what in enumerate(("key", "value")):
            figures[f"{name}_{what}_max"] = float(error[:, :, part].max())
            figures[f"{name}_{what}_mean"] = float(error[:, :, part].mean())
    return figures


def _recalled(
    runner: Runner,
    live: Sequence,
    ids: NDArray[np.int64],  # (k,) of frames that come from the tier
    tier: Tier,
    rows: NDArray[np.float32],  # (n, hidden) of a question
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Logits (vocab,) of a question, and the pages (p, L, 2, Hk, S, D) that came back."""
    places = [int(np.flatnonzero(tier.index.frames["segment"] == segment)[0]) for segment in ids]
    frames = [frame for place in places if (frame := tier.read(place)) is not None]
    pages = np.concatenate([frame.pages for frame in frames])
    page_size = runner.cache.geometry.page_size
    with runner.lock, live.fork() as fork:
        fork.drop(ids.tolist())
        taken = fork.insert(state_of(frames, page_size, fork.next_segment_id))
        runner.write_pages(taken, pages)
        return runner.feed(fork, "text", rows), pages.astype(np.float64)
