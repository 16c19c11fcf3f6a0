"""From logits to the next token: greedy, temperature, top-p, seeded.

Owns: the sampling options a user may set and their checks. Does not know text or sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.checks import finite, refuse, whole

_TEMPERATURES, _SHARES = "be 0 or more", "be above 0 and at most 1"
_MAX_SEED = 2**128 - 1
_COLDEST = 1e-12  # below it, in float64, only the largest logit has a probability


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How an answer is drawn. ``temperature`` 0 is greedy; ``seed`` None draws a fresh one."""

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()  # the answer ends before any of these strings

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "max_new_tokens": whole(self.max_new_tokens, "max_new_tokens", least=1),
            "temperature": finite(self.temperature, "temperature", _TEMPERATURES),
            "top_p": finite(self.top_p, "top_p", _SHARES),
        }
        if self.seed is not None:
            checked["seed"] = whole(self.seed, "seed", least=0, most=_MAX_SEED)
        if self.temperature < 0:
            refuse("temperature", _TEMPERATURES, self.temperature)
        if not 0 < self.top_p <= 1:
            refuse("top_p", _SHARES, self.top_p)
        if not isinstance(self.stop, tuple | list) or not all(
            isinstance(text, str) and text for text in self.stop
        ):
            refuse("stop", "be a tuple of strings that are not empty", self.stop)
        for name, value in checked.items():
            object.__setattr__(self, name, value)


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
        below = logits.astype(np.float64) - logits.max()
        probabilities = np.exp(below / max(self._options.temperature, _COLDEST))
        probabilities /= probabilities.sum()
        order = np.argsort(-probabilities, kind="stable")
        cumulative = np.cumsum(probabilities[order])
        num_kept = int(np.searchsorted(cumulative, self._options.top_p)) + 1
        kept = order[:num_kept]
        threshold = self._random.random() * cumulative[min(num_kept, len(order)) - 1]
        return int(kept[min(int(np.searchsorted(cumulative, threshold)), len(kept) - 1)])
