import os
from pathlib import Path

import pytest

import edgekv
from edgekv.atomic_file import holds_something_else


@pytest.mark.parametrize(
    ("contents", "else_"),
    [(None, False), (b"", False), (b"MAGIC and more", False), (b"RIFF", True)],
)
def test_only_contents_of_another_kind_count(
    tmp_path: Path, contents: bytes | None, else_: bool
) -> None:
    path = tmp_path / "file"
    if contents is not None:
        path.write_bytes(contents)
    assert holds_something_else(path, b"MAGIC") is else_


def test_neither_a_save_nor_a_trace_replaces_a_video(
    session: edgekv.Session, model: edgekv.Model, small_clip: Path
) -> None:
    before = small_clip.read_bytes()
    with pytest.raises(edgekv.EdgeKVError, match="not replaced"):
        session.save(small_clip)
    with pytest.raises(edgekv.EdgeKVError, match="not replaced"):
        model.trace(small_clip)
    assert small_clip.read_bytes() == before


def test_a_pipe_is_nobodys_to_replace(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert holds_something_else(pipe, b"MAGIC")
    assert not holds_something_else(tmp_path / "not there", b"MAGIC")
