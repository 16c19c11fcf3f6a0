"""Pictures of other libraries: shared where the CPU can read them, copied and counted elsewhere.

PyTorch's own arrays are in tests/export/test_torch_frames.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import edgekv
from edgekv.media.arrays import host_array

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)


class OnCpu:
    """An array of a library NumPy does not know, in memory of the given kind that it can read."""

    def __init__(self, pixels: np.ndarray = PIXELS, kind: int = 1) -> None:
        self.pixels, self.kind = pixels, kind

    def __dlpack__(self, **options: Any) -> Any:
        return self.pixels.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0


class OnGpu(OnCpu):
    """Its memory cannot be read; ``cpu`` brings it, as PyTorch's does."""

    def __init__(self, pixels: np.ndarray = PIXELS, kind: int = 2) -> None:
        super().__init__(pixels, kind)

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("this memory is on a GPU")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 1

    def cpu(self) -> OnCpu:
        return OnCpu(self.pixels.copy())


class Standard(OnCpu):
    """On a GPU, and knows the standard's arguments only."""

    def __dlpack__(self, **options: Any) -> Any:
        assert options["dl_device"] == (1, 0)
        assert options["copy"]
        return self.pixels.copy().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class Stubborn(OnGpu):
    cpu = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name == "cpu":
            raise AttributeError
        return super().__getattribute__(name)


@pytest.mark.parametrize("kind", [1, 3, 13])
def test_memory_the_cpu_reads_is_shared(kind: int) -> None:
    host = host_array(OnCpu(kind=kind))
    assert host.copied_from == ""
    assert np.shares_memory(host.array, PIXELS)


def test_numpy_stays_what_it_is() -> None:
    assert host_array(PIXELS).array is PIXELS


@pytest.mark.parametrize(
    ("make", "where"),
    [(OnGpu, "CUDA 1"), (Standard, "CUDA 0"), (lambda: OnGpu(kind=99), "device type 99 1")],
)
def test_gpu_memory_is_copied_and_said_so(make: Callable[[], OnCpu], where: str) -> None:
    host = host_array(make())
    assert host.copied_from == where
    np.testing.assert_array_equal(host.array, PIXELS)


def test_what_cannot_be_brought_says_why() -> None:
    with pytest.raises(
        ValueError, match=r"cannot read the picture, a .*Stubborn: this memory is on a GPU"
    ):
        host_array(Stubborn())


def test_push_takes_them(session: edgekv.Session, caplog: pytest.LogCaptureFixture) -> None:
    """The same picture three times: the context must be the same as with three NumPy arrays."""
    caplog.set_level(logging.INFO)
    with session.fork() as other:
        for time_s, picture in enumerate((OnCpu(), OnGpu(), OnGpu())):
            session.push(picture, time_s=time_s)
            other.push(PIXELS, time_s=time_s)
        np.testing.assert_array_equal(session.logits("What?"), other.logits("What?"))
        assert session.stats().num_copied_frames == 2
        assert other.stats().num_copied_frames == 0
    lines = [record.getMessage() for record in caplog.records if "copied" in record.getMessage()]
    assert lines == ["frames on CUDA 1 are copied to the CPU, where they are resized"]


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (PIXELS.transpose(2, 0, 1), r"got \(3, 30, 40\) uint8: the channels must come last"),
        (PIXELS.astype(np.float32), r"got \(30, 40, 3\) float32$"),
        (PIXELS[..., 0], r"got \(30, 40\) uint8$"),
        (PIXELS[:0], r"got \(0, 40, 3\) uint8$"),
    ],
)
def test_wrong_pictures_are_refused_in_one_line(
    session: edgekv.Session, pixels: np.ndarray, message: str
) -> None:
    for picture in (pixels, OnCpu(pixels), OnGpu(pixels)):
        with pytest.raises(ValueError, match=rf"want \(height, width, 3\) uint8 RGB, {message}"):
            session.push(picture, time_s=0.0)
    assert session.stats().num_frames == 0
