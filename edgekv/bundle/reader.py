"""A bundle on disk, opened: checked once, then read through typed attributes.

Owns: the folder's path, its manifest, the memory-mapped embedding rows.
Guarantees: a ``Bundle`` that exists had every listed file present with its size and SHA-256 when
it was opened. What is wrong raises ``BundleError``: one line with the file and what was expected.
Does not know: how graphs run, how frames are resized, how text becomes tokens.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekv.bundle.manifest import (
    CHAT_TEMPLATE,
    EMBED,
    ENCODER,
    MANIFEST,
    TOKENIZER,
    VISION,
    CrossSettings,
    FileEntry,
    Manifest,
)
from edgekv.bundle.prompts import Prompts
from edgekv.checks import path_of
from edgekv.config import ImageSettings, KVDtype, KVGeometry
from edgekv.errors import BundleError

_MAX_MANIFEST_BYTES = 1 << 20
_HASH_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """An exported model, ready to be loaded by executors. Make one with ``Bundle.open``."""

    path: Path
    manifest: Manifest
    chat_template: str
    embed_rows: NDArray[np.floating]  # (vocab_size, hidden_size) float16 or float32, memory-mapped

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = True) -> Bundle:
        """Open and check the bundle in the folder ``path``.

        ``verify=False`` skips the SHA-256 of the contents (not the sizes), for callers that have
        just opened the same folder. Raises BundleError, which says which folder it is.
        """
        folder = path_of(path, "path")
        try:
            return cls._open(folder, verify=verify)
        except BundleError as error:
            raise BundleError(f"{str(folder)[:200]}: {error}") from None

    @classmethod
    def _open(cls, folder: Path, *, verify: bool) -> Bundle:
        manifest = Manifest.from_json(_read_manifest(folder))
        for name, entry in manifest.files.items():
            _check_file(folder / name, entry, verify=verify)
        return cls(
            path=folder,
            manifest=manifest,
            chat_template=_read_text(folder / CHAT_TEMPLATE),
            embed_rows=_map_rows(folder / EMBED, (manifest.vocab_size, manifest.hidden_size)),
        )

    @property
    def geometry(self) -> KVGeometry:
        """What one token's keys and values look like."""
        return self.manifest.geometry

    @property
    def image(self) -> ImageSettings | None:
        """How a picture becomes pixel values; None for a text-only model."""
        return None if self.manifest.vision is None else self.manifest.vision.image

    @property
    def tokens_per_image(self) -> int:
        """Image tokens of one frame, separators not counted; 0 for a text-only model."""
        return 0 if self.manifest.vision is None else self.manifest.vision.tokens_per_image

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        """The KV dtypes there is a decoder graph for."""
        return tuple(self.manifest.decoders)

    def geometry_for(self, kv_dtype: KVDtype | None) -> KVGeometry:
        """The geometry with another KV dtype; None = the bundle's own. Raises ValueError."""
        if kv_dtype is None:
            return self.geometry
        if kv_dtype not in self.kv_dtypes:
            raise ValueError(
                f"KV dtype must be one of {', '.join(self.kv_dtypes)} for this bundle, "
                f"got {kv_dtype!r}"
            )
        return dataclasses.replace(self.geometry, dtype=kv_dtype)

    @property
    def decoder_path(self) -> Path:
        """The decoder graph for the bundle's own KV dtype."""
        return self.decoder_path_for(None)

    def decoder_path_for(self, kv_dtype: KVDtype | None) -> Path:
        """The decoder graph for a KV dtype; its weights lie in a ``.data`` file. ValueError."""
        return self.path / self.manifest.decoders[self.geometry_for(kv_dtype).dtype]

    @property
    def vision_path(self) -> Path | None:
        """The vision graph, None for a text-only model."""
        return None if self.manifest.vision is None else self.path / VISION

    @property
    def cross(self) -> CrossSettings | None:
        """What a model with cross-attention looks at, and how; None for one without."""
        return self.manifest.cross

    def cross_geometry_for(self, kv_dtype: KVDtype | None) -> KVGeometry | None:
        """The geometry of the cross pools; None for a model without. Raises ValueError."""
        if self.cross is None:
            return None
        dtype = self.geometry_for(kv_dtype).dtype
        return dataclasses.replace(self.cross.geometry, dtype=dtype)

    @property
    def encoder_path(self) -> Path:
        """The encoder of a model with cross-attention."""
        return self.path / ENCODER

    @property
    def graph_paths(self) -> tuple[Path, ...]:
        """Every graph that runs, with pools of the bundle's own KV dtype."""
        paths = [self.decoder_path]
        if self.vision_path is not None:
            paths.append(self.vision_path)
        if self.cross is not None:
            paths += [self.encoder_path, self.path / self.cross.graphs[self.cross.geometry.dtype]]
        return tuple(paths)

    @property
    def tokenizer_path(self) -> Path:
        """A ``tokenizer.json`` for the ``tokenizers`` library."""
        return self.path / TOKENIZER

    @property
    def weights_sha256(self) -> str:
        """One digest over everything that decides the model's numbers: its identity in caches."""
        digest = hashlib.sha256()
        for name, entry in sorted(self.manifest.files.items()):
            digest.update(f"{name}={entry.sha256}\n".encode())
        return digest.hexdigest()

    def embed(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Token ids (n,) -> embedding rows (n, hidden_size) float32. Raises ValueError."""
        ids = np.asarray(token_ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(f"token_ids must be (n,) integers, got {ids.shape} {ids.dtype}")
        if ids.size and (ids.min() < 0 or ids.max() >= self.manifest.vocab_size):
            raise ValueError(
                f"token ids must lie in 0 to {self.manifest.vocab_size - 1}, "
                f"got {ids.min()} to {ids.max()}"
            )
        return self.embed_rows[ids].astype(np.float32)

    def prompts(self) -> Prompts:
        """The chat template cut into the parts a session appends. Raises BundleError."""
        try:
            return Prompts.from_manifest(self.chat_template, self.manifest)
        except BundleError as error:
            raise BundleError(f"{self.path}: {error}") from None


def _read_manifest(folder: Path) -> str:
    try:
        is_folder, exists = folder.is_dir(), folder.exists()
    except OSError as error:
        raise BundleError(f"cannot be read ({error.strerror})") from None
    if not is_folder:
        what = "is a file" if exists else "does not exist"
        raise BundleError(f"expected a bundle folder, it {what}")
    path = folder / MANIFEST
    if not path.is_file():
        raise BundleError(f"not a bundle, {MANIFEST} is missing")
    if path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise BundleError(f"{MANIFEST}: larger than {_MAX_MANIFEST_BYTES} bytes")
    return _read_text(path)


def _read_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise BundleError(f"{path.name}: expected UTF-8 text, byte {error.start} is not") from None
    except OSError as error:
        raise BundleError(f"{path.name}: cannot be read ({error.strerror})") from None


def _check_file(path: Path, entry: FileEntry, *, verify: bool) -> None:
    if not path.is_file():
        raise BundleError(f"{path.name}: listed in {MANIFEST} but missing")
    size = path.stat().st_size
    if size != entry.size_bytes:
        raise BundleError(f"{path.name}: expected {entry.size_bytes} bytes, got {size}")
    if verify and file_sha256(path) != entry.sha256:
        raise BundleError(f"{path.name}: SHA-256 differs from {MANIFEST}, the file was changed")


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file. Raises BundleError when it cannot be read."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_HASH_CHUNK_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
    except OSError as error:
        raise BundleError(f"{path.name}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def _map_rows(path: Path, shape: tuple[int, int]) -> NDArray[np.floating]:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BundleError(f"{path.name}: not a NumPy array file ({error})") from None
    if not isinstance(rows, np.ndarray) or rows.dtype not in (np.float16, np.float32):
        raise BundleError(f"{path.name}: expected a float16 or float32 array")
    if rows.shape != shape:
        raise BundleError(f"{path.name}: expected shape {shape}, got {rows.shape}")
    return rows
