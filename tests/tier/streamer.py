"""What the kill test kills: a life of one session that streams frames into a tier and saves itself,
until it is killed.

Without a model: a frame's pages are numbers drawn from the frame's own number, which no two frames
of any two lives share.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekv.atomic_file import replacing
from edgekv.cache import PageCache, Sequence, SequenceState, check
from edgekv.config import KVGeometry, Rotation
from edgekv.session_file import Block, SessionFile, write_session_file
from edgekv.tier.plan import TierPlan
from edgekv.tier.store import Tier
from edgekv.types import ModelIdentity
from tests.killing import fork_writers

GEOMETRY = KVGeometry(2, 2, 32, 16, "float16")
FRAME_TOKENS, WINDOW, NUM_SLOTS = 40, 6, 12
FRAME_PAGES = GEOMETRY.pages_for(FRAME_TOKENS)
MODEL = ModelIdentity("none", "0" * 64, 2, GEOMETRY)
PLAN = TierPlan(MODEL, 1, Rotation((1.0, 0.1)), FRAME_PAGES, NUM_SLOTS * 26_000, "exact")


def contents(number: int) -> NDArray[np.float16]:
    """What frame ``number`` left in its pages: (FRAME_PAGES, L, 2, Hk, S, D)."""
    shape = (FRAME_PAGES, 2, 2, 2, 16, 32)
    pages = np.random.default_rng(number).normal(size=shape).astype(np.float16)
    pages[-1, ..., FRAME_TOKENS - 2 * 16 :, :] = 0
    return pages


def num_saved(folder: Path) -> int:
    """Frames that the saved session has seen, 0 = there is none yet."""
    if not (folder / "session").exists():
        return 0
    with SessionFile(folder / "session") as file:
        return len(file.array("numbers"))


class Life:
    """The session as it was saved last, or a new one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = PageCache(GEOMETRY, 80)
        self.held: dict[int, int] = {}  # page: frame number
        self.numbers: list[
            int
        ] = []  # of every frame that the session has seen; segment k is frame k
        self.life = 1
        if (folder / "session").exists():
            with SessionFile(folder / "session") as file:
                names = [name for name in file.names if name != "numbers"]
                state = SequenceState.from_arrays({name: file.array(name) for name in names}, 1)
                self.numbers = file.array("numbers").tolist()
                self.life = int(str(file.meta["life"])) + 1
                tier_session = str(file.meta["tier"])
            self.sequence: Sequence = self.cache.import_state(state)
            live = state.segments["id"]
            pages = self.sequence.table.page_ids.reshape(live.size, FRAME_PAGES)
            for segment, own in zip(live, pages, strict=True):
                self.held.update(dict.fromkeys(own.tolist(), self.numbers[segment]))
            self.tier = Tier.reopen(folder / "tier", PLAN, tier_session, state)
            self.tier.erase_unseen()
        else:
            self.sequence = self.cache.open()
            self.tier = Tier.create(folder / "tier", PLAN)

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.float16]:
        (number,) = {self.held[page] for page in pages.tolist()}
        return contents(number)

    def push(self) -> None:
        if self.sequence.num_segments == WINDOW:
            ids = self.sequence.segment_table().ids[:2]
            self.tier.store(self.sequence, ids, self.read_pages)
            self.sequence.drop(ids.tolist())
        number = self.life * 10**6 + len(self.numbers)
        append = self.sequence.append("frame", FRAME_TOKENS, index=number, time_s=number)
        with self.cache.begin_step([append]) as step:
            step.commit()
        self.held.update(dict.fromkeys(append.pages.tolist(), number))
        self.numbers.append(number)

    def save(self) -> None:
        arrays = self.sequence.export_state().to_arrays()
        blocks = {"numbers": Block.whole(np.array(self.numbers, np.int64))}
        blocks |= {name: Block.whole(array) for name, array in arrays.items()}
        with replacing(self.folder / "session") as file:
            meta = {"life": self.life, "tier": self.tier.session}
            write_session_file(file, meta, blocks)

    def check(self) -> int:
        """Raise unless every frame that could be recalled is one that this session has seen, whole,
        and has left it: how many there are."""
        check(self.cache.snapshot())
        live = set(self.sequence.segment_table().ids.tolist())
        frames = self.tier.index.frames
        slots = np.flatnonzero(frames["segment"] >= 0)
        for slot in slots:
            frame = self.tier.read(int(slot))
            assert frame is not None, "a record that was intact when the tier was opened"
            segment, number = int(frame.row["segment"]), int(frame.row["index"])
            assert number == self.numbers[segment], "a frame of another life"
            assert frame.pages.tobytes() == contents(number).tobytes()
        return int(np.count_nonzero([int(frames["segment"][slot]) not in live for slot in slots]))


def live(_: str) -> NoReturn:
    """One life of the session, from its last save on."""
    session = Life(Path(sys.argv[1]))
    while True:
        session.save()
        for _push in range(5):
            session.push()


if __name__ == "__main__":
    fork_writers(live)
