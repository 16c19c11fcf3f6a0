"""The device settings in configs/: read, refused when wrong, their arithmetic recomputed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from edgekv.cache.retention import retain_choices
from edgekv.config import KVDtype, KVGeometry, parse_bytes, parse_seconds
from edgekv.device_config import DeviceConfig, read_device_config

FOLDER = Path(__file__).resolve().parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.toml"))
SUM = re.compile(r"#   ([\d ×+/−]+) = (\d+) (.*)")


@pytest.fixture(params=FILES, ids=[path.stem for path in FILES])
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def config(path: Path) -> DeviceConfig:
    return read_device_config(path)


def sums(path: Path) -> list[tuple[str, int, str]]:
    """(left side, right side, what follows) of each line of arithmetic."""
    found = map(SUM.match, path.read_text().split("\n"))
    return [(match[1], int(match[2]), match[3]) for match in found if match]


def evaluated(text: str) -> int:
    tokens = text.replace("×", "*").replace("−", "-")
    assert re.fullmatch(r"[\d *+/-]+", tokens)
    return int(eval(tokens))  # noqa: S307 - digits and signs, checked above


def geometry(path: Path, config: DeviceConfig) -> KVGeometry:
    """Of the model that the file names."""
    text = path.read_text().replace("\n# ", " ")
    words = re.search(r"(\d+) layers, (\d+) KV heads of (\d+) numbers", text)
    assert words is not None
    layers, heads, dim = map(int, words.groups())
    return KVGeometry(layers, heads, dim, config.export["page_size"], config.load["kv_dtype"])


def test_there_is_one_for_every_device() -> None:
    assert [path.stem for path in FILES] == [
        "agx-orin", "orin-nano", "orin-nx", "raspberry-pi-5", "thor", "x86-laptop",
    ]  # fmt: skip


def test_arithmetic(path: Path) -> None:
    lines = sums(path)
    assert len(lines) >= 7
    for left, right, what in lines:
        assert evaluated(left) == right, f"{left} = {right} {what}"
        if limit := re.search(r"MiB of (\d+)", what):
            assert right <= int(limit[1])


def test_the_budget_holds_what_the_comments_say(path: Path, config: DeviceConfig) -> None:
    found = {what: (left, right) for left, right, what in sums(path)}
    page_bytes = geometry(path, config).page_bytes
    budget = parse_bytes(config.load["kv_budget"])
    assert found["bytes a page"][1] == page_bytes
    assert found["bytes"][1] <= budget
    left, pages = found["pages"] if "1048576" in found["pages"][0] else ("", 0)
    assert left.startswith(f"{budget // 2**20} × 1048576 // {page_bytes}")
    assert pages == budget // page_bytes
    assert any(f" {budget // 2**20} " in left for left, _, what in sums(path) if "MiB of" in what)
    (slots,) = (right for _, right, what in sums(path) if "slots" in what)
    assert slots % config.export["page_size"] == 0


def test_values_are_ones_that_can_be_used(config: DeviceConfig) -> None:
    assert config.load["device"] in ("auto", "cpu")
    assert config.load["kv_dtype"] in get_args(KVDtype)
    assert config.load["kv_dtype"] == config.export["kv_dtype"]
    assert config.load["max_step_tokens"] % config.export["page_size"] == 0
    assert config.run["retain"] in retain_choices()
    assert parse_seconds(config.run.get("every", "2s")) > 0
    assert re.fullmatch(r"(sm_\d+)?", config.build.get("arch", ""))
    assert config.export["opset"] >= (21 if config.export["weights"] == "int4" else 20)
    assert ("arch" in config.build) == (config.load["device"] == "auto")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv_budget = '1MiB'", "has tables load, run, export, build, not 'kv_budget'"),
        ("[laod]\n", "has tables load, run, export, build, not 'laod'"),
        ("[load]\nkv_bugdet = '1MiB'", r"\[load\] has kv_budget, .*, not 'kv_bugdet'"),
        ("[load]\nkv_budget = 5", r"\[load\] kv_budget cannot be 5"),
        ("[load]\nnum_threads = true", r"\[load\] num_threads cannot be True"),
        ("[load", "not TOML: "),
    ],
)
def test_what_does_not_belong_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "device.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_device_config(path)
