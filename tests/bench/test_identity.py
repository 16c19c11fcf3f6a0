"""Sharing: what must hold on any machine."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from edgekv.bench.identity import NUM_SESSIONS, run


def test_the_demo_model_shares_its_prefix_and_its_frames(bundle_path: Path) -> None:
    result = run(bundle_path, console=Console(quiet=True))
    figures, alone = result.figures, result.baseline
    assert figures["pages_beyond_prefix_and_tails"] == 0
    assert alone["pages_beyond_prefix_and_tails"] == (NUM_SESSIONS - 1) * (
        figures["pages"] - NUM_SESSIONS
    )
    for count in (1, 10, 100):
        assert figures[f"encodes_of_{count}_questions"] == 1
        assert figures[f"frame_pages_copied_by_{count}_questions"] == 0
