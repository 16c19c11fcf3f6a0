"""What is shared with the GPU, and whether a build fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekv.errors import BudgetError, ExecutorError
from edgekv.executors.cuda import DeviceInfo
from edgekv.executors.tensorrt.memory import check_build, graph_bytes
from edgekv.executors.twin import Twin, choose_sharing
from tests.executors.host_cuda import HostCuda

GIB = 2**30


def test_sharing_comes_with_its_reason() -> None:
    orin = choose_sharing(DeviceInfo("Orin", (8, 7), True, 8 * GIB))
    card = choose_sharing(DeviceInfo("RTX 4090", (8, 9), False, 24 * GIB))
    assert (orin.kind, orin.reason) == ("mapped", "Orin shares the CPU's memory: read in place")
    assert (card.kind, card.reason) == ("copied", "RTX 4090 has memory of its own: one copy a step")


def test_a_copied_twin_is_behind_until_its_upload_ran() -> None:
    cuda = HostCuda()
    twin = Twin(cuda, 1024, mapped=False)
    device = cuda.blocks[twin.address]
    twin.host[:] = np.arange(1024, dtype=np.uint16).view(np.uint8)[:1024]
    twin.upload(100, 200)
    assert (device == 0xFF).all()
    cuda.synchronise()
    np.testing.assert_array_equal(device[100:200], twin.host[100:200])
    assert (device[:100] == 0xFF).all()
    assert (device[200:] == 0xFF).all()
    device[:50] = 7
    twin.download(50)
    cuda.synchronise()
    assert (twin.host[:50] == 7).all()
    twin.free()
    assert not cuda.blocks


def test_a_mapped_twin_is_the_same_memory() -> None:
    cuda = HostCuda(integrated=True)
    twin = Twin(cuda, 64, mapped=True)
    assert twin.address == twin.host.ctypes.data
    twin.upload(0, 64)
    twin.download(64)
    assert not cuda.copied


def test_a_buffer_that_is_written_too_early_does_not_pass() -> None:
    """So that every test over this GPU would fail if a step were sent before the last one ran."""
    cuda = HostCuda()
    twin = Twin(cuda, 64, mapped=False)
    twin.host[:] = 1
    twin.upload(0, 64)
    twin.host[5] = 2
    with pytest.raises(AssertionError, match="overwritten before it was copied"):
        cuda.synchronise()


def test_half_a_twin_is_none() -> None:
    cuda = HostCuda(limit=100)
    with pytest.raises(ExecutorError):
        Twin(cuda, 64, mapped=False)
    assert not cuda.blocks


def test_builds_need_four_times_the_weights() -> None:
    check_build("decoder.onnx", GIB, 4 * GIB)
    with pytest.raises(
        BudgetError,
        match=r"building the engine of decoder.onnx takes about 4.0 GiB \(4 times its weights\), "
        r"3.9 GiB are available",
    ):
        check_build("decoder.onnx", GIB, 4 * GIB - 1)


def test_weights_count_for_the_graphs_of_every_kv_dtype(tmp_path: Path) -> None:
    for name, size in (("decoder.onnx", 10), ("decoder.int8-kv.onnx", 20), ("vision.onnx", 5)):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "decoder.onnx.data").write_bytes(bytes(1000))
    found = [graph_bytes(tmp_path / name) for name in ("decoder.onnx", "decoder.int8-kv.onnx")]
    assert found == [1010, 1020]
    assert graph_bytes(tmp_path / "vision.onnx") == 5
