import io
import json
import math

import pytest
from rich.console import Console

from edgekv.bench.report import BenchResult, emit, machine, to_json


def result(**figures: float) -> BenchResult:
    return BenchResult(
        "demo",
        machine(),
        {"speed": 4.0, "size": 1.0} | figures,
        {"other.speed": 2.0, "what": "the other one"},
        {"speed": (">=", 3.0), "size": ("<=", 1.0)},
    )


def test_the_last_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert emit(result(), Console(highlight=False)) == 0
    lines = capsys.readouterr().out.splitlines()
    last = json.loads(lines[-1])
    assert list(last) == ["bench", "machine", "figures", "baseline", "bounds", "ok"]
    assert last["figures"] == {"speed": 4.0, "size": 1.0}
    assert last["bounds"] == {"speed": [">=", 3.0], "size": ["<=", 1.0]}
    assert last["ok"] is True
    assert last["machine"]["cores"] >= 1
    assert len(lines) > 1, "something for a person too"


def test_a_missed_bound_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    shown = io.StringIO()
    assert emit(result(speed=2.0), Console(file=shown, width=120)) == 3
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert "MISSED" in shown.getvalue()
    assert "1.00x" in shown.getvalue(), "the ratio to the baseline"


def test_nan_misses_every_bound_and_leaves_the_json_valid() -> None:
    broken = result(speed=math.nan)
    assert not broken.ok
    assert json.loads(to_json(broken))["figures"]["speed"] is None


def test_a_bound_on_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="bound on weight, which demo did not measure"):
        BenchResult("demo", {}, {"speed": 1.0}, {}, {"weight": ("<=", 1.0)})


def test_an_unknown_comparison_is_an_error() -> None:
    with pytest.raises(ValueError, match="bound must be one of <=, <, >=, >, ==, got '='"):
        BenchResult("demo", {}, {"speed": 1.0}, {}, {"speed": ("=", 1.0)})


def test_rows_get_a_table_of_their_own_and_the_json_keeps_flat_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = {"8_ms": 1.0, "8_bytes": 2.0, "16_ms": 3.0, "best": 8.0}
    shown = io.StringIO()
    legend = {"": "page sizes", "ms": "milliseconds of a token"}
    bounds = {"16_ms": ("<", 3.0)}
    tried = BenchResult("tried", {}, figures, {}, bounds, rows=("8", "16"), legend=legend)
    assert emit(tried, Console(file=shown, width=100)) == 3
    lines = shown.getvalue().splitlines()
    assert any("ms" in line and "bytes" in line for line in lines)
    assert any("16" in line and "3 MISSED" in line for line in lines)
    assert any("best" in line for line in lines)
    assert [line.split() for line in lines if "page sizes" in line] == [["lines", "page", "sizes"]]
    assert any("milliseconds of a token" in line for line in lines)
    assert not any("8_ms" in line for line in lines)
    assert json.loads(capsys.readouterr().out)["figures"] == figures
