"""A session whose frames go to a disk without room; reading it is measured for real."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

import pytest

import edgekv
from edgekv.tier.file import HEADER_BYTES
from tests.session.helpers import Picture, push, tier_of


@pytest.mark.parametrize("num_frames", [0, 2], ids=["for none", "for two"])
def test_a_disk_without_room_to_measure_says_so_once(
    model: edgekv.Model,
    picture: Picture,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    num_frames: int,
) -> None:
    path = tmp_path / "a.tier"
    with model.session(tier=path, tier_limit="1MiB") as session:
        push(session, picture, 0, 40)
        record_bytes = tier_of(session).num_bytes // tier_of(session).num_frames
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES + num_frames * record_bytes + 9, hard))
    try:
        with (
            caplog.at_level(logging.WARNING, "edgekv"),
            model.session(tier=path, tier_limit="1MiB") as session,
        ):
            probe = tmp_path / ".a.tier.probe"
            said = f"reading could not be measured ({probe}: cannot be written (File too large))"
            assert tier_of(session).recall_off == said
            assert [record.getMessage() for record in caplog.records] == [
                f"no frames will be recalled: {said}"
            ]
            push(session, picture, 0, 40)
            assert tier_of(session).num_stored == num_frames
            assert len(caplog.records) == 2
            assert not probe.exists()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
