"""A device's settings are refused with ValueError or are of the documented types, whatever a file
says."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgekv.device_config import read_device_config
from edgekv.errors import SessionFileError, TierError, TraceError
from edgekv.session_file import SessionFile
from edgekv.tier.file import TierFile
from edgekv.trace import read_log
from tests.forging import WRONG, refusal

TABLES: dict[str, dict[str, Any]] = {
    "load": {"kv_budget": "64MiB", "num_threads": 4, "engine_cache": "here"},
    "run": {"fps": 2.0, "every": "2s", "max_new_tokens": 8},
    "export": {"page_size": 16, "opset": 21},
    "build": {"arch": "sm_87"},
}


def as_toml(value: Any) -> str:
    """A value in TOML, as far as TOML has one; JSON's word for it where it has none."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        inside = ", ".join(f"{key} = {as_toml(item)}" for key, item in value.items())
        return f"{{{inside}}}"
    return json.dumps(value)


def write(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {as_toml(value)}" for key, value in table.items())]
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")


def test_only_value_errors_come_out(tmp_path: Path) -> None:
    path, num_refused = tmp_path / "device.toml", 0
    write(path, TABLES)
    assert read_device_config(path).run["fps"] == 2.0
    for name, table in TABLES.items():
        for key in table:
            for wrong in WRONG:
                write(path, {**TABLES, name: {**table, key: wrong}})
                said = refusal(lambda: read_device_config(path), ValueError)
                num_refused += said is not None
    assert num_refused > 100


def test_no_bytes_raise_anything_else(tmp_path: Path) -> None:
    path, draw = tmp_path / "device.toml", random.Random(1)  # noqa: S311
    write(path, TABLES)
    whole, num_refused = path.read_bytes(), 0
    for _ in range(500):
        at = draw.randrange(len(whole))
        path.write_bytes(whole[:at] + draw.randbytes(draw.randrange(1, 4)) + whole[at + 1 :])
        said = refusal(lambda: read_device_config(path), ValueError)
        num_refused += said is not None
        assert said is None or said.startswith(f"{path}: ")
    assert 100 < num_refused < 500, "some changes are refused, and some are right"


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        for read, error in (
            (read_device_config, ValueError),
            (SessionFile, SessionFileError),
            (read_log, TraceError),
            (TierFile.open, TierError),
        ):
            assert refusal(lambda: read(path), error) is not None  # noqa: B023 - called at once


@pytest.mark.parametrize("said", ["Is a directory", "No such file", "not TOML"])
def test_what_cannot_be_read_is_named(tmp_path: Path, said: str) -> None:
    path = {"Is a directory": tmp_path, "No such file": tmp_path / "none"}.get(said, tmp_path / "x")
    (tmp_path / "x").write_text("a = " + "[" * 50_000)
    with pytest.raises(ValueError, match=said):
        read_device_config(path)
