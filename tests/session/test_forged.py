"""A forged session file is refused with its format's errors, or goes on as any session does."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv.errors import BudgetError, SessionFileError
from tests.forging import forgeries, refusal
from tests.session.cross_bundle import save_cross_bundle
from tests.session.helpers import Picture

PREAMBLE = struct.Struct("<8sII32s")


class Saved:
    """A session file, taken apart and put together again with checksums that are right."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        length = PREAMBLE.unpack_from(data)[2]
        self.path = path
        self.header: dict[str, Any] = json.loads(data[PREAMBLE.size : PREAMBLE.size + length])
        self.blocks = data[PREAMBLE.size + length :]

    def write(self, header: Any, blocks: bytes | None = None) -> None:
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + PREAMBLE.size) % 64)
        head = PREAMBLE.pack(b"edgekvse", 2, len(text), hashlib.sha256(text).digest())
        self.path.write_bytes(head + text + (self.blocks if blocks is None else blocks))

    def array(self, name: str) -> NDArray[Any]:
        entry = self.header["blocks"][name]
        count = int(np.prod(entry["shape"]))
        return np.frombuffer(self.blocks, entry["dtype"], count, entry["offset"]).copy()

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        entry = self.header["blocks"][name]
        data, at = array.tobytes(), entry["offset"]
        digest = {**entry, "sha256": hashlib.sha256(data).hexdigest()}
        header = {**self.header, "blocks": {**self.header["blocks"], name: digest}}
        self.write(header, self.blocks[:at] + data + self.blocks[at + len(data) :])


@pytest.fixture
def saved(model: edgekv.Model, picture: Picture, tmp_path: Path) -> Saved:
    with model.session(instructions="Watch.", tier=tmp_path / "a.tier") as session:
        for k in range(30):
            session.push(picture(k), float(k))
        session.save(tmp_path / "a.session")
    return Saved(tmp_path / "a.session")


def use(model: edgekv.Model, saved: Saved, pixels: NDArray[np.uint8]) -> None:
    with model.restore(saved.path) as session:
        session.push(pixels, max(session.last_time_s, 0.0) + 1)
        session.logits("What?")


def refused(model: edgekv.Model, saved: Saved, pixels: NDArray[np.uint8]) -> bool:
    said = refusal(lambda: use(model, saved, pixels), SessionFileError, BudgetError)
    counts = model.figures().counts
    assert (counts.live, counts.in_flight) == (0, 0)
    return said is not None


def test_headers(model: edgekv.Model, saved: Saved, picture: Picture) -> None:
    use(model, saved, picture(99))
    results = []
    for _, forged in forgeries(saved.header, each=2):
        saved.write(forged)
        results.append(refused(model, saved, picture(99)))
    assert sum(results) > len(results) // 2 > 100


@pytest.mark.parametrize(
    ("key", "value"), [("last_time_s", 1e30), ("last_time_s", 3.0), ("last_time_s", None)]
)
def test_a_last_time_that_cannot_be(
    model: edgekv.Model, saved: Saved, picture: Picture, key: str, value: object
) -> None:
    meta = saved.header["meta"]
    session = {**meta["session"], key: value}
    saved.write({**saved.header, "meta": {**meta, "session": session}})
    assert refused(model, saved, picture(99))


def test_arrays(model: edgekv.Model, saved: Saved, picture: Picture) -> None:
    results = []
    for name in saved.header["blocks"]:
        if name == "pages":
            continue
        array = saved.array(name)
        for value in wrong_numbers(array.dtype):
            for place in {0, array.size - 1}:
                changed = array.copy()
                changed[place] = value
                saved.write_array(name, changed)
                results.append(refused(model, saved, picture(99)))
    assert sum(results) > len(results) // 2 > 30


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_keys_and_values_that_are_not_finite(
    model: edgekv.Model, saved: Saved, picture: Picture, number: float
) -> None:
    """Refused before anything is taken: other sessions and the tier are as they were."""
    pages, tier = saved.array("pages"), saved.path.with_name("a.tier")
    pages[-1] = number
    saved.write_array("pages", pages)
    stored = tier.read_bytes()
    with model.session() as other:
        other.push(picture(1), 0.0)
        before = model.figures()
        with pytest.raises(SessionFileError, match="are infinite or no numbers"):
            model.restore(saved.path)
        assert (model.figures().counts, model.figures().sessions) == (
            before.counts,
            before.sessions,
        )
    assert tier.read_bytes() == stored


def wrong_numbers(dtype: np.dtype[Any]) -> list[float]:
    if dtype.kind == "f":
        return [float("nan"), float("inf"), 1e300]
    limits = np.iinfo(dtype)
    return [0, limits.min, limits.max, 16]


def test_sources(tmp_path: Path) -> None:
    """What cross-attention sees, in blocks of its own."""
    save_cross_bundle(tmp_path / "bundle", "pictures")
    path = tmp_path / "a.session"
    pixels = np.full((64, 64, 3), 90, np.uint8)
    results = []
    with edgekv.load(tmp_path / "bundle", kv_budget="64KiB", num_threads=1) as model:
        with model.session() as session:
            session.push(pixels, 0.0)
            session.save(path)
        saved = Saved(path)
        for name in ("source.key", "source.num_states", "source.pages"):
            entry = saved.header["blocks"][name]
            for key, value in (
                ("dtype", "<f8"), ("dtype", "<i8"), ("dtype", "|u1"), ("shape", []),
                ("shape", [1]), ("shape", [2**40]), ("shape", [0, 2**40]), ("shape", [0]),
            ):  # fmt: skip
                changed = {**saved.header["blocks"], name: {**entry, key: value}}
                saved.write({**saved.header, "blocks": changed})
                results.append(refused(model, saved, pixels))
        for number in (0, -1, 3, 2**62):
            saved.write_array("source.num_states", np.array([number], np.int64))
            results.append(refused(model, saved, pixels))
        pages = saved.array("source.pages")
        pages[0] = np.nan
        saved.write_array("source.pages", pages)
        assert refused(model, saved, pixels)
        saved.write(saved.header)
        assert not refused(model, saved, pixels)
    assert sum(results) > len(results) // 2
