"""Several sessions on one pool: who gives up frames for whom.

Owns: the room made among them.
Guarantees: frames leave first from the lowest priority, among equals from whoever holds most above
    its fair share, and by that session's own rule; a plan is whole before anything leaves and asks
    each session twice at most; what left is back when the append that it left for fails.
Does not know: what frames show, how tokens are computed. Its owner serialises, as for the cache.

One room for a question is kept free for all sessions together, the largest that any asks for.
While answers hold pages of it, so much less is kept.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import Sequence
from edgekv.cache.reclaim import RECLAIM, Giver, collect, collect_together
from edgekv.errors import BudgetError, OutOfPagesError
from edgekv.limits import segments_to_drop
from edgekv.members import Member, Members

_NOTHING = np.empty(0, dtype=np.int64)


class Leaving(NamedTuple):
    """What one session is to drop."""

    member: Member
    ids: NDArray[np.int64]  # (k > 0,) segments
    rule: str


@dataclass(frozen=True, slots=True)
class _Claim:
    """Pages that are to come free, and for whom."""

    member: Member
    num_pages: int
    joining: bool  # they join the member's context; otherwise a question takes them
    reserve: int  # pages to stay free beside them
    spare_newest: bool = False  # the member's newest frame stays, as everybody else's does


class Sharing(Members):
    """The sessions of one pool, and the room among them."""

    @contextmanager
    def room(
        self,
        member: Member,
        num_tokens: int,
        *,
        leaving: NDArray[np.int64] | None = None,
        spare_newest: bool = False,
    ) -> Generator[None, None, None]:
        """Makes room for ``num_tokens`` that its block appends to ``member`` in one piece.

        ``leaving`` (k,) are segments of ``member`` that leave whether or not room is short;
        ``spare_newest``: its newest frame stays, as for what is no frame.
        Raises ContextError or OutOfPagesError when there is none to be made; nothing has left then.
        When the block fails, what came is gone, and what had left is back, as long as the pool has
        room for both; the room kept for a question is such room.
        """
        plan = self.plan(member, num_tokens, leaving, spare_newest=spare_newest)
        num_before = member.sequence.num_tokens
        try:
            self._carry_out(plan, self.cache.geometry.pages_for(num_tokens))
            num_before = member.sequence.num_tokens
            yield
        except BaseException:
            member.undo_appends(num_before)
            self._undo(plan)
            raise
        self._settle(plan)

    @contextmanager
    def entering(self, member: Member, num_pages: int) -> Generator[None, None, None]:
        """Counts a newcomer in and makes room for the ``num_pages`` it comes with, in its block.

        Raises BudgetError when there is none to be made. When the block fails, the newcomer's
        sequence is closed and what had left is back, as after ``room``.
        """
        self.join(member)
        try:
            try:
                plan = self._plan_for(member, num_pages)
            except OutOfPagesError as error:
                raise BudgetError(
                    f"the context has {num_pages} pages, {error.free} can be had from sessions of "
                    f"no higher priority than {member.priority}"
                ) from None
            try:
                self._carry_out(plan, num_pages)
                yield
            except BaseException:
                self._undo(plan)
                raise
            self._settle(plan)
        except BaseException:
            member.sequence.close()
            raise

    def _carry_out(self, plan: list[Leaving], num_pages: int) -> None:
        """Drop what is planned for ``num_pages`` to come; set aside, if there is room for both."""
        hold = num_pages <= self.cache.allocator.num_available
        for leaving in plan:
            leaving.member.drop(leaving.ids, rule=leaving.rule, hold=hold)

    def _undo(self, plan: list[Leaving]) -> None:
        """What was set aside has never left."""
        for leaving in plan:
            leaving.member.put_back()

    def _settle(self, plan: list[Leaving]) -> None:
        """What was set aside has left."""
        for leaving in plan:
            leaving.member.sequence.let_go()

    def plan(
        self,
        member: Member,
        num_tokens: int,
        leaving: NDArray[np.int64] | None = None,
        *,
        spare_newest: bool = False,
    ) -> list[Leaving]:
        """Who drops what so that ``num_tokens`` more fit ``member``. Changes nothing."""
        allocator = self.cache.allocator
        limits = member.limits_within(self.most_pages(member.limits.reserve_pages, member))
        own = segments_to_drop(
            member.sequence,
            member.rule,
            limits,
            num_tokens,
            num_free=allocator.num_pages,
            spare_newest=spare_newest,
        )
        if leaving is not None:
            own = np.union1d(own, leaving)
        num_pages = self.cache.geometry.pages_for(num_tokens)
        if num_pages > allocator.num_available - self.reserve_pages:
            return self._plan_for(member, num_pages, own, spare_newest=spare_newest)
        return [Leaving(member, own, member.rule.name)] if own.size else []

    def _plan_for(
        self,
        member: Member,
        num_pages: int,
        own: NDArray[np.int64] = _NOTHING,
        *,
        spare_newest: bool = False,
    ) -> list[Leaving]:
        """As ``plan``, in pages, when not so many are free."""
        reserve = max(self.reserve_pages - self._held_by_answers(), 0)
        claim = _Claim(member, num_pages, True, reserve, spare_newest)
        try:
            return self._reclaim(claim, own)
        except OutOfPagesError:
            if spare_newest:  # a stream must go on, text need not
                raise
            # Pages that answers and forks hold too do not come free with the frames. What is taken
            # from the reserve now, the next append of anybody gives back to it.
            return self._reclaim(replace(claim, reserve=0), own)

    def room_for_question(self, member: Member, num_prompt: int, num_wanted: int) -> int:
        """Makes room for a prompt and, as far as it was promised, an answer: how many tokens the
        answer may have, at least 1. The frames of ``member`` stay.

        Raises OutOfPagesError when there is no room for the prompt; nothing has left then.
        """
        geometry = self.cache.geometry
        least = geometry.pages_for(num_prompt)
        promised = min(least + geometry.pages_for(num_wanted), member.limits.reserve_pages)
        plan: list[Leaving] = []
        for num_pages in (max(promised, least), least):
            if num_pages <= self.cache.counts.available:
                break
            try:
                claim = _Claim(member, num_pages, joining=False, reserve=0)
                plan = self._reclaim(claim, _NOTHING)
                break
            except OutOfPagesError:
                if num_pages == least:
                    raise
        for leaving in plan:
            leaving.member.drop(leaving.ids, rule=leaving.rule)
        left = self.cache.counts.available - least
        return max(min(num_wanted, left * geometry.page_size), 1)

    def hold_room(self, fork: Sequence, num_prompt: int, num_wanted: int) -> int:
        """Reserves, on the fork that a question is asked on, what ``room_for_question`` has made
        room for: how many tokens the answer may have, at least 1, all of which have their pages.

        Raises OutOfPagesError when there is no room for the prompt; nothing has changed then.
        """
        fork.reserve(num_prompt)
        # The last token of an answer is never fed.
        fed = min(num_wanted - 1, self.cache.counts.available * self.cache.geometry.page_size)
        if fed:
            fork.reserve(fed)
        return fed + 1

    def _reclaim(self, claim: _Claim, own: NDArray[np.int64]) -> list[Leaving]:
        """Who drops what for a claim; ``own`` segments (k,) of its member leave anyway."""
        givers = self._givers(claim, own)
        freeable, asking = self._collect(claim, givers), givers.get(claim.member)
        entitled = asking is not None and asking.has_given and asking.excess < 0
        # What several hold comes free only when all of them let go, the one who asks last.
        for with_asking in (False, True):
            if claim.num_pages <= freeable and not entitled:
                break
            again, entitled = self._givers(claim, own), False
            num_joint = self._collect_together(claim, again, with_asking=with_asking)
            if num_joint:
                givers, freeable = again, self._collect(claim, again, num_joint)
        if claim.num_pages > freeable:
            raise OutOfPagesError(claim.num_pages, max(freeable, 0))
        return [
            Leaving(member, giver.ids, RECLAIM if giver.has_given else member.rule.name)
            for member, giver in givers.items()
            if giver.ids.size
        ]

    def _givers(self, claim: _Claim, own: NDArray[np.int64]) -> dict[Member, Giver]:
        asked, shares = claim.member, self.shares()
        givers: dict[Member, Giver] = {}
        for member, share in shares.items():
            mine = member is asked
            if member.sequence.pending is None and (claim.joining or not mine):
                givers[member] = Giver(
                    member.sequence,
                    member.rule,
                    priority=member.priority,
                    share=share - claim.num_pages * mine,
                    batch=_batch(member),
                    spare_newest=claim.spare_newest or not mine,
                    leaving=own.tolist() if mine else (),
                )
        return givers

    def _collect(self, claim: _Claim, givers: dict[Member, Giver], num_joint: int = 0) -> int:
        """Plan for the claim: how many pages it can have. ``num_joint`` are planned already."""
        # Negative: the reserve is to be filled too.
        free = self.cache.counts.available - claim.reserve + num_joint
        return free + collect(
            claim.num_pages - free,
            tuple(givers.values()),
            priority=claim.member.priority,
            asking=givers.get(claim.member),
        )

    def _collect_together(
        self, claim: _Claim, givers: dict[Member, Giver], *, with_asking: bool
    ) -> int:
        """Plan that those who may be asked let go what they hold together: pages that come free."""
        asked, asking = claim.member, givers.get(claim.member)
        entitled = asking is not None and asking.excess <= 0
        return collect_together(
            claim.num_pages - (self.cache.counts.available - claim.reserve),
            [
                giver
                for member, giver in givers.items()
                if (with_asking and member is asked)
                or (entitled and member is not asked)
                or giver.priority < asked.priority
                or (giver.priority == asked.priority and giver.excess > 0 and member is not asked)
            ],
        )

    def _held_by_answers(self) -> int:
        """Pages that are in no session's context."""
        contexts = [member.sequence for member in self.members]
        pages = [sequence.table.page_ids for sequence in contexts]
        pages += [sequence.reserved_pages for sequence in contexts]
        return self.cache.counts.live - np.unique(np.concatenate(pages)).size


def _batch(member: Member) -> int:
    """Pages that leave a context of its size at once."""
    return member.limits.within(member.sequence.num_pages + member.limits.reserve_pages).batch_pages
