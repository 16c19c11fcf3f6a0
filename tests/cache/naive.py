"""The plainest possible model of a sequence: lists of tokens. What the cache is compared with."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

Path = tuple[tuple[str, bytes], ...]  # kinds and contents of the segments that were kept


@dataclass
class NaiveSegment:
    id: int
    kind: str
    tokens: list[int] = field(default_factory=list)
    offsets: list[tuple[int, ...]] = field(default_factory=list)  # from the segment's start
    span: tuple[int, ...] = ()
    uniform: bool = True

    def copy(self) -> NaiveSegment:
        return copy.deepcopy(self)


class NaiveSequence:
    def __init__(self, num_axes: int) -> None:
        self.num_axes = num_axes
        self.segments: list[NaiveSegment] = []
        self.next_id = 0
        self.num_reserved = 0  # pages for tokens to come, those that a pending append drew included
        self.path: Path | None = ()  # None: something left it, or changed what was kept
        self._read: list[tuple[int, ...]] | None = None  # kept until the next change

    def fork(self) -> NaiveSequence:
        twin = copy.deepcopy(self)
        twin.num_reserved = 0
        return twin

    def append(
        self,
        kind: str,
        tokens: list[int],
        offsets: list[tuple[int, ...]],
        advance: tuple[int, ...],
        uniform: bool,
        extend: bool,
    ) -> None:
        self._read = None
        if extend and self.is_findable:
            self.path = None
        if not extend:
            self.segments.append(NaiveSegment(self.next_id, kind, span=(0,) * self.num_axes))
            self.next_id += 1
        last = self.segments[-1]
        last.offsets += [tuple(a + b for a, b in zip(last.span, o, strict=True)) for o in offsets]
        last.tokens += tokens
        last.span = tuple(a + b for a, b in zip(last.span, advance, strict=True))
        last.uniform &= uniform

    @property
    def is_findable(self) -> bool:
        """Whether nothing but what was kept is here."""
        return self.path is not None and len(self.path) == len(self.segments)

    def join(self, segment: NaiveSegment) -> None:
        """Go on with what another sequence has written."""
        self._read = None
        twin = segment.copy()
        twin.id = self.next_id
        self.next_id += 1
        self.segments.append(twin)

    def drop(self, ids: set[int]) -> None:
        self._read = None
        if ids:
            self.path = None
        self.segments = [s for s in self.segments if s.id not in ids]

    def insert(self, segments: list[NaiveSegment]) -> None:
        self._read = None
        self.path = None
        self.segments = sorted([*self.segments, *segments], key=lambda s: s.id)

    def truncate(self, num_tokens: int) -> None:
        self._read = None
        if self.path is not None:
            kept = sum(len(s.tokens) for s in self.segments[: len(self.path)])
            self.path = self.path if num_tokens >= kept else None
        while self.segments and self.num_tokens > num_tokens:
            last = self.segments[-1]
            extra = min(self.num_tokens - num_tokens, len(last.tokens))
            if extra == len(last.tokens):
                self.segments.pop()
                continue
            del last.tokens[-extra:], last.offsets[-extra:]
            last.span = tuple(n - extra for n in last.span)

    @property
    def num_tokens(self) -> int:
        return sum(len(s.tokens) for s in self.segments)

    @property
    def next_position(self) -> tuple[int, ...]:
        return tuple(sum(s.span[a] for s in self.segments) for a in range(self.num_axes))

    def starts(self) -> list[int]:
        """The first token's index of each segment."""
        out, start = [], 0
        for s in self.segments:
            out.append(start)
            start += len(s.tokens)
        return out

    def read(self) -> list[tuple[int, ...]]:
        """Every token with its current position on each axis, in order."""
        if self._read is None:
            self._read = self._read_now()
        return self._read

    def _read_now(self) -> list[tuple[int, ...]]:
        out: list[tuple[int, ...]] = []
        base = (0,) * self.num_axes
        for s in self.segments:
            for token, offset in zip(s.tokens, s.offsets, strict=True):
                out.append((token, *(b + o for b, o in zip(base, offset, strict=True))))
            base = tuple(b + n for b, n in zip(base, s.span, strict=True))
        return out
