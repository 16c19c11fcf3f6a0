"""Draw the built-in demo clip and choose its questions; see edgekv/demo/clip.py.

    python scripts/draw_demo_clip.py HF_FOLDER [--seed N]

Questions are kept only if their answer does not depend on how much of the past is still held, and
if the model answers them all right under every way of cutting the window that is tried.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import cv2
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

try:
    import torch
    from transformers import AutoTokenizer
    from transformers.models.smolvlm import SmolVLMForConditionalGeneration
except ImportError as error:
    missing = f"{error.name} is not installed: pip install -e '.[export]'"
    raise SystemExit(f"draw_demo_clip.py: {missing}") from None

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

from demo_training.data import Encoder  # noqa: E402  (found through the path above)
from demo_training.evaluate import answers_right  # noqa: E402
from demo_training.model import Trainee  # noqa: E402

from edgekv.demo import KINDS, MAX_FRAMES, Clip, Kind, Question, Scene, Window, ask_window  # noqa: E402
from edgekv.demo.clip import MIN_FRAMES  # noqa: E402

FOLDER = _HERE.parent / "edgekv" / "demo"
SIDE = 256
FPS = 2.0


def write_video(path: Path, frames: NDArray[np.uint8], quality: int) -> None:
    """Frames (n, 64, 64, 3) RGB as Motion JPEG of 256 x 256, which every OpenCV build reads."""
    fourcc = cv2.VideoWriter.fourcc(*"MJPG")
    writer = cv2.VideoWriter(str(path), cv2.CAP_OPENCV_MJPEG, fourcc, FPS, (SIDE, SIDE))
    if not writer.isOpened():
        raise click.ClickException(f"cannot write {path}")
    writer.set(cv2.VIDEOWRITER_PROP_QUALITY, quality)
    for frame in frames:
        large = cv2.resize(frame, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        writer.write(cv2.cvtColor(large, cv2.COLOR_RGB2BGR))
    writer.release()


def read_video(path: Path) -> NDArray[np.uint8]:
    """The frames as a program sees them, (n, 64, 64, 3) RGB."""
    source = cv2.VideoCapture(str(path))
    frames: list[NDArray[Any]] = []
    while True:
        more, frame = source.read()
        if not more:
            return np.stack(frames)
        small = cv2.resize(frame, (64, 64), interpolation=cv2.INTER_AREA)
        frames.append(cv2.cvtColor(small, cv2.COLOR_BGR2RGB))


def lasting_questions(clip: Clip, seed: int) -> list[Question]:
    """Questions of every kind at many times, whose answers hold for 12 to 24 kept frames."""
    rng = np.random.default_rng(seed)
    questions = []
    for last in range(3, len(clip)):
        for kind in KINDS:
            asked = _same_for_all(rng, clip, kind, last)
            if asked is not None:
                questions.append(asked)
    return questions


def _same_for_all(rng: np.random.Generator, clip: Clip, kind: Kind, last: int) -> Question | None:
    state = rng.bit_generator.state
    answers = set()
    question = None
    for held in range(min(MIN_FRAMES, last + 1), min(MAX_FRAMES, last + 1) + 1):
        rng.bit_generator.state = state  # the same draws for every length of the past
        question = ask_window(rng, Window(clip, last + 1 - held, last), kind)
        answers.add(None if question is None else (question.text, question.answer))
    return question if len(answers) == 1 else None


def choose(questions: list[Question], every: int) -> list[Question]:
    """At most one question in ``every`` frames; the rarest kinds choose their times first."""
    by_kind = {kind: [q for q in questions if q.kind == kind] for kind in KINDS}
    kinds = sorted((k for k in KINDS if by_kind[k]), key=lambda k: len(by_kind[k]))
    chosen: list[Question] = []
    for _ in range(len(questions)):
        before = len(chosen)
        for kind in kinds:
            busy = {q.last // every for q in chosen}
            asked = {q.text for q in chosen}
            free = [q for q in by_kind[kind] if q.last // every not in busy and q.text not in asked]
            if free:
                chosen.append(max(free, key=lambda q: _worth(q, chosen)))
        if len(chosen) == before:
            break
    return sorted(chosen, key=lambda q: q.last)


def _worth(question: Question, chosen: list[Question]) -> float:
    """Far from others of its kind, and not saying that there is nothing."""
    distances = [abs(question.last - q.last) for q in chosen if q.kind == question.kind]
    same = sum(q.kind == question.kind and q.answer == question.answer for q in chosen)
    dull = question.answer in ("nothing", "none", "not moving")
    return min(distances, default=0) - 40 * dull - 25 * same


@click.command(context_settings={"show_default": True})
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--seed", default=3_000_000_370, help="Scene to draw.")
@click.option("--first-frame", default=376, help="Frame of the scene to begin with.")
@click.option("--frames", default=100, help="Frames, two a second.")
@click.option("--every", default=4, help="Frames from one question to the next.")
@click.option("--quality", default=60, help="JPEG quality.")
def main(model: Path, seed: int, first_frame: int, frames: int, every: int, quality: int) -> None:
    """Write edgekv/demo/clip.avi and clip.json."""
    torch.set_num_threads(1)
    trainee = Trainee(SmolVLMForConditionalGeneration.from_pretrained(model)).eval()
    encoder = Encoder(AutoTokenizer.from_pretrained(model))
    scene = Scene(seed)
    if first_frame:
        scene.read(first_frame)
    clip = scene.read(frames)
    video = FOLDER / "clip.avi"
    write_video(video, clip.frames, quality)
    seen = read_video(video)
    questions = lasting_questions(clip, seed)
    asked = len(questions)
    policies = [(24, 12), (24, 16), (24, 20), (24, 23), (16, 12)]
    for window, keep in track(policies, "asking the model", transient=True):
        right = answers_right(trainee, encoder, seen, questions, window=window, keep=keep)
        questions = [q for q, ok in zip(questions, right, strict=True) if ok]
    chosen = choose(questions, every)
    facts = {
        "file": video.name,
        "fps": FPS,
        "num_frames": len(seen),
        "seed": seed,
        "first_frame": first_frame,
        "questions": [
            {"time_s": q.last / FPS, "kind": q.kind, "text": q.text, "answer": q.answer}
            for q in chosen
        ],
    }
    (FOLDER / "clip.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    size = video.stat().st_size / 1e3
    Console().print(
        f"{len(seen)} frames, {size:.0f} kB; {len(questions)} of {asked} questions always right; "
        f"{len(chosen)} chosen, kinds {sorted({q.kind for q in chosen})}"
    )


if __name__ == "__main__":
    main()
