"""Batches for training: drawn video packed with many questions as branches.

Owns how a sequence is laid out: start, frames, then one branch per question that sees the start,
the frames of its window and itself. Guarantees that positions and visibility equal those of the
running product, where every branch follows directly on the last frame of its window. Does not know
the model.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from demo_training.model import TOKENS_PER_FRAME
from demo_training.tokenizer import ASSISTANT, END, IMAGE, INSTRUCTIONS, START, SYSTEM, USER
from edgekv.demo import Clip, Kind, Question, Scene, Window, ask_window

TRAINING_SEEDS: Final = 10**9  # held-out scenes have larger seeds

_GRID_SIDE: Final = 8
_INTERPOLATIONS: Final = (cv2.INTER_LINEAR, cv2.INTER_CUBIC, cv2.INTER_AREA, cv2.INTER_LANCZOS4)


@dataclass(frozen=True)
class Batch:
    """One packed batch: b sequences of t tokens; see ``Trainee.forward``."""

    pixels: Tensor  # (b * num_frames, 3, 64, 64) float32
    tokens: Tensor  # (b, t) int64
    positions: Tensor  # (b, t) int64
    mask: Tensor  # (b, 1, t, t) bool
    num_start: int
    predictors: Tensor  # (num_answer_tokens,) int64
    targets: Tensor  # (num_answer_tokens,) int64
    weights: Tensor  # (num_answer_tokens,) float32
    question_of: Tensor  # (num_answer_tokens,) int64, index into questions
    questions: list[Question]
    patch_labels: Tensor  # (b * num_frames, 64, 4) int64, -100 = no label
    cell_labels: Tensor  # (b, num_frames * 16, 4) int64, -100 = no label


class Encoder:
    """Turns questions and instructions into token ids, remembering those it has seen."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        ids = tokenizer.convert_tokens_to_ids([START, SYSTEM, USER, IMAGE, END, ASSISTANT])
        assert isinstance(ids, list), "a list of tokens has a list of ids"
        self.start, self.system, self.user, self.image, self.end, self.assistant = ids
        self._vocabulary = len(tokenizer)

    def text(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text, add_special_tokens=False)
        return self._known[text]

    def begin(self, rng: np.random.Generator) -> list[int]:
        """Start tokens: half of the time with instructions, now and then meaningless ones."""
        draw = rng.random()
        if draw < 0.5:
            return [self.start, self.user]
        words = self.text(INSTRUCTIONS[rng.integers(len(INSTRUCTIONS))])
        if draw > 0.85:
            words = rng.integers(7, self._vocabulary, rng.integers(1, 25)).tolist()
        return [self.start, self.system, *words, self.end, self.user]

    def branch(self, question: Question) -> tuple[list[int], int]:
        """Token ids of question, suffix and answer, and where the answer begins."""
        asked = [*self.text(question.text), self.end, self.assistant]
        return [*asked, *self.text(question.answer), self.end], len(asked)


def preprocess(frames: NDArray[np.uint8]) -> Tensor:
    """(n, 64, 64, 3) uint8 -> (n, 3, 64, 64) float32 as the SmolVLM image processor does."""
    scaled = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
    return ((scaled / 255 - 0.5) / 0.5).contiguous()


