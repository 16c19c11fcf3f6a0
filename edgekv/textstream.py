"""Token ids in, pieces of text out, as an answer grows.

Guarantees: a piece never ends inside a UTF-8 character, and text that may turn out to be the
beginning of a stop string is held back until that is decided. Does not know models or sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class TextStream:
    """Turns the token ids of one answer into text."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._stop = tuple(stop)
        self._held = ""  # decoded, but may be the beginning of a stop string
        self.stopped = False

    def push(self, token_id: int) -> str:
        """The text this token makes certain, possibly empty. Sets ``stopped`` at a stop string."""
        self._held += self._decoder.step(self._tokenizer, token_id) or ""
        found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            piece, self._held = self._held[: min(found)], ""
            return piece
        keep = self._possible_stop_length()
        piece, self._held = (
            self._held[: len(self._held) - keep],
            self._held[len(self._held) - keep :],
        )
        return piece

    def finish(self) -> str:
        """What was held back when the answer ended without a stop string."""
        piece, self._held = self._held, ""
        return piece

    def _possible_stop_length(self) -> int:
        """Length of the longest tail of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0
