"""Every public parameter of a kind refuses that kind's wrong values: one line, nothing done."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import edgekv
from edgekv.schedule import Question
from edgekv.stream import StreamRun

PIXELS = np.zeros((64, 64, 3), np.uint8)
HUGE = 10**40


@dataclass(frozen=True)
class Place:
    """What the calls work on."""

    model: edgekv.Model
    session: edgekv.Session
    bundle: Path
    saved: Path
    folder: Path


def push(place: Place, values: Mapping[str, Any]) -> None:
    with place.model.session() as session:
        session.push(edgekv.Frame(**{"pixels": PIXELS, "time_s": 1.0, **values}))


def ask(place: Place, values: Mapping[str, Any]) -> None:
    place.session.ask("What?", edgekv.SamplingOptions(**values))


def run(place: Place, values: Mapping[str, Any]) -> None:
    StreamRun(place.session, edgekv.open_video(place.folder), [], **values)


Call = Callable[[Place, Mapping[str, Any]], object]
# name: (what has the parameters, a call with some of them given, the kind of each parameter)
FUNCTIONS: dict[str, tuple[Callable[..., Any], Call, dict[str, str]]] = {
    "load": (
        edgekv.load,
        lambda p, v: edgekv.load(**{"path": p.bundle, "num_threads": 1, **v}).close(),
        {
            "path": "folder", "kv_budget": "size", "kv_dtype": "choice or None",
            "cross_budget": "size or None", "device": "choice", "num_threads": "count",
            "share": "switch", "encoder_cache": "size from 0", "max_step_tokens": "count from 1",
            "engine_cache": "path or None", "progress": "function or None", "trace": "file or None",
            "trace_limit": "size",
        },
    ),
    "session": (
        edgekv.Model.session,
        lambda p, v: p.model.session(**v).close(),
        {
            "instructions": "text or None", "retain": "choice or None",
            "reserve_tokens": "count from 1 or None", "priority": "whole", "tier": "file or None",
            "tier_limit": "size", "tier_format": "choice", "skip_still": "seconds or None",
        },
    ),
    "restore": (
        edgekv.Model.restore,
        lambda p, v: p.model.restore(**{"path": p.saved, **v}).close(),
        {"path": "file", "priority": "whole", "skip_still": "seconds or None"},
    ),
    "trace": (
        edgekv.Model.trace,
        lambda p, v: p.model.trace(**{"path": p.folder / "new.trace", **v}),
        {"path": "file or None", "limit": "size"},
    ),
    "save": (edgekv.Session.save, lambda p, v: p.session.save(**v), {"path": "file"}),
    "push": (edgekv.Frame, push, {"pixels": "", "time_s": "number", "index": "count from -1"}),
    "ask": (
        edgekv.SamplingOptions,
        ask,
        {
            "max_new_tokens": "count from 1", "temperature": "number from 0", "top_p": "share",
            "seed": "count or None", "stop": "texts",
        },
    ),
    "open_video": (
        edgekv.open_video,
        lambda p, v: edgekv.open_video(**{"source": p.folder, **v}).close(),
        {
            "source": "path", "fps": "seconds or None", "realtime": "switch",
            "folder_fps": "seconds", "timeout_s": "seconds",
        },
    ),
    "serve_metrics": (
        edgekv.serve_metrics,
        lambda p, v: edgekv.serve_metrics(**{"model": p.model, "port": 0, **v}).close(),
        {"model": "", "port": "count", "address": "text"},
    ),
    "StreamRun": (
        StreamRun,
        run,
        {
            "session": "", "source": "", "questions": "", "options": "",
            "duration_s": "seconds or None", "save_to": "path or None", "save_every_s": "seconds",
        },
    ),
    "Question": (
        Question,
        lambda _, v: Question("What?", **v),
        {"prompt": "", "every_s": "seconds or None", "at_s": "number or None", "expected": ""},
    ),
}  # fmt: skip

NO_NUMBERS = ["x", math.nan, math.inf, True, [1], 10**400, b"1"]
NO_COUNTS = ["x", "7", 1.5, math.nan, True, [1], HUGE, -HUGE]
NO_PATHS = [3.5, True, b"bytes", ["a"], "", "a\0b", "x" * 300, "x/" * 3000, "\ud800"]
NO_SIZES = ["x", "", "-1MiB", "1e3", 1.5, math.nan, True, [1], b"1MiB", -1, HUGE, "9" * 400]
WRONG: dict[str, list[Any]] = {
    "path": NO_PATHS,
    "folder": [*NO_PATHS, 3, "{file}", "{folder}/none", "{file}/below"],
    "file": [*NO_PATHS, 3, "{folder}", "{folder}/no/such", "{file}/below"],
    "size": [*NO_SIZES, 0, "0"],
    "size from 0": NO_SIZES,
    "function": ["x", 3, True, [print], {}],
    "whole": NO_COUNTS,
    "count": [*NO_COUNTS, -1],
    "count from 1": [*NO_COUNTS, -1, 0],
    "count from -1": [*NO_COUNTS, -2],
    "number": NO_NUMBERS[:1] + NO_NUMBERS[2:],  # NaN is a matter of its own
    "number from 0": [*NO_NUMBERS, -1e-9],
    "share": [*NO_NUMBERS, 0, 1.1],
    "seconds": [*NO_NUMBERS, 0, -1.0],
    "switch": ["no", 0, 1, [True]],
    "choice": ["x", "", 3, ["window"], ("cpu",), True],
    "text": [3, b"x", ""],
    "texts": ["abc", (3,), ("",), {"a": 1}],
}
CASES = [
    pytest.param(name, parameter, value, id=f"{name}-{parameter}-{str(value)[:12]!r}")
    for name, (_, _, kinds) in FUNCTIONS.items()
    for parameter, kind in kinds.items()
    if kind
    for value in WRONG[kind.removesuffix(" or None")] + ([] if kind.endswith("None") else [None])
]


@contextmanager
def made(model: edgekv.Model, bundle: Path, folder: Path) -> Iterator[Place]:
    with model.session() as session:
        session.push(PIXELS, 0.0)
        Image.fromarray(PIXELS).save(folder / "picture.png")
        session.save(folder / "a.session")
        yield Place(model, session, bundle, folder / "a.session", folder)
    model.trace(None)


@pytest.fixture
def place(model: edgekv.Model, bundle_path: Path, tmp_path: Path) -> Iterator[Place]:
    with made(model, bundle_path, tmp_path) as place:
        yield place


@pytest.fixture(scope="module")
def untouched(
    model: edgekv.Model, bundle_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One place for all calls that do nothing."""
    with made(model, bundle_path, tmp_path_factory.mktemp("untouched")) as place:
        yield place


