"""A manifest is refused with BundleError or is one that a bundle can have, whatever it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import edgekv
from edgekv.bundle import Bundle
from edgekv.errors import BundleError
from tests.forging import forgeries, refusal


def test_only_bundle_errors_come_out(folder: Path) -> None:
    path = folder / "bundle.json"
    manifest, num_refused = json.loads(path.read_text()), 0
    for _, forged in forgeries(manifest, each=8):
        path.write_text(json.dumps(forged))
        opened = refusal(lambda: Bundle.open(folder, verify=False).prompts(), BundleError)
        num_refused += opened is not None
    assert num_refused > 500


def test_only_errors_of_ours_come_out_of_loading(bundle_path: Path, tmp_path: Path) -> None:
    """Also where the manifest alone is right, but not for these files."""
    for file in bundle_path.iterdir():
        (tmp_path / file.name).symlink_to(file)
    path = tmp_path / "bundle.json"
    manifest, num_refused = json.loads(path.read_text()), 0
    path.unlink()
    for name in ("files", "rotations", "generation"):  # their values are checked by now
        del manifest[name]
    whole = json.loads((bundle_path / "bundle.json").read_text())
    for _, forged in forgeries(manifest, each=4):
        path.write_text(json.dumps({**whole, **forged} if isinstance(forged, dict) else forged))
        if refusal(lambda: Bundle.open(tmp_path, verify=False), BundleError) is None:
            num_refused += refusal(lambda: load(tmp_path), edgekv.EdgeKVError) is not None
    assert num_refused > 2


def load(path: Path) -> None:
    with edgekv.load(path, kv_budget="1MiB", num_threads=1) as model:
        model.session().close()


@pytest.mark.parametrize("text", ["", "[]", "{", "\ufeff{}", "[" * 100_000, '{"a":1,"a":2}', "NaN"])
def test_what_is_no_json_object_is_refused(folder: Path, text: str) -> None:
    (folder / "bundle.json").write_text(text)
    with pytest.raises(BundleError) as refused:
        Bundle.open(folder)
    assert len(str(refused.value).splitlines()) == 1
