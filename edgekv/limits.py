"""How much a context may hold, and making what comes next fit in it.

Owns: the arithmetic between the model's window, the pool, the pinned start, frames and the room
kept for a question. Guarantees: a live context leaves the room of a question free, but for what
others hold of it; making room ends, with the room made or an error that says what is missing. Does
not know what is in a frame.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import Entry, PageCache, Sequence
from edgekv.cache.retention import (
    RetentionRule,
    Watermarks,
    choose,
    choose_room,
    may_leave,
    offered,
)
from edgekv.cache.segments import FRAME_CODE
from edgekv.checks import whole
from edgekv.config import KVGeometry, format_bytes
from edgekv.errors import BudgetError, ContextError

# When a frame comes to a full window, one eighth of the frames leave at once, and one in whose
# place it comes.
_EVICTION_SHARE = 8
_DEFAULT_RESERVE_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a context over one cache."""

    cache: PageCache
    max_context_tokens: int
    reserve_tokens: int
    reserve_pages: int  # kept free for a question, its answer and what it recalls
    start_pages: int  # of the pinned start
    frame_pages: int  # of one frame
    max_frames: int  # that the window holds
    marks: Watermarks  # pages of the live context
    recall_frames: int = 0  # most that come back for one question

    @property
    def widest_tokens(self) -> int:
        """Most that a question with recalled frames has before it: as much as the model is used to,
        though the live context may be kept shorter."""
        reserve = min(self.reserve_tokens, _default_reserve(self.max_context_tokens))
        return self.max_context_tokens - reserve

    @property
    def floor_pages(self) -> int:
        """What a context cannot do without: its pinned start and one frame."""
        return self.start_pages + self.frame_pages

    @property
    def most_pages(self) -> int:
        """What a context in frames can use, however large the pool is."""
        return self.start_pages + self.max_frames * self.frame_pages

    @property
    def batch_pages(self) -> int:
        """What leaves at once when something must, besides what makes room for what comes."""
        return self.marks.high - self.marks.low

    @property
    def fitting_frames(self) -> int:
        """Frames that a context holds: as many as the window does, if the pool has the pages."""
        return (self.marks.high - self.start_pages) // self.frame_pages

    @property
    def leaving_frames(self) -> int:
        """Frames that leave at once when one more comes than fit: a batch, and one for its room."""
        return min(self.batch_pages // self.frame_pages + 1, self.fitting_frames)

    def within(self, num_pages: int) -> Limits:
        """The bounds with ``num_pages`` for the context and a question, enough for one frame."""
        room = num_pages - self.start_pages - self.reserve_pages
        num_window = max(min(self.max_frames, room // self.frame_pages), 1)
        high = self.start_pages + num_window * self.frame_pages
        batch = max(num_window // _EVICTION_SHARE, 1) * self.frame_pages
        return replace(self, marks=Watermarks(high, high - batch))


def frame_ids(sequence: Sequence) -> NDArray[np.int64]:
    """(n,) ids of the segments that are frames."""
    table = sequence.segment_table()
    ids: NDArray[np.int64] = table.ids[table.kinds == FRAME_CODE]
    return ids


def plan_limits(
    cache: PageCache,
    *,
    num_start: int,
    num_frame: int,
    max_context_tokens: int,
    reserve_tokens: int | None,
    num_pages: int | None = None,
    recall: bool = False,
) -> Limits:
    """Bounds of a context whose pinned start and frames have these many tokens.

    ``num_frame`` 0: a text-only model, whose context is counted in pages.
    ``reserve_tokens`` None: 128, at most a quarter of the context. ``num_pages`` are to be had from
    the pool, None: those available. ``recall``: keep room for frames that come back, a third of the
    model's window, at most a quarter of what fits. Raises BudgetError unless pinned start, one
    frame and a question fit the window and these pages.
    """
    if reserve_tokens is None:
        reserve_tokens = _default_reserve(max_context_tokens)
    reserve_tokens = whole(reserve_tokens, "reserve_tokens", least=2)
    geometry = cache.geometry
    num_frame = num_frame or geometry.page_size
    num_window = (max_context_tokens - num_start - reserve_tokens) // num_frame
    if num_window < 1:
        raise BudgetError(
            f"the context holds {max_context_tokens} tokens, but the pinned start ({num_start}), "
            f"one frame ({num_frame}) and the room for a question ({reserve_tokens}) do not fit"
        )
    start_pages, frame_pages = geometry.pages_for(num_start), geometry.pages_for(num_frame)
    reserve_pages = _reserve_pages(geometry, reserve_tokens)
    if num_pages is None:
        num_pages = cache.counts.available
    fitting = max(num_pages - start_pages - reserve_pages, 0) // frame_pages
    usual = max_context_tokens - num_start - _default_reserve(max_context_tokens)
    num_back = min(usual // num_frame // 3, fitting // 4) if recall else 0
    reserve_pages += num_back * frame_pages
    limits = Limits(
        cache,
        max_context_tokens,
        reserve_tokens,
        reserve_pages,
        start_pages,
        frame_pages,
        num_window,
        Watermarks(start_pages + frame_pages, start_pages),
        num_back,
    )
    what = "the pinned start, one frame and a question"
    check_fits(cache, limits.floor_pages + reserve_pages, num_pages, what)
    return limits.within(num_pages)


def _default_reserve(max_context_tokens: int) -> int:
    return max(min(_DEFAULT_RESERVE_TOKENS, max_context_tokens // 4), 2)


def check_fits(cache: PageCache, needed: int, num_pages: int, what: str) -> None:
    """Raise BudgetError unless the ``needed`` pages of ``what`` are at most ``num_pages``."""
    if needed > num_pages:
        # What others hold and cannot give up stays theirs, however large the pool.
        budget = (cache.counts.num_pages - num_pages + needed) * cache.geometry.page_bytes
        raise BudgetError(
            f"{num_pages} of {cache.counts.num_pages} pages can be had, but {what} need {needed}: "
            f"a KV budget of {format_bytes(budget, rounded='up')} would do"
        )


def _reserve_pages(geometry: KVGeometry, reserve_tokens: int) -> int:
    """A question and its answer are two segments: each may leave a page partly filled."""
    return geometry.pages_for(reserve_tokens) + 1


def can_take(sequence: Sequence, limits: Limits, found: Entry) -> bool:
    """Whether a segment that is in the pool already can join a live context as it is.

    Nothing may have to leave for it. And since nobody gets pages by letting go what others hold
    too, there must be as many pages left for every context to go on without the others.
    """
    num_pages = found.pages.size
    spare = limits.cache.counts.available - limits.reserve_pages
    return bool(
        sequence.num_pages + num_pages <= limits.marks.high
        and sequence.num_tokens + found.num_tokens + limits.reserve_tokens
        <= limits.max_context_tokens
        and num_pages * len(limits.cache.sequences) <= spare
    )


def segments_to_drop(
    sequence: Sequence,
    rule: RetentionRule,
    limits: Limits,
    num_tokens: int,
    *,
    num_free: int,
    spare_newest: bool = False,
) -> NDArray[np.int64]:
    """Which segments must go for ``num_tokens`` more: (k,) ids.

    ``num_free`` pages are free besides those kept for a question. ``spare_newest``: the newest
    frame stays. Raises ContextError or OutOfPagesError when no choice of segments would do.
    """
    ids = choose_room(
        sequence,
        limits.cache.geometry.pages_for(num_tokens),
        rule=rule,
        marks=limits.marks,
        num_free=num_free,
        spare_newest=spare_newest,
    )
    # Text may fill its pages better than frames do: tokens can run out before pages.
    room = limits.max_context_tokens - limits.reserve_tokens
    most = limits.marks.high * limits.cache.geometry.page_size
    if min(sequence.num_tokens + num_tokens, most) <= room:
        return ids
    while (over := sequence.num_tokens - sequence.num_tokens_in(ids) + num_tokens - room) > 0:
        table = sequence.segment_table()
        able = may_leave(table, spare_newest=spare_newest) & ~np.isin(table.ids, ids)
        more = _choose_for_tokens(sequence, able, rule, limits, over)
        if not more.size:
            raise ContextError(
                f"need {num_tokens} tokens beside the {limits.reserve_tokens} kept for a question, "
                f"{over + room - num_tokens} of {limits.max_context_tokens} cannot leave"
            )
        ids = np.union1d(ids, more)
    return ids


def _choose_for_tokens(
    sequence: Sequence,
    able: NDArray[np.bool_],  # (num_segments,) which may leave
    rule: RetentionRule,
    limits: Limits,
    num_tokens: int,
) -> NDArray[np.int64]:
    """What ``rule`` drops first towards ``num_tokens`` fewer: (k,) ids, none if nothing may leave.

    Pages may be partly filled, so that the tokens dropped may be fewer: ask again.
    """
    loose = offered(sequence, rule).take(able)
    if not len(loose):
        return loose.ids
    num_pages = min(limits.cache.geometry.pages_for(num_tokens), int(loose.num_pages.sum()))
    return choose(sequence, rule, loose, num_pages)


def shrink(fork: Sequence, rule: RetentionRule, limits: Limits, max_tokens: int) -> None:
    """Let segments go until at most ``max_tokens`` are left, or what is left cannot leave: the
    pinned start and the newest frame."""
    while (over := fork.num_tokens - max_tokens) > 0:
        try:
            able = may_leave(fork.segment_table(), spare_newest=True)
            chosen = _choose_for_tokens(fork, able, rule, limits, over)
        except ContextError:  # a rule that lets nothing leave: the answer must be shorter
            return
        if not chosen.size:
            return
        fork.drop(chosen.tolist(), rule=rule.name)


def fit_question(
    fork: Sequence, rule: RetentionRule, limits: Limits, num_prompt: int, num_wanted: int
) -> int:
    """Make a prompt and an answer fit the window of a fork: how many tokens the answer may have, at
    least 1. Pages are another matter.

    The fork may let go frames of its own, but not the newest; its parent keeps them. Raises
    ContextError when the prompt does not fit even then.
    """
    max_tokens = limits.max_context_tokens
    shrink(fork, rule, limits, max_tokens - num_prompt - num_wanted)
    room = max_tokens - fork.num_tokens - num_prompt
    if room < 1:
        raise ContextError(
            f"prompt of {num_prompt} tokens does not fit: the context holds {max_tokens} tokens, "
            f"{fork.num_tokens} of them cannot leave, and an answer needs at least 1"
        )
    return min(num_wanted, room)
