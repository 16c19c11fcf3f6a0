"""Engines on disk: what was built once is not built again, unless anything it depends on changed.

Owns: the file format (a line of JSON that says what the engine is for, then its bytes) and names.
Guarantees: an engine is used only for exactly the key it was built for and only whole (SHA-256);
one that is broken or was built for something else is rebuilt in its place, with the reason logged;
files appear complete or not at all; a folder that cannot be written costs the cache, not the run.
Does not know TensorRT, nor how engines are built.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgekv.atomic_file import replacing
from edgekv.executors.tensorrt.profiles import Profile

_MAGIC = b"edgekv engine 1\n"
_MAX_HEADER_BYTES = 2**20

Engine = bytes | memoryview  # as TensorRT serialised it

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineKey:
    """All that an engine depends on."""

    bundle: str  # its name
    bundle_sha256: str
    graph: str  # file name in the bundle
    tensorrt: str  # version
    device: str  # name of the GPU
    compute_capability: tuple[int, int]
    plugin_sha256: str  # of the plugin library, empty for a graph that needs none
    profiles: tuple[Profile, ...]

    def described(self) -> dict[str, Any]:
        """Plain JSON values, one for each thing that can differ."""
        values = asdict(self)
        values["profiles"] = [
            {"purpose": profile.purpose, "ranges": _plain(profile.ranges)}
            for profile in self.profiles
        ]
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]

    def path(self, folder: Path) -> Path:
        """The engine's file. A newer TensorRT or plugin replaces it rather than adding one."""
        text = json.dumps(self.described()["profiles"], sort_keys=True)
        shapes = hashlib.sha256(text.encode()).hexdigest()[:8]
        major, minor = self.compute_capability
        device = re.sub(r"[^A-Za-z0-9]+", "-", self.device).strip("-").lower()
        bundle = f"{self.bundle}-{self.bundle_sha256[:8]}"
        return folder / bundle / f"{self.graph}.{device}-sm{major}{minor}.{shapes}.engine"


def _plain(ranges: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asdict(value) for name, value in sorted(ranges.items())}


class StaleEngineError(Exception):
    """Why a cached engine cannot be used. Never leaves this module."""


def cached_engine(folder: Path, key: EngineKey, build: Callable[[], Engine]) -> Engine:
    """The engine for ``key``: from ``folder``, or built now and kept there."""
    path = key.path(folder)
    try:
        return _read(path, key)
    except FileNotFoundError:
        log.info("no engine for %s of %s yet: building it", key.graph, key.bundle)
    except (StaleEngineError, OSError) as error:
        log.warning("%s: %s: building it anew", path.name, error)
    engine = build()
    try:
        _write(path, key, engine)
    except OSError as error:
        log.warning("the engine cannot be kept in %s: %s", path.parent, error)
    return engine


def _read(path: Path, key: EngineKey) -> Engine:
    """The engine's bytes, mapped. Raises OSError, StaleEngineError."""
    with path.open("rb") as file:
        if file.readline(len(_MAGIC)) != _MAGIC:
            raise StaleEngineError("not an engine that edgekv wrote")
        try:
            header = json.loads(file.readline(_MAX_HEADER_BYTES))
            described, num_bytes, digest = header["key"], header["num_bytes"], header["sha256"]
        except (ValueError, KeyError, TypeError):
            raise StaleEngineError("its header is damaged") from None
        if difference := _difference(described, key.described()):
            raise StaleEngineError(difference)
        start = file.tell()
        if path.stat().st_size - start != num_bytes:
            raise StaleEngineError(f"holds {path.stat().st_size - start} of {num_bytes} bytes")
        engine = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[start:]
    if hashlib.sha256(engine).hexdigest() != digest:
        raise StaleEngineError("its bytes are damaged")
    return engine


def _difference(was: object, wanted: dict[str, Any]) -> str:
    """The first thing in which two described keys differ, for people; empty if in none."""
    if not isinstance(was, dict):
        return "its header is damaged"
    for name, value in wanted.items():
        if was.get(name) != value:
            if name in ("profiles", "bundle_sha256", "plugin_sha256"):
                return f"built for another {name.removesuffix('_sha256').replace('_', ' ')}"
            return f"built for {name.replace('_', ' ')} {was.get(name)}, this is {value}"
    return ""


def _write(path: Path, key: EngineKey, engine: Engine) -> None:
    view = memoryview(engine)
    header = {
        "key": key.described(),
        "num_bytes": view.nbytes,
        "sha256": hashlib.sha256(view).hexdigest(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(_MAGIC)
        file.write(json.dumps(header).encode() + b"\n")
        file.write(view)
