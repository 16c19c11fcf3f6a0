import json
import random

from edgekv.bench import alloc
from edgekv.bench.report import to_json
from edgekv.bench.rivals import FirstFit, OrderedDictLRU


def test_the_bench_measures_all_and_meets_its_utilisation() -> None:
    result = alloc.run(num_batches=50, num_runs=2, num_events=600)
    line = json.loads(to_json(result))
    assert set(line["bounds"]) == {"allocate_64_p99_us", "utilisation", "mixed_p99_over_p50"}
    assert line["figures"]["mixed_waste"] < 0.08 < line["baseline"]["first_fit.mixed_waste"]
    assert result.holds("utilisation")
    for what in ("append", "tables", "commit", "drop"):
        assert line["figures"][f"frame_5_{what}_us"] > 0
    for rival in ("first_fit", "ordered_dict_lru"):
        assert line["baseline"][f"{rival}.allocate_64_p99_us"] > 0
    assert line["baseline"]["reserved_windows.utilisation"] < line["figures"]["utilisation"]


def test_first_fit_hands_out_runs_that_do_not_overlap() -> None:
    rng = random.Random(0)  # noqa: S311 - to be repeatable, not secret
    extents, held = FirstFit(200), dict[int, int]()
    for _ in range(2000):
        if held and rng.random() < 0.5:
            start = rng.choice(list(held))
            extents.release(start, held.pop(start))
        size = rng.randint(1, 20)
        start = extents.allocate(size)
        if start is not None:
            held[start] = size
        taken = [slot for s, n in held.items() for slot in range(s, s + n)]
        assert len(taken) == len(set(taken))
    for start, size in held.items():
        extents.release(start, size)
    assert extents.allocate(200) == 0


def test_the_lru_hands_out_what_was_free_longest() -> None:
    lru = OrderedDictLRU(4)
    first = lru.allocate(3)
    assert first == [0, 1, 2]
    lru.release(first[:1])
    assert lru.allocate(3) is None
    assert lru.allocate(2) == [3, 0]