def state(place: Place) -> object:
    """All that a refused call must leave as it was; what stays cached in free pages may change."""
    pages, stats = place.model.figures().counts, place.session.stats()
    session = (stats.num_frames, stats.num_questions, stats.num_tokens, place.session.last_time_s)
    return pages.live, pages.in_flight, session, sorted(place.folder.iterdir())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_has_a_kind(name: str) -> None:
    """A new parameter belongs into the table, and gets the tests of its kind with that."""
    function, _, kinds = FUNCTIONS[name]
    assert [p for p in inspect.signature(function).parameters if p != "self"] == list(kinds)


@pytest.mark.parametrize(("name", "parameter", "value"), CASES)
def test_a_wrong_value_is_refused_in_one_line_and_does_nothing(
    untouched: Place, name: str, parameter: str, value: object
) -> None:
    if isinstance(value, str):
        value = value.replace("{folder}", str(untouched.folder)).replace(
            "{file}", str(untouched.saved)
        )
    _, call, kinds = FUNCTIONS[name]
    before = state(untouched)
    with pytest.raises((ValueError, edgekv.EdgeKVError)) as refused:
        call(untouched, {parameter: value})
    said = str(refused.value)
    assert len(said.splitlines()) == 1
    assert len(said) < 600
    if kinds[parameter].split()[0] in ("size", "whole", "count", "seconds", "share", "switch"):
        assert parameter in said
    assert state(untouched) == before


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "serve_metrics"])
def test_right_values_of_other_types_will_do(place: Place, name: str) -> None:
    """NumPy's numbers count as numbers, and come to no harm by their few bits."""
    given: dict[str, dict[str, Any]] = {
        "load": {"num_threads": np.int8(1), "max_step_tokens": np.uint8(200)},
        "session": {"reserve_tokens": np.int8(100), "priority": np.int64(3)},
        "restore": {"priority": np.int8(-3), "skip_still": np.float32(2)},
        "trace": {"limit": np.int64(2**20)},
        "save": {"path": str(place.saved)},
        "push": {"time_s": np.float32(2), "index": np.int16(7)},
        "ask": {"max_new_tokens": np.int8(2), "temperature": np.float16(1), "seed": 2**127},
        "open_video": {"fps": np.float64(2)},
        "StreamRun": {"save_every_s": np.int8(3)},
        "Question": {"every_s": np.float32(1)},
    }
    FUNCTIONS[name][1](place, given[name])


@pytest.mark.parametrize("temperature", [1e-320, 1e-12, 1e308])
def test_any_temperature_draws(place: Place, temperature: float) -> None:
    options = edgekv.SamplingOptions(max_new_tokens=3, temperature=temperature, seed=1)
    greedy = place.session.ask("What?", edgekv.SamplingOptions(max_new_tokens=3))
    drawn = place.session.ask("What?", options)
    assert temperature > 1 or drawn.token_ids == greedy.token_ids
