"""Questions about a live context, each on a copy-on-write fork of it.

Owns: what a question's fork is given before it is answered: its room, and frames that come back.
Guarantees: the live context is as it was, whatever becomes of the question; a fork is closed with
    its answer.
Does not know: how tokens are drawn, how the live context grows.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import Sequence
from edgekv.drawing import Drawing, draw_answer
from edgekv.errors import ContextError
from edgekv.live_context import LiveContext
from edgekv.recall import Asked, fit
from edgekv.sampling import SamplingOptions

Recalling = Literal["off", "auto"]


class Questions:
    """Questions about one live context."""

    def __init__(self, live: LiveContext) -> None:
        self._live = live
        self._runner = live.runner
        self._inputs = live.inputs

    def logits(self, prompt: str, recall: Recalling) -> NDArray[np.float32]:
        """As ``Session.logits``."""
        fork, ids, _ = self._fork_for(prompt, 1, recall)
        try:
            return self._runner.feed(fork, "text", self._inputs.embed(ids))
        finally:
            self._runner.close(fork)

    def draw(self, prompt: str, options: SamplingOptions, recall: Recalling) -> Drawing:
        """An answer whose question is prefilled; the context is the one at this call."""
        self._live.check_open()
        if not isinstance(options, SamplingOptions):
            raise ValueError(f"options must be SamplingOptions, got a {type(options).__name__}")
        began_s = time.perf_counter()
        fork, ids, asked = self._fork_for(prompt, options.max_new_tokens, recall)
        tokens = draw_answer(
            self._runner,
            fork,
            embed=self._inputs.embed,
            tokenizer=self._inputs.tokenizer,
            prompt_ids=ids,
            prompt_weight=1 / len(ids) if self._live.member.rule.needs_heat else 0.0,
            end_ids=self._inputs.end_ids,
            options=replace(options, max_new_tokens=asked.num_new),
            began_s=began_s,
            recalled_frames=asked.recalled_frames,
            recalled_times_s=asked.recalled_times_s,
        )
        drawing = Drawing(self._runner, fork, tokens)
        drawing.begin()
        return drawing

    def _fork_for(
        self, prompt: str, num_wanted: int, recall: Recalling
    ) -> tuple[Sequence, list[int], Asked]:
        """A fork that has reserved the pages of a prompt and an answer: what is left to prefill of
        the prompt, and how many tokens the answer may have, at least one, after which frames.

        A fork may let go frames of its own to fit what comes; they stay in the live context.
        """
        live = self._live
        with self._runner.lock:
            live.check_open()
            if recall not in get_args(Recalling):
                raise ValueError(f"recall must be 'off' or 'auto', got {recall!r}")
            if self._inputs.asks_whole and live.sequence.source is None:
                raise ContextError("there is nothing to ask about yet: push a sound first")
            ids = self._inputs.question_ids(
                prompt,
                frames=live.sequence.num_frames > 0,
                instructions=live.record.instructions,
            )
            fork = live.sequence.fork(purpose="question")
            try:
                asked = self._fit(fork, ids, num_wanted, recall)
                rest = ids[asked.num_prefilled :]
                num_new = self._runner.sharing.hold_room(fork, len(rest), asked.num_new)
            except BaseException:
                fork.close()
                raise
            live.record.num_questions += 1
        return fork, rest, replace(asked, num_new=num_new)

    def _fit(self, fork: Sequence, ids: list[int], num_wanted: int, recall: Recalling) -> Asked:
        """Make a question fit its fork and the pool, recalled frames included."""
        member, tier = self._live.member, self._live.tier
        if recall == "off" or tier is None:
            return fit(self._runner, fork, member, len(ids), num_wanted)
        prompt = self._inputs.embed(ids)
        return tier.bring_back(self._runner, self._inputs, fork, member, prompt, num_wanted)
