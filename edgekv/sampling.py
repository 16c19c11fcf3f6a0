"""From logits to the next token: greedy, temperature, top-p, seeded.

Owns: the sampling options a user may set and their checks. Does not know text or sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How an answer is drawn. ``temperature`` 0 is greedy; ``seed`` None draws a fresh one."""

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()  # the answer ends before any of these strings

    def __post_init__(self) -> None:
        if not isinstance(self.max_new_tokens, Integral) or self.max_new_tokens < 1:
            raise ValueError(
                f"max_new_tokens must be a whole number from 1, got {self.max_new_tokens!r}"
            )
        if not isinstance(self.temperature, Real) or not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or more, got {self.temperature!r}")
        if not isinstance(self.top_p, Real) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p!r}")
        if self.seed is not None and (not isinstance(self.seed, Integral) or self.seed < 0):
            raise ValueError(f"seed must be a whole number from 0 or None, got {self.seed!r}")
        if not isinstance(self.stop, tuple | list) or not all(
            isinstance(text, str) and text for text in self.stop
        ):
            raise ValueError(
                f"stop must be a tuple of strings that are not empty, got {self.stop!r}"
            )


class Sampler:
    """Draws the tokens of one answer; owns the answer's random state."""

    def __init__(self, options: SamplingOptions) -> None:
        self._options = options
        self._random = np.random.default_rng(options.seed)

    def pick(self, logits: NDArray[np.float32]) -> int:
        """Logits (vocab,) -> token id. Top-p keeps the smallest set of tokens whose probability
        reaches ``top_p`` (nucleus sampling, Holtzman et al. 2020)."""
        if not self._options.temperature:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self._options.temperature
        probabilities = np.exp(scaled - scaled.max())
        probabilities /= probabilities.sum()
        order = np.argsort(-probabilities, kind="stable")
        cumulative = np.cumsum(probabilities[order])
        num_kept = int(np.searchsorted(cumulative, self._options.top_p)) + 1
        kept = order[:num_kept]
        threshold = self._random.random() * cumulative[min(num_kept, len(order)) - 1]
        return int(kept[min(int(np.searchsorted(cumulative, threshold)), len(kept) - 1)])
