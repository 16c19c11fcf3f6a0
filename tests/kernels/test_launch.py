"""The host's arithmetic: no launcher may read the device, so every size follows from T, B and M."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.triton.launch import Blocks, Node, Sizes, plan, turns, workspace_bound

CASES = Path(__file__).parents[2] / "plugins" / "triton" / "launch_cases.json"
BLOCKS = Blocks(16, 64, 64, 64, 16, 64)
SIZES = st.builds(Sizes, st.integers(0, 3000), st.integers(0, 70), st.integers(0, 5000))
NODES = st.sampled_from(
    [
        Node(9, 3, 64, 16),
        Node(32, 8, 128, 16, page_mass=True),
        Node(71, 1, 64, 32),
        Node(8, 8, 80, 16),
    ]
)


def golden_cases() -> list[dict[str, object]]:
    """Sizes and the plan they must give, for launchers in other languages."""
    nodes = [
        Node(9, 3, 64, 16),
        Node(32, 8, 128, 16, page_mass=True),
        Node(8, 1, 256, 8, read_only=True),
        Node(71, 1, 64, 32),
        Node(40, 40, 80, 16, read_only=True, page_mass=True),
    ]
    calls = [
        Sizes(1, 1, 2048), Sizes(1, 1, 3), Sizes(4, 4, 700), Sizes(263, 8, 300), Sizes(256, 1, 40),
        Sizes(33, 33, 17), Sizes(7, 2, 0), Sizes(0, 1, 4), Sizes(0, 0, 0), Sizes(2048, 3, 4096),
    ]  # fmt: skip
    largest = Sizes(2048, 33, 4096)
    return [
        {
            "node": asdict(node),
            "sizes": asdict(sizes),
            "blocks": asdict(BLOCKS),
            "sms": sms,
            "plan": asdict(plan(node, sizes, BLOCKS, sms)),
            "largest": asdict(largest),
            "workspace_bound": workspace_bound(node, largest, BLOCKS, sms),
        }
        for node in nodes
        for sizes in calls
        for sms in (8, 132)
    ]


def test_the_file_other_launchers_are_tested_with_is_what_this_one_says() -> None:
    assert json.loads(CASES.read_text()) == json.loads(json.dumps(golden_cases()))


@given(NODES, SIZES, SIZES, st.sampled_from([1, 8, 132]))
def test_the_largest_call_bounds_the_workspace_of_smaller_ones(
    node: Node, one: Sizes, other: Sizes, sms: int
) -> None:
    largest = Sizes(
        max(one.num_tokens, other.num_tokens),
        max(one.num_rows, other.num_rows),
        max(one.num_columns, other.num_columns),
    )
    bound = workspace_bound(node, largest, BLOCKS, sms)
    assert plan(node, one, BLOCKS, sms).workspace_bytes <= bound
    assert plan(node, largest, BLOCKS, sms).workspace_bytes <= bound


@given(NODES, st.lists(st.integers(0, 40), min_size=1, max_size=40), st.sampled_from([1, 132]))
def test_every_query_row_lies_in_one_block_of_the_grid(
    node: Node, counts: list[int], sms: int
) -> None:
    """Sequence b's blocks begin at starts[b] * group / block_m + b; the kernel relies on it."""
    result = plan(node, Sizes(sum(counts), len(counts), 100), BLOCKS, sms)
    if not result.launches:
        return
    attend = result.launches[1]
    assert attend.config
    block_m, _ = BLOCKS.of(attend.config)
    next_free, start = 0, 0
    for row, count in enumerate(counts):
        first = start * node.group // block_m + row
        assert first >= next_free
        next_free = first + -(-count * node.group // block_m)
        start += count
    assert next_free <= attend.grid[0]


@pytest.mark.parametrize("shift", [1, -1, 7, -999_983, 1_000_003, 2**31 - 1, -(2**31)])
def test_turns_times_a_shift_is_its_angle(shift: int) -> None:
    from fractions import Fraction
    from math import pi

    inv_freq = (1.0, 0.6218499541282654, 0.0003, 6.5, 0.0)
    for frequency, bits in zip(inv_freq, turns(inv_freq), strict=True):
        exact = Fraction(frequency) * shift / Fraction(2 * pi) % 1
        got = Fraction(bits * shift % 2**64, 2**64)
        gap = abs(got - exact)
        assert min(gap, 1 - gap) < 1e-6
