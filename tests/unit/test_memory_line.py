from edgekv.cli.memory_line import MemoryLine

MIB = 1 << 20


def test_flat_memory_is_a_flat_line() -> None:
    line = MemoryLine()
    for _ in range(10):
        line.add(50 * MIB)
    assert str(line) == "memory over time ██████████ 50.0 MiB"


def test_growth_is_seen_and_the_scale_starts_at_zero() -> None:
    line = MemoryLine()
    for k in (1, 2, 4, 8):
        line.add(k * MIB)
    assert str(line) == "memory over time ▁▂▄█ 8.0 MiB"


def test_a_long_run_keeps_one_line_and_its_peaks() -> None:
    line = MemoryLine()
    for k in range(100_000):
        line.add(80 * MIB if k == 7 else 40 * MIB)
    bars = str(line).split()[-3]
    assert 24 <= len(bars) <= 48
    assert bars[0] == "█"
    assert set(bars[1:]) == {"▄"}


def test_no_sample_no_line() -> None:
    assert str(MemoryLine()) == ""
