"""A bundle appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekv.bundle import Bundle
from edgekv.bundle.writer import staged_folder, write_manifest
from edgekv.errors import BundleError
from tests.bundle.conftest import manifest_for, write_files


def write(target: Path, *, replace: bool = False) -> None:
    with staged_folder(target, replace=replace) as folder:
        write_files(folder)
        write_manifest(folder, manifest_for(folder))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writes_a_bundle(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "out")
    assert Bundle.open(tmp_path / "deep" / "out").manifest.name == "hand-made"
    assert names(tmp_path / "deep") == ["out"]
    assert (tmp_path / "deep" / "out").stat().st_mode & 0o777 == 0o755


def test_nothing_appears_when_the_export_fails(tmp_path: Path) -> None:
    def export() -> None:
        with staged_folder(tmp_path / "out") as folder:
            write_files(folder)
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        export()
    assert names(tmp_path) == []


def test_nothing_appears_when_the_bundle_is_not_sound(tmp_path: Path) -> None:
    def export() -> None:
        with staged_folder(tmp_path / "out") as folder:
            write_files(folder)
            write_manifest(folder, manifest_for(folder))
            (folder / "embed.npy").unlink()

    with pytest.raises(BundleError, match=r"embed.npy: listed in bundle.json but missing"):
        export()
    assert names(tmp_path) == []


def test_a_failed_replacement_leaves_the_old_bundle(tmp_path: Path) -> None:
    write(tmp_path / "out")

    def export() -> None:
        with staged_folder(tmp_path / "out", replace=True):
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        export()
    assert Bundle.open(tmp_path / "out").manifest.name == "hand-made"
    assert names(tmp_path) == ["out"]


def test_replaces_only_when_told(tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / "mark").write_text("old")
    with pytest.raises(BundleError, match="--force"):
        write(tmp_path / "out")
    assert (tmp_path / "out" / "mark").exists()
    write(tmp_path / "out", replace=True)
    assert not (tmp_path / "out" / "mark").exists()
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("replace", [False, True])
def test_never_replaces_what_is_not_a_bundle(tmp_path: Path, replace: bool) -> None:
    target = tmp_path / "home"
    target.mkdir()
    (target / "letter.txt").write_text("dear")
    with pytest.raises(BundleError, match="is not a bundle, it is left alone"):
        write(target, replace=replace)
    assert names(target) == ["letter.txt"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert Bundle.open(tmp_path / "out").manifest.name == "hand-made"
