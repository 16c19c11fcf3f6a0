import json
from pathlib import Path

from rich.console import Console

from edgekv.bench import trace
from edgekv.bench.report import to_json


def test_the_bench_measures_the_log_beside_no_log_and_a_push(bundle_path: Path) -> None:
    result = trace.run(bundle_path, num_rounds=1, console=Console(quiet=True))
    line = json.loads(to_json(result))
    assert set(line["bounds"]) == {"log_bytes", "share_of_push"}
    assert result.holds("log_bytes")
    assert line["figures"]["log_bytes"] > 20, "a frame and its share of a drop are in it"
    assert line["figures"]["push_ms"] > 0
    assert line["baseline"]["cache_us"] > 0
