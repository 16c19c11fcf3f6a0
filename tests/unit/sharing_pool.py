"""Sessions that share a pool, without a model: no graph, no tokens, what they do to pages."""

from __future__ import annotations

from dataclasses import dataclass

from edgekv.cache import PageCache
from edgekv.cache.retention import retention_rule
from edgekv.config import KVGeometry
from edgekv.limits import plan_limits
from edgekv.members import Member
from edgekv.sharing import Sharing

GEOMETRY = KVGeometry(num_layers=1, num_kv_heads=1, head_dim=8, page_size=16, dtype="float32")
START, FRAME, RESERVE = 5, 16, 32  # tokens: 1 page, 1 page, 3 pages


@dataclass
class Record:
    num_frames: int = 0
    num_evicted_frames: int = 0
    num_questions: int = 0


class Pool:
    """Sessions without a model: what ``edgekv.Session`` does to the pool."""

    def __init__(
        self, num_pages: int, *, max_context_tokens: int = 16 * 24 + START + RESERVE
    ) -> None:
        self.cache = PageCache(GEOMETRY, num_pages)
        self.sharing = Sharing(self.cache)
        self._max_context_tokens = max_context_tokens

    def open(
        self,
        priority: int = 0,
        *,
        retain: str = "window",
        frame: int = FRAME,
        reserve: int = RESERVE,
    ) -> Member:
        limits = plan_limits(
            self.cache,
            num_start=START,
            num_frame=frame,
            max_context_tokens=self._max_context_tokens,
            reserve_tokens=reserve,
            num_pages=self.cache.counts.num_pages,
        )
        self.sharing.check_newcomer(limits)
        member = Member(self.cache.open(), retention_rule(retain), limits, priority, Record())
        self.sharing.join(member)
        try:
            self.append(member, "system", START)
        except BaseException:
            member.sequence.close()
            raise
        return member

    def append(self, member: Member, kind: str, num_tokens: int, *, fails: bool = False) -> None:
        with self.sharing.room(member, num_tokens):
            append = member.sequence.append(kind, num_tokens)  # type: ignore[arg-type]
            with self.cache.begin_step([append]) as step:
                if fails:
                    raise ZeroDivisionError
                step.commit()

    def push(self, member: Member, count: int = 1) -> None:
        for _ in range(count):
            self.append(member, "frame", member.limits.frame_pages * 16)

    def pages(self, *members: Member) -> list[int]:
        return [member.sequence.num_pages for member in members]
