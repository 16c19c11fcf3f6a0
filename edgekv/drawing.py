"""Draws answers, token by token, each on a fork of its own.

Owns: the fork of an answer until the answer has ended or nobody waits for it any more.
Guarantees: a fork is closed with its answer, however that ends; a signal may end it between two
    tokens, never within one; a second thread gets an error at once and disturbs nothing.
Does not know: frames, prompts, or how the fork came to its room.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgekv.cache import Sequence
from edgekv.errors import SessionError
from edgekv.generate import Runner
from edgekv.interrupts import checkpoint, indivisible
from edgekv.sampling import Sampler, SamplingOptions
from edgekv.textstream import TextStream
from edgekv.types import Answer, FinishReason

EmbedTokens = Callable[[Seq[int]], NDArray[np.float32]]  # (n,) ids -> (n, hidden)


class Drawing(Iterator[str]):
    """An answer being drawn: its pieces, and all of it once they have ended."""

    def __init__(
        self, runner: Runner, fork: Sequence, tokens: Generator[str, None, Answer]
    ) -> None:
        self._runner = runner
        self._fork = fork
        self._tokens = tokens
        self._alone = threading.RLock()  # a signal handler may close what it interrupts
        self.answer: Answer | None = None
        runner.lock.close_with(self, fork.close)

    def begin(self) -> None:
        """Prefill the question."""
        try:
            next(self._tokens)
        except BaseException:
            self._runner.close(self._fork)
            raise

    @indivisible
    def __next__(self) -> str:
        self._begin_alone()
        try:
            while True:
                checkpoint()
                if piece := next(self._tokens):
                    return piece
        except BaseException as error:
            if isinstance(error, StopIteration) and self.answer is None:
                self.answer = error.value
            self._runner.close(self._fork)
            raise
        finally:
            self._alone.release()

    @indivisible
    def close(self) -> None:
        """Draw no more of it."""
        self._begin_alone()
        try:
            self._tokens.close()
            self._runner.close(self._fork)
        finally:
            self._alone.release()

    def _begin_alone(self) -> None:
        if not self._alone.acquire(blocking=False):
            raise SessionError("another thread is drawing this answer; draw it from one thread")


def draw_answer(
    runner: Runner,
    fork: Sequence,
    *,
    embed: EmbedTokens,
    tokenizer: Tokenizer,
    prompt_ids: Seq[int],
    prompt_weight: float,
    end_ids: frozenset[int],
    options: SamplingOptions,
    began_s: float,  # when the question came, as perf_counter counts
    recalled_frames: tuple[int, ...] = (),  # that stand on the fork for it
    recalled_times_s: tuple[float, ...] = (),  # of these
) -> Generator[str, None, Answer]:
    """Ask on a fork: yields "" once the prompt is prefilled and then the text of each token, which
    may be empty; returns the whole answer. It holds nothing to be given back when it ends early."""
    pieces: list[str] = []
    ids: list[int] = []
    reason: FinishReason = "length"
    decode_s = 0.0
    sampler, text = Sampler(options), TextStream(tokenizer, options.stop)
    logits = runner.feed(fork, "text", embed(prompt_ids), mass_weight=prompt_weight)
    ttft_s = time.perf_counter() - began_s
    yield ""
    while True:
        token = sampler.pick(logits)
        if token in end_ids:
            reason = "stop"
            break
        ids.append(token)
        pieces.append(text.push(token))
        yield pieces[-1]
        if text.stopped:
            reason = "stop_string"
        if text.stopped or len(ids) == options.max_new_tokens:
            break
        step_began = time.perf_counter()
        logits = runner.feed(fork, "answer", embed([token]), extend=len(ids) > 1)
        decode_s += time.perf_counter() - step_began
    pieces.append(text.finish())
    yield pieces[-1]
    speed = (len(ids) - 1) / decode_s if decode_s else 0.0
    recalled = recalled_frames, recalled_times_s
    return Answer("".join(pieces), tuple(ids), ttft_s, speed, reason, *recalled)
