import numpy as np
import pytest

from edgekv.latency import LatencyRecord


def test_percentiles_are_those_of_the_series_to_two_percent() -> None:
    record = LatencyRecord()
    durations = np.random.default_rng(1).lognormal(-5, 1, 20_000)
    for duration in durations:
        record.add(float(duration))
    for percent in (5, 50, 95, 99):
        exact = np.percentile(durations, percent) * 1e3
        assert record.percentile_ms(percent) == pytest.approx(exact, rel=0.02)


def test_first_and_last_hundred() -> None:
    record = LatencyRecord()
    for k in range(1, 251):
        record.add(k / 1e3)
    assert record.first_ms() == pytest.approx(50.5)
    assert record.last_ms() == pytest.approx(200.5)


def test_a_short_series_is_its_own_first_and_last_hundred() -> None:
    record = LatencyRecord()
    assert (record.first_ms(), record.last_ms(), record.percentile_ms(50)) == (0.0, 0.0, 0.0)
    record.add(0.004)
    assert record.first_ms() == record.last_ms() == pytest.approx(4.0)


def test_absurd_durations_are_kept_in_range() -> None:
    record = LatencyRecord()
    record.add(0.0)
    record.add(1e9)
    assert record.percentile_ms(100) > record.percentile_ms(50) > 0
