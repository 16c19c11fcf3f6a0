"""Settings for one kind of device, from a TOML file (``configs/``).

Owns: which tables and keys such a file may have. Guarantees: a key nobody reads is refused, so a
typing error does not pass for a default. Does not know what the values mean: who takes them checks
them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from edgekv.checks import path_of, shown
from edgekv.regular_file import open_regular

# Keys of each table, with the type of their values.
_KEYS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "load": {  # what ``edgekv.load`` takes
        "kv_budget": str,
        "kv_dtype": str,
        "device": str,
        "num_threads": int,
        "max_step_tokens": int,
        "engine_cache": str,
    },
    "run": {  # what ``edgekv run`` takes besides
        "model": str,
        "fps": (int, float),
        "every": str,
        "retain": str,
        "max_new_tokens": int,
    },
    "export": {  # what ``scripts/export.py`` takes
        "weights": str,
        "kv_dtype": str,
        "page_size": int,
        "opset": int,
    },
    "build": {"arch": str},  # what ``scripts/build_plugin.py`` takes
}


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """What a file says, table by table. ``edgekv.load(bundle, **config.load)``."""

    load: Mapping[str, Any]
    run: Mapping[str, Any]
    export: Mapping[str, Any]
    build: Mapping[str, Any]


def read_device_config(path: str | Path) -> DeviceConfig:
    """Read a device's settings. Raises ValueError for a file that cannot be read, or what does not
    belong there."""
    path = path_of(path, "path")
    try:
        with open_regular(path) as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # ValueError: no TOML, or no text
        raise ValueError(f"{path}: not TOML: {error}") from None
    for name, table in tables.items():
        _check_table(path, name, table)
    return DeviceConfig(**{name: tables.get(name, {}) for name in _KEYS})


def _check_table(path: str | Path, name: str, table: object) -> None:
    if name not in _KEYS or not isinstance(table, dict):
        raise ValueError(f"{path}: has tables {', '.join(_KEYS)}, not {shown(name)}")
    known = _KEYS[name]
    for key, value in table.items():
        if key not in known:
            raise ValueError(f"{path}: [{name}] has {', '.join(known)}, not {shown(key)}")
        if not isinstance(value, known[key]) or isinstance(value, bool):
            raise ValueError(f"{path}: [{name}] {key} cannot be {shown(value)}")
