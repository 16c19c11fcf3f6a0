"""Frames that come back from disk stand where they should: the same logits as keys stored unrotated
and rotated at their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgekv.bench.unrotated import rotate
from edgekv.bundle import Bundle
from edgekv.cache import PageCache, Sequence, check
from edgekv.config import KVDtype
from edgekv.errors import TierError
from edgekv.executors import choose_device, create_decoder
from edgekv.generate import Runner
from edgekv.names import OP_VERSION
from edgekv.tier.codec import TierFormat
from edgekv.tier.plan import TierPlan
from edgekv.tier.store import Tier, state_of
from edgekv.types import ModelIdentity

WINDOW, NUM_FRAMES, FRAME_TOKENS = 12, 40, 20  # two pages a frame, the second partly filled
LAYER = 3


class Setting:
    """The demo decoder, streams of random rows, and tiers of what leaves them."""

    def __init__(self, bundle_path: Path, dtype: KVDtype) -> None:
        self.bundle = Bundle.open(bundle_path)
        self.geometry = self.bundle.geometry_for(dtype)
        path = self.bundle.decoder_path_for(dtype)
        decoder = create_decoder(
            choose_device("cpu"), path, self.geometry, num_pages=120, num_threads=1
        )
        self.runner = Runner(decoder, PageCache(self.geometry, 120))
        self.rng = np.random.default_rng(3)
        manifest = self.bundle.manifest
        self.rotations = [manifest.rotations[i] for i in manifest.layer_rotations]

    def rows(self, count: int) -> NDArray[np.float32]:
        shape = (count, self.bundle.manifest.hidden_size)
        return self.rng.normal(0, 0.5, shape).astype(np.float32)

    def plan(self, tier_format: TierFormat, max_bytes: int = 1 << 22) -> TierPlan:
        model = ModelIdentity("demo", "0" * 64, OP_VERSION, self.geometry)
        return TierPlan(model, LAYER, self.rotations[LAYER], 2, max_bytes, tier_format)

    def stream(self, tier: Tier, num_frames: int = NUM_FRAMES) -> Sequence:
        sequence = self.runner.cache.open()
        self.runner.feed(sequence, "system", self.rows(5))
        for index in range(num_frames):
            if index >= WINDOW:
                ids = sequence.segment_table().ids[1:2]
                tier.store(sequence, ids, self.runner.read_pages)
                sequence.drop(ids.tolist())
            rows = self.rows(FRAME_TOKENS)
            self.runner.feed(sequence, "frame", rows, index=index, time_s=index / 2)
        return sequence

    def recall(self, tier: Tier, fork: Sequence, ids: list[int]) -> None:
        places = [int(np.flatnonzero(tier.index.frames["segment"] == i)[0]) for i in ids]
        frames = [frame for place in places if (frame := tier.read(place)) is not None]
        assert len(frames) == len(ids)
        page_size = self.geometry.page_size
        pages = fork.insert(state_of(frames, page_size, fork.next_segment_id))
        self.runner.write_pages(pages, np.concatenate([frame.pages for frame in frames]))

    def rotated_in_place(self, sequence: Sequence) -> Sequence:
        """The same tokens, their keys turned to where they stand, in pages that never moved."""
        state = sequence.export_state()
        pages = self.runner.read_pages(sequence.table.page_ids).astype(np.float64)
        for page, shift in zip(pages, state.shifts, strict=True):
            for layer, rotation in enumerate(self.rotations):
                keys = page[layer, 0].swapaxes(0, 1)  # (S, Hk, D)
                positions = np.repeat(shift.astype(np.int64)[:, None], len(keys), axis=1)
                page[layer, 0] = rotate(keys, positions, rotation).swapaxes(0, 1)
        still = replace(state, shifts=0 * state.shifts, written=state.written + state.shifts)
        twin = self.runner.cache.import_state(still)
        self.runner.write_pages(twin.table.page_ids, pages.astype(self.geometry.dtype))
        return twin


@pytest.fixture(scope="module")
def setting(bundle_path: Path) -> Iterator[Setting]:
    made = Setting(bundle_path, "float32")
    yield made
    assert made.runner.cache.counts.live == 0
    made.runner.shut_down()


MakeTier = Callable[..., Tier]


@pytest.fixture
def make_tier(setting: Setting, tmp_path: Path) -> Iterator[MakeTier]:
    made: list[Tier] = []

    def make(tier_format: TierFormat = "exact", **options: int) -> Tier:
        made.append(
            Tier.create(tmp_path / f"{len(made)}.tier", setting.plan(tier_format, **options))
        )
        return made[-1]

    yield make
    for tier in made:
        tier.close()


def difference(setting: Setting, one: Sequence, other: Sequence) -> float:
    question = setting.rows(7)
    logits = [setting.runner.feed(each, "text", question) for each in (one, other)]
    return float(np.abs(logits[0] - logits[1]).max())


@pytest.mark.parametrize("ids", [[1], [1, 2, 3], [2, 9, 17, 28]])
def test_logits_are_those_of_keys_rotated_where_they_stand(
    setting: Setting, make_tier: MakeTier, ids: list[int]
) -> None:
    tier = make_tier("exact")
    with setting.stream(tier) as live, live.fork() as fork:
        setting.recall(tier, fork, ids)
        check(setting.runner.cache.snapshot())
        assert fork.segment_table().ids.tolist()[1 : 1 + len(ids)] == ids
        with setting.rotated_in_place(fork) as truth:
            assert difference(setting, fork, truth) <= 1e-4


@pytest.mark.parametrize(("tier_format", "bound"), [("int8", 0.1), ("int4-values", 1.0)])
def test_compressed_frames_change_logits_a_little(
    setting: Setting, make_tier: MakeTier, tier_format: TierFormat, bound: float
) -> None:
    tier, exact = make_tier(tier_format), make_tier("exact")
    with setting.stream(exact) as live, live.fork() as truth, live.fork() as fork:
        again = exact.index.frames["segment"].max()
        assert again == NUM_FRAMES - WINDOW
        ids = list(range(3, 9))
        setting.recall(exact, truth, ids)
        tier.store(truth, np.array(ids), setting.runner.read_pages)
        setting.recall(tier, fork, ids)
        assert 0 < difference(setting, fork, truth) <= bound


def test_what_came_back_can_leave_and_come_back_again(
    setting: Setting, make_tier: MakeTier
) -> None:
    tier = make_tier("exact")
    with setting.stream(tier) as live, live.fork() as fork:
        setting.recall(tier, fork, [2, 9])
        fork.drop([2, 9, 31])
        setting.recall(tier, fork, [9])
        fork.drop([9])
        setting.recall(tier, fork, [2, 9])
        with live.fork() as fresh:
            fresh.drop([31])
            setting.recall(tier, fresh, [2, 9])
            assert difference(setting, fork, fresh) == 0


def test_the_parent_and_its_pages_are_as_they_were(setting: Setting, make_tier: MakeTier) -> None:
    tier = make_tier("int8")
    with setting.stream(tier) as live:
        runner, question = setting.runner, setting.rows(4)
        pages = runner.read_pages(live.table.page_ids).tobytes()
        before = live.snapshot()
        with live.fork() as fork:
            expected = runner.feed(fork, "text", question)
        with live.fork() as fork:
            setting.recall(tier, fork, [4, 5, 6])
            runner.feed(fork, "text", question)
        after = live.snapshot()
        assert after.page_table.tobytes() == before.page_table.tobytes()
        assert after.segments.tobytes() == before.segments.tobytes()
        assert runner.read_pages(live.table.page_ids).tobytes() == pages
        with live.fork() as fork:
            assert (runner.feed(fork, "text", question) == expected).all()


def test_a_tier_goes_on_after_it_was_closed(setting: Setting, make_tier: MakeTier) -> None:
    tier = make_tier("exact", max_bytes=1 << 20)
    with setting.stream(tier) as live:
        state = live.export_state()
        known = np.sort(tier.index.frames["segment"])
        summaries = tier.index.summaries.copy()
        path, session = tier.path, tier.session
        tier.close()
        again = Tier.reopen(path, tier.plan, session, state)
        assert np.sort(again.index.frames["segment"]).tolist() == known.tolist()
        assert again.index.summaries.tobytes() == summaries.tobytes()
        with live.fork() as fork:
            setting.recall(again, fork, known[-3:].tolist())
        # The session went on from an older save: frames it has not seen are gone for good.
        again.close()
        older = replace(state, next_segment_id=12)
        again = Tier.reopen(path, tier.plan, session, older)
        assert again.index.frames["segment"].max() <= 11
        again.close()
        again = Tier.reopen(path, tier.plan, session, state)
        assert np.sort(again.index.frames["segment"]).tolist() == known.tolist(), "not erased yet"
        again.close()
        again = Tier.reopen(path, tier.plan, session, older)
        again.erase_unseen()
        again.close()
        again = Tier.reopen(path, tier.plan, session, state)
        assert again.index.frames["segment"].max() <= 11
        again.close()
        other = replace(setting.plan("exact"), max_pages=3)
        for plan, name in ((tier.plan, "f" * 16), (other, session)):
            with pytest.raises(TierError, match="of another"):
                Tier.reopen(path, plan, name, state)


def test_a_frame_that_no_record_fits_is_counted(setting: Setting, make_tier: MakeTier) -> None:
    tier = make_tier()
    with setting.stream(tier, 2) as live:
        setting.runner.feed(live, "frame", setting.rows(40), index=2)
        setting.runner.feed(live, "frame", setting.rows(3), index=3)
        setting.runner.feed(live, "frame", setting.rows(3), index=3, extend=True)
        live.drop([1])
        setting.runner.feed(live, "frame", setting.rows(3), index=3, extend=True)
        setting.runner.feed(live, "text", setting.rows(3))
        tier.store(live, live.segment_table().ids, setting.runner.read_pages)
        assert (tier.num_stored, tier.num_skipped) == (1, 2)


@pytest.mark.parametrize(("layer", "number"), [(LAYER, np.inf), (LAYER, 3e38), (0, np.nan)])
def test_a_frame_that_is_not_finite_is_counted_and_hides_no_other(
    setting: Setting, make_tier: MakeTier, layer: int, number: float
) -> None:
    tier, runner = make_tier("int8"), setting.runner
    with setting.stream(tier, 5) as live, np.errstate(over="raise", invalid="raise"):
        bad = live.table.page_ids[-2:]  # the last frame's
        pages = runner.read_pages(bad)
        pages[:, layer, 0, ..., 0] = number
        runner.write_pages(bad, pages)
        tier.store(live, live.segment_table().ids, runner.read_pages)
        assert (tier.num_stored, tier.num_skipped) == (4, 1)
        frames = tier.index.frames["segment"]
        assert sorted(frames[frames >= 0].tolist()) == [1, 2, 3, 4]
        assert np.isfinite(tier.index.summaries).all()


def test_a_kill_while_the_disk_is_timed_leaves_no_file(
    setting: Setting, make_tier: MakeTier, tmp_path: Path
) -> None:
    tier, seen = make_tier(), []

    def read_pages(pages: NDArray[np.int32]) -> NDArray[np.generic]:
        seen.append([path.name for path in tmp_path.iterdir()])
        return setting.runner.read_pages(pages)

    with setting.stream(tier, 2) as live:
        Tier.create(tmp_path / ".0.tier.probe", tier.plan).close()  # killed before it was unlinked
        assert tier.time_reading(live, read_pages) > 0
    assert seen
    assert all(names == ["0.tier"] for names in seen)