def through_a_file(rng: np.random.Generator, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The frames as they come back from a lossy video file of a larger picture size."""
    side = int(rng.choice((64, 128, 160, 256)))
    up, down = rng.choice(_INTERPOLATIONS[:2]), rng.choice(_INTERPOLATIONS)
    quality = int(rng.integers(70, 96)) if side > 64 else int(rng.integers(88, 98))
    result = np.empty_like(frames)
    for index, frame in enumerate(frames):
        large = cv2.resize(frame, (side, side), interpolation=int(up))
        buffer = io.BytesIO()
        Image.fromarray(large).save(buffer, "JPEG", quality=quality)
        large = np.asarray(Image.open(buffer))
        result[index] = cv2.resize(large, (64, 64), interpolation=int(down))
    return result


def lower_bounds(rng: np.random.Generator, num_frames: int, window: int) -> NDArray[np.intp]:
    """(num_frames,) oldest frame kept at the time of each frame, with evictions in batches."""
    most = int(rng.integers(window // 2, window + 1))
    least = int(rng.integers(max(window // 2 - 1, 1), most + 1))
    oldest = np.zeros(num_frames, np.intp)
    low = 0
    for frame in range(num_frames):
        if frame - low + 1 > most:
            low = frame - least + 1
        oldest[frame] = low
    return oldest


def patch_labels(clip: Clip) -> NDArray[np.int64]:
    """(n, 64, 4): colour, shape and position bins of the object in each 8x8 patch.

    Only the colour says whether there is an object: in the rest, the background would drown it.
    """
    owner = _owner_of_cells(clip, _GRID_SIDE, 0.25)  # (n, 64)
    colour, shape = np.where(owner < 0, 0, owner // 3 + 1), np.where(owner < 0, -100, owner % 3 + 1)
    rows = np.arange(len(clip))[:, None]
    centres = np.nan_to_num(clip.centres[rows, np.maximum(owner, 0)])  # (n, 64, 2)
    bins = np.clip((centres + 8) / 4, 0, 19).astype(np.int64)
    bins[owner < 0] = -100
    return np.concatenate([colour[..., None], shape[..., None], bins], -1).astype(np.int64)


def cell_labels(clip: Clip) -> NDArray[np.int64]:
    """(n, 16, 4): colour, shape, movement and identity of the object in each 16x16 cell."""
    owner = _owner_of_cells(clip, 4, 0.15)  # (n, 16)
    colour, shape = np.where(owner < 0, 0, owner // 3 + 1), np.where(owner < 0, -100, owner % 3 + 1)
    steps = np.diff(clip.centres, axis=0, prepend=np.nan)  # (n, 18, 2)
    size = np.abs(steps)
    along, across = size.max(-1), size.min(-1)
    angle = np.arctan2(np.nan_to_num(steps[..., 1]), np.nan_to_num(steps[..., 0]))
    way = np.round(angle / (np.pi / 2)).astype(np.int64) % 4 + 1  # right, down, left, up
    way = np.where(along < 0.3, 5, np.where(across * 1.5 < along, way, -100))
    way = np.where(np.isnan(along), -100, way)  # (n, 18)
    movement = way[np.arange(len(clip))[:, None], np.maximum(owner, 0)]
    movement[owner < 0] = -100
    identity = np.where(owner < 0, -100, owner)
    return np.stack([colour, shape, movement, identity], -1).astype(np.int64)


def _owner_of_cells(clip: Clip, side: int, share: float) -> NDArray[np.int64]:
    """(n, side * side) identity that owns most of each cell, -1 if none owns enough of it."""
    count, size = len(clip), 64 // side
    cells = clip.owners.reshape(count, side, size, side, size).transpose(0, 1, 3, 2, 4)
    cells = cells.reshape(count, side * side, size * size)
    owner = np.full((count, side * side), -1, np.int64)
    most = np.full((count, side * side), share * size * size)
    for identity in np.flatnonzero((clip.visible > 0).any(0)):
        pixels = (cells == identity).sum(-1)
        better = pixels > most
        owner[better], most[better] = identity, pixels[better]
    return owner


@dataclass(frozen=True)
class Mix:
    """What a batch is made of."""

    num_sequences: int
    num_frames: int
    num_questions: int  # per sequence
    kinds: tuple[Kind, ...]
    kind_weights: tuple[float, ...]
    window: int | None = None  # frames kept, None = all


def draw_batch(rng: np.random.Generator, encoder: Encoder, mix: Mix) -> Batch:
    """Draw scenes and questions, and pack them."""
    start = encoder.begin(rng)
    clips = []
    rows = []
    for _ in range(mix.num_sequences):
        scene = Scene(int(rng.integers(TRAINING_SEEDS)))
        clip = scene.read(mix.num_frames)
        oldest = np.zeros(mix.num_frames, np.intp)
        if mix.window is not None:
            oldest = lower_bounds(rng, mix.num_frames, mix.window)
        rows.append((oldest, draw_questions(rng, clip, oldest, mix)))
        if rng.random() < 0.2:
            frames = through_a_file(rng, clip.frames)
            clip = Clip(frames, clip.visible, clip.inside, clip.centres, clip.owners)
        clips.append(clip)
    return pack(encoder, start, clips, rows)


def draw_questions(
    rng: np.random.Generator, clip: Clip, oldest: NDArray[np.intp], mix: Mix
) -> list[Question]:
    """``mix.num_questions`` questions at random times, the later ones a little more often."""
    questions: list[Question] = []
    weights = np.array(mix.kind_weights) / sum(mix.kind_weights)
    windows: dict[int, Window] = {}
    for kind in rng.choice(mix.kinds, size=mix.num_questions * 12, p=weights):
        last = int(len(clip) * rng.random() ** 0.8)
        if last not in windows:
            windows[last] = Window(clip, int(oldest[last]), last)
        question = ask_window(rng, windows[last], kind)
        # An answer that says nothing is easy and would come too often.
        dull = question is not None and question.answer in ("nothing", "none", "not moving")
        if question is not None and not (dull and rng.random() < 0.5):
            questions.append(question)
        if len(questions) == mix.num_questions:
            break
    return sorted(questions, key=lambda q: q.last)  # neighbours see nearly the same frames


def pack(
    encoder: Encoder,
    start: list[int],
    clips: list[Clip],
    rows: list[tuple[NDArray[np.intp], list[Question]]],
) -> Batch:
    """Lay out clips of one length, each with its oldest kept frames and its questions."""
    num_frames, num_start = len(clips[0]), len(start)
    num_prefix = num_start + num_frames * TOKENS_PER_FRAME
    branches = [[encoder.branch(q) for q in questions] for _, questions in rows]
    longest = max(sum(len(ids) for ids, _ in row) for row in branches)
    shape = (len(clips), num_prefix + longest)
    tokens = np.zeros(shape, np.int64)
    positions = np.zeros(shape, np.int64)
    branch_of = np.full(shape, -1, np.int64)  # 0 = prefix, -1 = padding
    newest = np.full(shape, -1, np.int64)  # the frame a token belongs to, -1 = start
    oldest = np.zeros(shape, np.int64)  # the oldest frame a token sees
    predictors: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    question_of: list[int] = []
    tokens[:, :num_start] = start
    tokens[:, num_start:num_prefix] = encoder.image
    positions[:, :num_prefix] = np.arange(num_prefix)
    branch_of[:, :num_prefix] = 0
    newest[:, num_start:num_prefix] = np.repeat(np.arange(num_frames), TOKENS_PER_FRAME)
    flat: list[Question] = []
    for row, (bounds, questions) in enumerate(rows):
        oldest[row, num_start:num_prefix] = np.repeat(bounds, TOKENS_PER_FRAME)
        at = num_prefix
        for number, (question, (ids, answer_at)) in enumerate(
            zip(questions, branches[row], strict=True), start=1
        ):
            cut = slice(at, at + len(ids))
            tokens[row, cut] = ids
            after = num_start + (question.last + 1) * TOKENS_PER_FRAME
            positions[row, cut] = after + np.arange(len(ids))
            branch_of[row, cut] = number
            newest[row, cut], oldest[row, cut] = question.last, question.first
            answer = ids[answer_at:]
            first = row * shape[1] + at + answer_at - 1
            predictors += range(first, first + len(answer))
            targets += answer
            weights += [len(answer) ** -0.5] * len(answer)
            question_of += [len(flat)] * len(answer)
            flat.append(question)
            at += len(ids)
    return Batch(
        pixels=preprocess(np.concatenate([c.frames for c in clips])),
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions),
        mask=torch.from_numpy(_visibility(branch_of, newest, oldest)[:, None]),
        num_start=num_start,
        predictors=torch.tensor(predictors),
        targets=torch.tensor(targets),
        weights=torch.tensor(weights),
        question_of=torch.tensor(question_of),
        questions=flat,
        patch_labels=torch.from_numpy(np.concatenate([patch_labels(c) for c in clips])),
        cell_labels=torch.from_numpy(np.stack([cell_labels(c).reshape(-1, 4) for c in clips])),
    )


def _visibility(
    branch_of: NDArray[np.int64], newest: NDArray[np.int64], oldest: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(b, t, t), True where the token of the row may see the token of the column."""
    length = branch_of.shape[1]
    causal = np.tri(length, dtype=bool)[None]
    key_branch, key_frame = branch_of[:, None, :], newest[:, None, :]
    related = (key_branch == 0) | (key_branch == branch_of[:, :, None])
    kept = (key_frame < 0) | ((key_frame >= oldest[:, :, None]) & (key_frame <= newest[:, :, None]))
    itself = np.eye(length, dtype=bool)[None]
    return np.asarray((causal & related & kept) | itself)
