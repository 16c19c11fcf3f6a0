"""The C++ example: it links, refuses what is wrong, and its page table does what the cache does."""

from __future__ import annotations

import importlib.util
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekv.cache import PageCache, Sequence
from edgekv.config import KVGeometry
from edgekv.errors import EdgeKVError
from tests.plugin.conftest import ROOT, Build, build, run

PAGES, SIZE, COLUMNS = 40, 4, 32


class Ours:
    """A sequence of edgekv's cache, driven by the example's operations."""

    def __init__(self) -> None:
        geometry = KVGeometry(1, 1, 1, SIZE, "float32", 1)
        self.cache = PageCache(geometry, PAGES, max_pages=COLUMNS)
        self.sequence: Sequence = self.cache.open()

    def append(self, count: int, *, extend: bool) -> dict[str, list[int]] | None:
        """One step's arrays, or None when it does not fit."""
        try:
            append = self.sequence.append("text", count, extend=extend)
        except EdgeKVError:
            return None
        step = self.cache.begin_step([append])
        tables = step.tables
        step.commit()
        table = tables.page_table[0]
        used = table[table[:, 0] >= 0]
        return {
            "offsets": (tables.slot_mapping % SIZE).tolist(),
            "limits": tables.kv_limits.tolist(),
            "indices": tables.query_indices.tolist(),
            "positions": np.asarray(tables.position_ids).reshape(-1).tolist(),
            "valid": used[:, 1].tolist(),
            "shifts": used[:, 2].tolist(),
        }


def read(line: str) -> dict[str, list[int]] | None:
    """A line of edgekv_page_table_check; pages have other ids there, so offsets are kept."""
    if line == "full":
        return None
    slots, limits, indices, positions, table, _ = (
        [int(word) for word in part.split()] for part in line.split("|")
    )
    pages, valid, shifts = table[::3], table[1::3], table[2::3]
    assert len(set(pages)) == len(pages)
    ends = np.cumsum(valid)
    for slot, index in zip(slots, indices, strict=True):  # a token lies where the table says
        assert slot // SIZE == pages[int(np.searchsorted(ends, index, side="right"))]
    return {
        "offsets": [slot % SIZE for slot in slots], "limits": limits, "indices": indices,
        "positions": positions, "valid": valid, "shifts": shifts,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_random_streams(built: Build, seed: int) -> None:
    """Segments come, go on and leave, until pages or columns run out and beyond."""
    rng = random.Random(seed)  # noqa: S311 - not a secret
    ours = Ours()
    lines, wanted = [f"{PAGES} {SIZE} {COLUMNS}"], []
    for number in range(300):
        dropping = number > 0 and rng.random() < 0.3 and ours.sequence.num_segments > 1
        if dropping:
            lines.append("d 1")
            ours.sequence.drop([ours.sequence.segments[1].id])
            continue
        extend = number > 0 and rng.random() < 0.5
        count = rng.randint(1, 11)
        lines.append(f"{'c' if extend else 'a'} {count}")
        wanted.append(ours.append(count, extend=extend))
    result = subprocess.run(
        [str(built.page_table_check)],
        input="\n".join(lines), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[Any] = [read(line) for line in result.stdout.splitlines()]
    assert found == wanted
    assert None in wanted


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory, fake_kernels: Path) -> Path:
    """The program, linked: its TensorRT is TensorRT-RTX, which has the same functions and needs no
    GPU for them; its CUDA runtime is one that finds no device."""
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("pip install 'edgekv[gpu-test]'")
    folder = tmp_path_factory.mktemp("decode")
    (tensorrt,) = Path(spec.submodule_search_locations[0]).glob("libtensorrt_rtx.so*")
    cudart = folder / "libcudart.so"
    source = Path(__file__).with_name("cudart_without_a_gpu.c")
    headers = ROOT / "plugins/tensorrt/no_cuda"
    made = run(["cc", "-shared", "-fPIC", "-I", str(headers), "-o", str(cudart), str(source)])
    assert made.returncode == 0, made.stderr
    made_of = (f"-DEDGEKV_NVINFER={tensorrt}", f"-DEDGEKV_CUDART={cudart}")
    linked = build(folder / "build", fake_kernels, *made_of, targets=("edgekv_decode",))
    return linked.folder / "plugins/examples/edgekv_decode"


def test_it_says_how_it_is_called(decode: Path) -> None:
    done = run([str(decode), "plugin.so", "decoder.engine", "embed.npy"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: decode PLUGIN.so ENGINE embed.npy NUM_PAGES TOKEN...\n"


def test_a_plugin_that_is_not_there(decode: Path, tmp_path: Path) -> None:
    """As far as it goes without a GPU: TensorRT's registry is asked, and says no."""
    missing = str(tmp_path / "none.so")
    done = run([str(decode), missing, "decoder.engine", "embed.npy", "8", "1"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "the plugin cannot be loaded"
