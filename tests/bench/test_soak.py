"""A short soak: the long one is ``edgekv bench soak --frames 200000``."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from edgekv.bench import soak
from edgekv.bench.drawn_model import drawn_model
from edgekv.bench.soak_load import SoakLoad
from edgekv.cache import Sequence
from edgekv.cache.invariants import InvariantError


def test_a_short_soak_checks_every_step_and_loses_no_page(bundle_path: Path) -> None:
    console = Console(file=io.StringIO())
    result = soak.run(bundle_path, num_frames=300, num_blocks=1, console=console)
    assert set(result.bounds) == {"anonymous_growth_mib", "pages_lost", "end_over_fresh"}
    assert result.holds("pages_lost")
    figures = result.figures
    assert figures["num_frames"] >= 300
    assert figures["num_steps_checked"] >= 2 * figures["num_frames"]
    for happened in ("ask", "fork", "guest_frame", "guest_comes_or_goes", "say"):
        assert figures[f"num_{happened}"] > 0


def test_what_a_soak_would_find(
    bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork that leaks one page is found at once, not at the end."""
    model, cache = drawn_model(bundle_path, num_pages=40)
    with model:
        load = SoakLoad(model, cache, tmp_path)

        def live(count: int) -> None:
            for _ in range(count):
                load.frame()

        live(1)
        real = Sequence.close

        def leaky(self: Sequence) -> None:
            pages = self.table.page_ids[:1].copy()
            if not self.closed and pages.size:
                cache.allocator.retain(pages)
            real(self)

        with monkeypatch.context() as patch:
            patch.setattr(Sequence, "close", leaky)
            with pytest.raises(InvariantError):
                live(200)
