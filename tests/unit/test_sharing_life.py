"""Several sessions on one pool, whatever they do: everything checked after each operation."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from edgekv.cache import check
from edgekv.errors import EdgeKVError
from edgekv.members import Member
from tests.unit.sharing_pool import FRAME, Pool, Record

OPERATIONS = ("open", "push", "push", "push", "push_fails", "say", "close", "ask", "done", "fork")
Steps = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 255), st.integers(0, 255)), max_size=60
)


class Life:
    """Plays operations, everything checked after each."""

    def __init__(self, num_pages: int) -> None:
        self.pool = Pool(num_pages)
        self.members: list[Member] = []
        self.answers: list = []
        self.num_forks = 0

    def play(self, name: str, a: int, b: int) -> None:
        if name != "open" and not self.members:
            return
        member = self.members[a % len(self.members)] if self.members else None
        before = {m: self._frames(m) for m in self.members}
        has_room = self.pool.cache.counts.free >= 1  # for what left and what it left for
        refused = failed = False
        try:
            getattr(self, name)(member, a, b)
        except EdgeKVError:
            refused = True
        except ZeroDivisionError:
            failed = has_room
        if refused or failed:
            assert {m: self._frames(m) for m in self.members} == before
        assert not (refused and name == "push") or self.answers, "a frame found no room"
        self.verify(member, before)

    def verify(self, asked: Member | None, before: dict[Member, list[int]]) -> None:
        pool = self.pool
        check(pool.cache.snapshot())
        assert pool.sharing.members == tuple(self.members)
        lost = []
        for member in self.members:
            frames, earlier = self._frames(member), before.get(member, [])
            assert earlier[-1:] == [] or member is asked or earlier[-1] in frames, (
                "newest frame lost"
            )
            assert (member.sequence.segment_table().kinds == 0).sum() == 1, "pinned start lost"
            if member is not asked and len(frames) < len(earlier):
                lost.append(member.priority)
        if lost and not self.answers and not self.num_forks:
            for member in self.members:  # whoever is lower had no more to give
                if member.priority < max(lost) and member is not asked:
                    assert member.sequence.num_frames <= 1, "a lower priority could have given"
        if not self.answers and not self.num_forks:
            assert pool.cache.counts.free >= pool.sharing.reserve_pages

    def _frames(self, member: Member) -> list[int]:
        table = member.sequence.segment_table()
        return table.ids[table.kinds == 1].tolist()

    def open(self, _: Member | None, a: int, b: int) -> None:
        rule = ("window", "uniform")[a % 2]
        frame, reserve = (16, 32)[a // 2 % 2], (16, 48)[b // 4 % 2]
        self.members.append(self.pool.open(b % 3, retain=rule, frame=frame, reserve=reserve))

    def push(self, member: Member, *_: int) -> None:
        self.pool.push(member)

    def push_fails(self, member: Member, *_: int) -> None:
        self.pool.append(member, "frame", FRAME, fails=True)

    def say(self, member: Member, _: int, b: int) -> None:
        self.pool.append(member, "text", 1 + b % 60)

    def close(self, member: Member, *_: int) -> None:
        member.sequence.close()
        self.members.remove(member)
        if not self.members:
            self.num_forks = 0

    def ask(self, member: Member, _: int, b: int) -> None:
        fork = member.sequence.fork()
        try:
            num_tokens = self.pool.sharing.room_for_question(member, 1 + b % 40, 20)
            for count in (1 + b % 40, num_tokens):
                with self.pool.cache.begin_step([fork.append("text", count)]) as step:
                    step.commit()
        except BaseException:
            fork.close()
            raise
        self.answers.append(fork)

    def done(self, _: Member, __: int, b: int) -> None:
        if self.answers:
            self.answers.pop(b % len(self.answers)).close()

    def fork(self, member: Member, *_: int) -> None:
        twin = Member(member.sequence.fork(), member.rule, member.limits, member.priority, Record())
        self.pool.sharing.join(twin)
        self.members.append(twin)
        self.num_forks += 1


@given(st.integers(6, 40), Steps)
@example(6, [("open", 0, 0), ("say", 0, 32), ("open", 0, 0)])  # a text larger than a frame
def test_any_life_of_a_pool(num_pages: int, steps: list[tuple[str, int, int]]) -> None:
    life = Life(num_pages)
    for step in steps:
        life.play(*step)
    for sequence in life.pool.cache.sequences:
        sequence.close()
    assert life.pool.cache.counts.free == num_pages
