"""A forged tier file is refused with TierError, or its session goes on without what is wrong."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv.errors import TierError
from edgekv.tier.file import FRAME_BYTES, HEADER_BYTES, TierFile
from edgekv.tier.index import NUM_RUNS, frame_dtype
from tests.forging import forgeries, refusal

Picture = Callable[[int], NDArray[np.uint8]]
pytestmark = pytest.mark.usefixtures("quick_disk")

PREAMBLE = struct.Struct("<8sII32s")
OPTIONS = edgekv.SamplingOptions(max_new_tokens=1)


class Tier:
    """A saved session with its tier, the header and the records of which can be written anew."""

    def __init__(self, model: edgekv.Model, picture: Picture, folder: Path) -> None:
        self.model = model
        self.path, self.saved = folder / "a.tier", folder / "a.session"
        with model.session(tier=self.path, tier_limit="1MiB") as session:
            for k in range(40):
                session.push(picture(k), float(k))
            session.save(self.saved)
        data = self.path.read_bytes()
        length = PREAMBLE.unpack_from(data)[2]
        self.header: dict[str, Any] = json.loads(data[PREAMBLE.size : PREAMBLE.size + length])
        self.records = data[HEADER_BYTES:]

    def write(self, header: Any, records: bytes | None = None) -> None:
        text = json.dumps(header).encode()[: HEADER_BYTES - PREAMBLE.size]
        head = PREAMBLE.pack(b"edgekvti", 1, len(text), hashlib.sha256(text).digest())
        records = self.records if records is None else records
        self.path.write_bytes((head + text).ljust(HEADER_BYTES, b"\0") + records)

    def write_frames(self, name: str, value: float) -> None:
        """Every record's frame says ``value`` of ``name``."""
        size = self.header["record_bytes"]
        records = np.frombuffer(self.records, np.uint8).reshape(-1, size).copy()
        geometry = self.model.bundle.geometry
        fields = np.dtype(
            [
                ("frame", frame_dtype(geometry.num_rope_axes)),
                ("summary", np.float16, (NUM_RUNS, geometry.num_kv_heads, geometry.head_dim)),
            ]
        )
        for record in records:
            row = record[FRAME_BYTES : FRAME_BYTES + fields.itemsize].view(fields)[0]
            part = row if name == "summary" else row["frame"]
            part[name] = value
            record[:4] = np.frombuffer(struct.pack("<I", zlib.crc32(record[4:])), np.uint8)
        self.write(self.header, records.tobytes())

    def write_payloads(self, number: float) -> None:
        """Every scale of every record's keys and values is ``number``."""
        size, geometry = self.header["record_bytes"], self.model.bundle.geometry
        records = np.frombuffer(self.records, np.uint8).reshape(-1, size).copy()
        summary = 2 * NUM_RUNS * geometry.num_kv_heads * geometry.head_dim
        payload = FRAME_BYTES + frame_dtype(geometry.num_rope_axes).itemsize + summary
        heads = (geometry.num_layers, 2, geometry.num_kv_heads, geometry.page_size)
        scales = 4 * int(np.prod(heads))  # float32, in front of a page's numbers
        for record in records:
            record[payload : payload + scales].view(np.float32)[:] = number
            record[:4] = np.frombuffer(struct.pack("<I", zlib.crc32(record[4:])), np.uint8)
        self.write(self.header, records.tobytes())

    def use(self) -> str | None:
        """Go on with the session, and recall: why its tier does nothing, None = it works."""
        with self.model.restore(self.saved) as session:
            session.ask("Was there a red circle?", OPTIONS, recall="auto")
            session.push(np.zeros((64, 64, 3), np.uint8), 1e6)
            stats = session.stats().tier
            assert stats is not None
            return stats.recall_off if stats.max_frames == 0 else None


@pytest.fixture(scope="module")
def made(model: edgekv.Model, picture: Picture, tmp_path_factory: pytest.TempPathFactory) -> Tier:
    return Tier(model, picture, tmp_path_factory.mktemp("forged"))


@pytest.fixture
def tier(made: Tier) -> Tier:
    """As it was written, whatever the test before made of it."""
    made.write(made.header)
    return made


def test_headers(tier: Tier) -> None:
    assert tier.use() is None
    reasons = []
    for _, forged in forgeries(tier.header, each=2):
        tier.write(forged)
        refusal(lambda: TierFile.open(tier.path).close(), TierError)
        reasons.append(tier.use())
    assert all(reason is None or len(reason.splitlines()) == 1 for reason in reasons)
    assert sum(reason is not None for reason in reasons) > 50


@pytest.mark.parametrize("text", [b"", b"[1]", b"{{{", b"\xff", b"null", b"[" * 4000])
def test_what_is_no_json_object(tier: Tier, text: bytes) -> None:
    head = PREAMBLE.pack(b"edgekvti", 1, len(text), hashlib.sha256(text).digest())
    tier.path.write_bytes((head + text).ljust(HEADER_BYTES, b"\0") + tier.records)
    with pytest.raises(TierError):
        TierFile.open(tier.path)
    assert tier.use() is not None


@pytest.mark.parametrize("name", [*(frame_dtype(1).names or ()), "summary"])
@pytest.mark.parametrize("value", [0, 1, -1, 2**31 - 1, -(2**31), 255])
def test_records(tier: Tier, name: str, value: int) -> None:
    if name == "uniform":
        value &= 255
    with np.errstate(over="ignore"):
        tier.write_frames(name, float("inf") if name == "summary" else value)
    tier.use()
    counts = tier.model.figures().counts
    assert (counts.live, counts.in_flight) == (0, 0)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38, -3e38])
def test_keys_and_values_that_are_not_finite(tier: Tier, number: float) -> None:
    question = "Was there a red circle?"
    with tier.model.restore(tier.saved) as session:
        logits = session.logits(question)
        assert (session.logits(question, recall="auto") != logits).any(), "it recalls"
    tier.write_payloads(number)
    with tier.model.restore(tier.saved) as session:
        stats = session.stats().tier
        assert stats is not None
        num_frames = stats.num_frames
        for _ in range(num_frames):
            assert np.isfinite(session.logits(question, recall="auto")).all()
        stats = session.stats().tier
        assert stats is not None
        assert (stats.num_recalled, stats.num_damaged, stats.num_frames) == (0, num_frames, 0)


@pytest.mark.parametrize("time_s", [np.nan, np.inf])
def test_times_that_are_no_number_do_no_harm(tier: Tier, time_s: float) -> None:
    tier.write_frames("time_s", time_s)
    tier.use()
    with tier.model.restore(tier.saved) as session:
        answer = session.ask("Was there a red circle?", OPTIONS, recall="auto")
        assert (answer.recalled_frames, answer.recalled_times_s) == ((), ())
