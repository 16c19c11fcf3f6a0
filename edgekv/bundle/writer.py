"""Writing a bundle: fill a folder beside the target, then move it into place in one step.

Owns: the temporary folder, the hashes, ``bundle.json``.
Guarantees: the target path shows either what stood there before or a complete bundle that
``Bundle.open`` accepts; a folder that is not a bundle is never replaced.
Does not know: where the files' contents come from.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgekv.bundle.manifest import MANIFEST, FileEntry, Manifest
from edgekv.bundle.reader import Bundle, file_sha256
from edgekv.checks import path_of
from edgekv.errors import BundleError


@contextmanager
def staged_folder(target: str | os.PathLike[str], *, replace: bool = False) -> Iterator[Path]:
    """A new folder to fill; it becomes ``target`` when the block ends, and vanishes if it raises.

    The block ends with ``write_manifest``. ``replace=True`` allows an existing bundle at ``target``
    to be replaced. Raises BundleError.
    """
    path = path_of(target, "target").absolute()
    check_target(path, replace=replace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise BundleError(f"{path}: cannot be written ({error.strerror})") from None
    try:
        staging.chmod(0o755)  # mkdtemp makes it private, a bundle is to be shared
        yield staging
        Bundle.open(staging)
        _move(staging, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_target(target: Path, *, replace: bool) -> None:
    """Raise BundleError unless a bundle may be written to ``target``."""
    if not target.exists():
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    if not (target / MANIFEST).is_file():
        raise BundleError(f"{target}: exists and is not a bundle, it is left alone")
    if not replace:
        raise BundleError(f"{target}: a bundle is already there, use --force to replace it")


def hash_files(folder: Path) -> dict[str, FileEntry]:
    """What ``bundle.json`` must say about each file that lies in ``folder``."""
    return {
        path.name: FileEntry(sha256=file_sha256(path), size_bytes=path.stat().st_size)
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``bundle.json``, the last file of a bundle."""
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")


def _move(staging: Path, target: Path) -> None:
    if not target.exists():
        staging.rename(target)
        return
    old = staging.with_name(f"{staging.name}.old")
    target.rename(old)
    try:
        staging.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)
