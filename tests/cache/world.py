"""The operations of a ``WorldState``, driven by plain numbers.

Every operation takes integers, so that Hypothesis and a seeded random driver can both play it.
"""

from __future__ import annotations

import copy

import numpy as np

from edgekv.cache import Append, Sequence
from edgekv.cache.retention import Watermarks
from edgekv.errors import CacheError, ContextError, OutOfPagesError
from tests.cache.compare import assert_same, assert_same_held
from tests.cache.helpers import make_room
from tests.cache.naive import NaiveSequence
from tests.cache.world_state import InFlight, Known, Pending, WorldState, state_of

KINDS = ("system", "frame", "text", "answer")
MAX_SEQUENCES = 4


class World(WorldState):
    """Operations say whether they did anything, and raise on any fault.

    Refused operations count as done: they must leave everything as it was.
    """

    def open(self, *_: int) -> bool:
        if len(self.pairs) == MAX_SEQUENCES:
            return False
        self.pairs.append((self.cache.open(), NaiveSequence(self.num_axes)))
        return True

    def fork(self, which: int, *_: int) -> bool:
        if not self.pairs or len(self.pairs) == MAX_SEQUENCES:
            return False
        sequence, naive = self._pick(which)
        self.pairs.append((sequence.fork(), naive.fork()))
        self.stored[self.pairs[-1][0].id] = dict(self.stored.get(sequence.id, {}))
        return True

    def transplant(self, which: int, *_: int) -> bool:
        """What a save and a restore do: the same tokens in other pages, page by page."""
        if not self.pairs or len(self.pairs) == MAX_SEQUENCES:
            return False
        sequence, naive = self._pick(which)
        state, before = sequence.export_state(), self.cache.snapshot()
        try:
            twin = self.cache.import_state(state)
        except OutOfPagesError:
            assert_same(before, self.cache.snapshot())
            assert self.cache.counts.available < sequence.num_pages
            return True
        self._forget(sequence.num_pages - before.allocator.counts.free)
        for pool in (self.slots, *self.written):
            paged = pool.reshape(-1, self.page_size)
            paged[twin.table.page_ids] = paged[sequence.table.page_ids]
        self.pairs.append((twin, naive.fork()))
        self.pairs[-1][1].path = None
        return True

    def share(self, which: int, content: int, kind: int, *_: int) -> bool:
        """A segment of one of a few contents: found, or appended for others to find."""
        idle = [pair for pair in self.pairs if pair[0].pending is None]
        # A context that is private by now stays so: most of the time, one that can be found.
        ready = [pair for pair in idle if pair[1].is_findable] if which % 8 else idle
        if not ready:
            return False
        sequence, naive = ready[which % len(ready)]
        which = self.pairs.index((sequence, naive))
        name, data = KINDS[kind % 2], bytes((content % 3,))
        path = naive.path if naive.is_findable else None
        known = None if path is None else self.known.get((*path, (name, data)))
        found = sequence.find(name, data)
        if found is None:
            assert known is None or self.collides, "what was kept is found"
            # The same content has as many tokens, at the same positions.
            size, style = data[0] * self.page_size, data[0] << 1
            return self.append(which, KINDS.index(name), size, style, content=data)
        assert known is not None, "what is found was kept, behind the same and not given up"
        assert found.pages.tolist() == known.pages
        assert path is not None
        sequence.take(found)
        naive.join(known.segment)
        naive.path = (*path, (name, data))
        self.num_found += 1
        return True

    def append(
        self, which: int, kind: int, size: int, style: int, *, content: bytes | None = None
    ) -> bool:
        """``size`` tokens of a new segment, or continuing the last; positions by ``style``."""
        if not self.pairs:
            return False
        sequence, naive = self._pick(which)
        if sequence.pending is not None and style % 16:
            return False  # refused; once in a while is enough
        num_tokens = 1 + size % (3 * self.page_size)
        extend = bool(style & 1) and bool(naive.segments)
        name = naive.segments[-1].kind if extend else KINDS[kind % 4]
        positions, advance = self._positions(num_tokens, style >> 1)
        run = self._run(num_tokens, style >> 3)
        before, reserved = self.cache.snapshot(), sequence.reserved_pages
        needed = sequence.pages_needed(name, num_tokens, extend=extend)
        drawn = self._drawable(sequence)[:needed]
        try:
            append = sequence.append(
                name,
                num_tokens,
                extend=extend,
                positions=positions,
                advance=advance,
                bidirectional=run,
            )
        except (OutOfPagesError, ContextError, CacheError) as error:
            assert_same(before, self.cache.snapshot())
            self._must_fail(error, sequence, name, num_tokens, extend)
            return True
        self._forget(needed - len(drawn) - before.allocator.counts.free)
        taken = append.taken.tolist()
        assert taken[: len(drawn)] == drawn, "the reserve comes first"
        assert not set(taken[len(drawn) :]) & set(reserved.tolist())
        assert sequence.num_tokens == naive.num_tokens, "an append is invisible until its commit"
        offsets = (
            [(i,) * self.num_axes for i in range(num_tokens)]
            if positions is None
            else [tuple(column) for column in positions.T.tolist()]
        )
        moved = append.advance.tolist()
        if advance is None:
            assert moved == [max(max(o) for o in offsets) + 1] * self.num_axes
        limits = [naive.num_tokens + i + 1 for i in range(num_tokens)]
        for start, stop in run:
            limits[start:stop] = [naive.num_tokens + stop] * (stop - start)
        tokens = list(range(self.next_token, self.next_token + num_tokens))
        self.next_token += num_tokens
        uniform = positions is None and moved == [num_tokens] * self.num_axes
        self.pending[sequence.id] = Pending(
            append, tokens, offsets, tuple(moved), uniform, limits, content, len(drawn)
        )
        return True

    def reserve(self, which: int, size: int, *_: int) -> bool:
        """Pages are held for tokens to come."""
        if not self.pairs:
            return False
        sequence, naive = self._pick(which)
        num_tokens = 1 + size % (max(self.cache.counts.num_pages // 6, 1) * self.page_size)
        if sequence.pending is not None:
            self._refuses(lambda: sequence.reserve(num_tokens))
            return False
        before, needed = self.cache.snapshot(), -(-num_tokens // self.page_size)
        try:
            sequence.reserve(num_tokens)
        except OutOfPagesError:
            assert_same(before, self.cache.snapshot())
            assert needed > self.cache.counts.available
            return False
        except ContextError:
            assert_same(before, self.cache.snapshot())
            assert sequence.num_pages + naive.num_reserved + needed > self.max_pages
            return False
        self._forget(needed - before.allocator.counts.free)
        naive.num_reserved += needed
        return True

    def release_reserve(self, which: int, *_: int) -> bool:
        """What is left goes back."""
        holding = [pair for pair in self.pairs if pair[1].num_reserved]
        if not holding:
            return False
        sequence, naive = holding[which % len(holding)]
        if sequence.pending is not None:
            self._refuses(sequence.release_reserve)
            return False
        sequence.release_reserve()
        naive.num_reserved = 0
        return True

    def begin(self, mask: int, *_: int) -> bool:
        """Put some of the pending appends into one step."""
        ready = [p for p in self.pending.values() if not p.append.in_step]
        chosen = [p for i, p in enumerate(ready) if mask >> (i % 8) & 1]
        if not chosen:
            return False
        step = self.cache.begin_step([p.append for p in chosen])
        used = np.concatenate([step.tables.page_table[:, :, 0].ravel(), step.copies.ravel()])
        flight = InFlight(step, [], [], used)
        for p in chosen:
            naive = self._naive(p.append.sequence)
            base = naive.next_position
            here = [
                (token, *(b + o for b, o in zip(base, offset, strict=True)))
                for token, offset in zip(p.tokens, p.offsets, strict=True)
            ]
            flight.tokens += p.tokens
            flight.rows.append(naive.read() + here)
        self._check_tables(step, chosen)
        self.in_flight.append(flight)
        return True

    def write(self, which: int, *_: int) -> bool:
        """A step runs on the device and commits."""
        if not self.in_flight:
            return False
        flight = self.in_flight.pop(which % len(self.in_flight))
        self._run_on_device(flight)
        written: list[Pending] = []
        for append in flight.step.appends:
            if append.state == "pending":
                p = self.pending.pop(append.sequence.id)
                written.append(p)
                self._naive(append.sequence).append(
                    append.kind, p.tokens, p.offsets, p.advance, p.uniform, append.extend
                )
                self._naive(append.sequence).num_reserved -= p.num_drawn
        flight.step.commit()
        for p in written:
            if p.content is not None:
                self._keep(p.append, p.content)
        return True

    def _keep(self, append: Append, content: bytes) -> None:
        sequence, naive = append.sequence, self._naive(append.sequence)
        path = None
        if naive.path is not None and len(naive.path) + 1 == len(naive.segments):
            path = (*naive.path, (append.kind, content))
        free = path is not None and path not in self.known
        kept = sequence.keep(content)
        assert not kept or free, "only what nobody else has kept, in a context like no other"
        assert kept or not free or self.collides
        if kept and path is not None:
            naive.path = path
            last = naive.segments[-1]
            self.known[path] = Known(sequence.segments[-1].pages.tolist(), last.copy())

    def abort_step(self, which: int, ran: int, *_: int) -> bool:
        """A step is given up, before or after the device ran it."""
        if not self.in_flight:
            return False
        flight = self.in_flight.pop(which % len(self.in_flight))
        if ran & 1:
            self._run_on_device(flight)
        for append in flight.step.appends:
            if append.state == "pending":
                del self.pending[append.sequence.id]
        flight.step.abort()
        return True

    def abort_append(self, which: int, *_: int) -> bool:
        """An append is given up, in whatever state its step is."""
        if not self.pending:
            return False
        key = sorted(self.pending)[which % len(self.pending)]
        self.pending.pop(key).append.abort()
        return True

    def drop(self, which: int, mask: int, *_: int) -> bool:
        """Any segments leave."""
        if not self.pairs:
            return False
        sequence, naive = self._pick(which)
        ids = [s.id for i, s in enumerate(naive.segments) if mask >> (i % 16) & 1]
        if any(s.kind == "system" for s in naive.segments if s.id in ids):
            self._refuses(lambda: sequence.drop(ids))
            ids = [s.id for s in naive.segments if s.id in ids and s.kind != "system"]
        if sequence.pending is not None:
            self._refuses(lambda: sequence.drop(ids))
            return True
        self._store(sequence, naive, set(ids))
        sequence.drop(ids)
        naive.drop(set(ids))
        return bool(ids)

    def set_aside(self, which: int, mask: int, fate: int, size: int) -> bool:
        """Segments leave until it is decided what becomes of them; something may come meanwhile."""
        if not self.pairs:
            return False
        place = which % len(self.pairs)
        sequence, naive = self._pick(which)
        leaving = [s for i, s in enumerate(naive.segments) if mask >> (i % 16) & 1]
        ids = np.array([s.id for s in leaving if s.kind != "system"], np.int64)
        if sequence.pending is not None or not ids.size:
            self._refuses(lambda: sequence.set_aside(np.append(ids, -1)))
            return False
        as_it_was, before = copy.deepcopy(naive), self.cache.snapshot()
        kept = self._as_stored(sequence, naive, set(ids.tolist()))
        sequence.set_aside(ids)
        naive.drop(set(ids.tolist()))
        self.check()
        for refused in (sequence.drop, sequence.set_aside):
            self._refuses(lambda refused=refused: refused(sequence.segment_table().ids[-1:]))
        if naive.num_tokens:
            self._refuses(lambda: sequence.truncate(naive.num_tokens - 1))
        if fate % 3 == 0:
            sequence.let_go()
            self.stored.setdefault(sequence.id, {}).update({s.segment.id: s for s in kept})
            return True
        num_tokens = 1 + size % 9
        takes_free_pages = sequence.pages_needed("text", num_tokens) <= self.cache.counts.free
        if fate % 3 == 1 and takes_free_pages and not sequence.reserved_pages.size:
            self._append_in_vain(sequence, num_tokens)
        sequence.put_back()
        as_it_was.next_id = sequence.next_segment_id
        self.pairs[place] = (sequence, as_it_was)
        assert_same_held(before, self.cache.snapshot())
        return True

    def _append_in_vain(self, sequence: Sequence, num_tokens: int) -> None:
        """Tokens that come while something is set aside, and go when it is put back."""
        try:
            append = sequence.append("text", num_tokens)
        except (ContextError, OutOfPagesError):
            return
        if num_tokens % 2:
            self.cache.begin_step([append]).commit()

    def insert(self, which: int, mask: int, reach: int, *_: int) -> bool:
        """Some of what was dropped comes back."""
        if not self.pairs:
            return False
        sequence, naive = self._pick(which)
        stored = self.stored.get(sequence.id, {})
        if naive.segments and mask % 5 == 0:
            known = [*stored.values(), *self._as_stored(sequence, naive, {naive.segments[-1].id})]
            self._refuses(lambda: sequence.insert(state_of(known)))
        gone = sorted(stored.keys() - {s.id for s in naive.segments})[-(1 + reach % 8) :]
        chosen = [stored[i] for k, i in enumerate(gone) if mask >> (k % 16) & 1]
        if not chosen:
            return False
        if sequence.pending is not None:
            self._refuses(lambda: sequence.insert(state_of(chosen)))
            return False
        before, num_pages = self.cache.snapshot(), sum(s.valid.size for s in chosen)
        try:
            pages = sequence.insert(state_of(chosen))
        except OutOfPagesError:
            assert_same(before, self.cache.snapshot())
            assert num_pages > self.cache.counts.available
            return False
        except ContextError:
            assert_same(before, self.cache.snapshot())
            assert sequence.num_pages + num_pages > self.max_pages
            return False
        self._forget(num_pages - before.allocator.counts.free)
        slots = self.slots.reshape(-1, self.page_size)
        slots[pages] = np.concatenate([s.slots for s in chosen])
        places = self.written.reshape(self.num_axes, -1, self.page_size)
        places[:, pages] = np.concatenate([s.places for s in chosen], axis=1)
        naive.insert([copy.deepcopy(s.segment) for s in chosen])
        return True

    def evict(self, which: int, wanted: int, high: int, low: int) -> bool:
        """The rule makes room: always the oldest that are not pinned, and enough of them."""
        if not self.pairs:
            return False
        sequence, naive = self._pick(which)
        if sequence.pending is not None:
            return False
        wanted %= 8
        high = 1 + high % self.max_pages
        marks = Watermarks(high, low % (high + 1))
        loose = [s.id for s in naive.segments if s.kind != "system"]
        kept = self._as_stored(sequence, naive, set(loose))
        before = self.cache.snapshot()
        try:
            num_free = self.cache.counts.available
            dropped = make_room(
                sequence, wanted, rule=self.rule, marks=marks, num_free=num_free
            ).tolist()
        except (ContextError, OutOfPagesError):
            assert_same(before, self.cache.snapshot())
            return True
        assert dropped == loose[: len(dropped)], "the oldest leave first"
        gone = {s.segment.id: s for s in kept if s.segment.id in dropped}
        self.stored.setdefault(sequence.id, {}).update(gone)
        naive.drop(set(dropped))
        assert sequence.num_pages + wanted <= high
        assert self.cache.counts.available + self.cache.counts.in_flight >= wanted
        return bool(dropped)

    def truncate(self, which: int, size: int, *_: int) -> bool:
        if not self.pairs:
            return False
        sequence, naive = self._pick(which)
        num_tokens = naive.num_tokens - size % (naive.num_tokens + 1)
        cut = next(
            (
                s
                for s, start in zip(naive.segments, naive.starts(), strict=True)
                if start < num_tokens < start + len(s.tokens)
            ),
            None,
        )
        if sequence.pending is not None or (cut and (cut.kind == "frame" or not cut.uniform)):
            self._refuses(lambda: sequence.truncate(num_tokens))
            return True
        sequence.truncate(num_tokens)
        naive.truncate(num_tokens)
        return True

    def close(self, which: int, *_: int) -> bool:
        """A sequence goes, whatever it is doing."""
        if not self.pairs:
            return False
        sequence, _ = self.pairs.pop(which % len(self.pairs))
        self.pending.pop(sequence.id, None)
        sequence.close()
        self._refuses(sequence.fork)
        return True

    def finish(self) -> None:
        """Ends everything: all pages must come back."""
        while self.in_flight:
            self.write(0)
        while self.pairs:
            self.close(0)
        self.check()
        assert self.cache.counts.available == self.cache.counts.num_pages
