"""Engines on disk: used when they are what is wanted, rebuilt and said so when they are not."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from edgekv.executors.tensorrt.engine_cache import EngineKey, cached_engine
from edgekv.executors.tensorrt.profiles import Profile, Range

PROFILE = Profile("decode", {"inputs_embeds": Range((1, 8), (1, 8), (4, 8))})
WIDER = Profile("decode", {"inputs_embeds": Range((1, 8), (1, 8), (5, 8))})
KEY = EngineKey(
    bundle="demo",
    bundle_sha256="ab" * 32,
    graph="decoder.onnx",
    tensorrt="10.3.0",
    device="Orin (nvgpu)",
    compute_capability=(8, 7),
    plugin_sha256="cd" * 32,
    profiles=(PROFILE,),
)
ENGINE = bytes(range(256)) * 40


class Builder:
    """Counts what was built; each engine differs."""

    def __init__(self) -> None:
        self.num_built = 0

    def __call__(self) -> bytes:
        self.num_built += 1
        return ENGINE + bytes([self.num_built])


def test_built_once(tmp_path: Path) -> None:
    build = Builder()
    first = bytes(cached_engine(tmp_path, KEY, build))
    assert bytes(cached_engine(tmp_path, KEY, build)) == first == ENGINE + b"\1"
    assert build.num_built == 1
    (folder,) = tmp_path.iterdir()
    assert folder.name == "demo-abababab"
    (file,) = folder.iterdir()
    assert file.name.startswith("decoder.onnx.orin-nvgpu-sm87.")


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (replace(KEY, tensorrt="10.13.0"), "built for tensorrt 10.3.0, this is 10.13.0"),
        (replace(KEY, plugin_sha256="ef" * 32), "built for another plugin"),
        (replace(KEY, bundle_sha256="ab" * 4 + "0" * 56), "built for another bundle"),
    ],
)
def test_stale_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: EngineKey, reason: str
) -> None:
    build = Builder()
    cached_engine(tmp_path, KEY, build)
    assert bytes(cached_engine(tmp_path, key, build)) == ENGINE + b"\2"
    assert f"{reason}: building it anew" in caplog.text
    cached_engine(tmp_path, key, build)
    assert build.num_built == 2
    assert len(list(tmp_path.rglob("*.engine"))) == 1  # an upgrade leaves no gigabytes behind


@pytest.mark.parametrize(
    "key",
    [
        replace(KEY, graph="vision.onnx"),
        replace(KEY, device="Thor", compute_capability=(11, 0)),
        replace(KEY, profiles=(WIDER,)),
        replace(KEY, profiles=(PROFILE, PROFILE)),
        replace(KEY, bundle="other"),
        replace(KEY, bundle_sha256="00" * 32),
    ],
)
def test_different_engines_live_side_by_side(tmp_path: Path, key: EngineKey) -> None:
    build = Builder()
    for wanted in (KEY, key, KEY, key):
        cached_engine(tmp_path, wanted, build)
    assert build.num_built == 2


def _cut(data: bytes) -> bytes:
    return data[:-1]


def _flip(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_cut, "holds 10240 of 10241 bytes"),
        (_flip, "its bytes are damaged"),
        (lambda data: data[:30], "its header is damaged"),
        (lambda data: data.replace(b'"key"', b'"kay"', 1), "its header is damaged"),
        (lambda data: data.replace(b"{", b"[", 1), "its header is damaged"),
        (lambda _: b"", "not an engine that edgekv wrote"),
        (lambda _: b"holiday photos", "not an engine that edgekv wrote"),
    ],
    ids=["cut", "flipped", "header", "key", "json", "empty", "other"],
)
def test_broken_is_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: object, reason: str
) -> None:
    build = Builder()
    cached_engine(tmp_path, KEY, build)
    path = KEY.path(tmp_path)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert bytes(cached_engine(tmp_path, KEY, build)) == ENGINE + b"\2"
    assert reason in caplog.text
    assert bytes(cached_engine(tmp_path, KEY, build)) == ENGINE + b"\2"


def test_a_folder_that_cannot_be_written_costs_the_cache_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    engine = cached_engine(tmp_path / "file", KEY, Builder())
    assert bytes(engine) == ENGINE + b"\1"
    assert "the engine cannot be kept in" in caplog.text


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build() -> bytes:
        raise MemoryError

    with pytest.raises(MemoryError):
        cached_engine(tmp_path, KEY, build)
    assert not list(tmp_path.rglob("*"))


def test_the_first_build_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cached_engine(tmp_path, KEY, Builder())
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "no engine for decoder.onnx of demo yet" in record.getMessage()
