"""The ONNX Runtime executor for CUDA, all of it but the GPU: it runs on the CPU provider here, its
pools in the memory of a GPU made of host memory. Against the CPU executor: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekv import native
from edgekv.bundle import Bundle
from edgekv.cache import PageCache
from edgekv.errors import ExecutorError
from edgekv.executors.base import DecoderExecutor
from edgekv.executors.ort_cpu import OrtDecoder
from edgekv.executors.ort_cuda import CUDA, OrtCudaDecoder, Place
from edgekv.executors.ort_session import CPU, OrtVision
from edgekv.generate import Runner
from tests.executors.host_cuda import HostCuda

NUM_PAGES = 40


@pytest.fixture
def bundle(bundle_path: Path) -> Bundle:
    return Bundle.open(bundle_path)


@pytest.fixture
def cuda() -> HostCuda:
    return HostCuda()


@pytest.fixture
def decoder(bundle: Bundle, cuda: HostCuda) -> Iterator[OrtCudaDecoder]:
    place = Place(CPU, "cpu", native.ort_library_path, lambda: cuda)
    made = OrtCudaDecoder(bundle.decoder_path, bundle.geometry, num_pages=NUM_PAGES, place=place)
    yield made
    made.close()


@pytest.fixture
def other(bundle: Bundle) -> Iterator[OrtDecoder]:
    made = OrtDecoder(bundle.decoder_path, bundle.geometry, num_pages=NUM_PAGES)
    yield made
    made.close()


def fed(decoder: DecoderExecutor, bundle: Bundle) -> list[np.ndarray[Any, Any]]:
    """Logits of a few pieces, one of them on a fork that copies a page."""
    runner = Runner(decoder, PageCache(bundle.geometry, NUM_PAGES, max_positions=528))
    sequence = runner.cache.open()
    rng = np.random.default_rng(0)

    def rows(count: int) -> np.ndarray[Any, Any]:
        return bundle.embed(rng.integers(0, bundle.manifest.vocab_size, count))

    logits = [runner.feed(sequence, "text", rows(count)) for count in (40, 3, 1)]
    fork = sequence.fork()
    logits += [runner.feed(fork, "text", rows(2), extend=True) for _ in range(3)]
    logits.append(runner.feed(sequence, "text", rows(5), extend=True))
    logits.append(decoder.read_pages(sequence.table.page_ids))
    return logits


def test_same_bits_as_on_the_cpu(
    decoder: OrtCudaDecoder, other: OrtDecoder, bundle: Bundle
) -> None:
    for ours, theirs in zip(fed(decoder, bundle), fed(other, bundle), strict=True):
        valid = ours == ours  # slots that were never written: NaN here, zeros there
        np.testing.assert_array_equal(ours[valid], theirs[valid])
        assert valid.mean() > 0.5


def test_steps_write_in_place(decoder: OrtCudaDecoder, cuda: HostCuda, bundle: Bundle) -> None:
    before = {address: block.copy() for address, block in cuda.blocks.items()}
    fed(decoder, bundle)
    changed = [not np.array_equal(cuda.blocks[address], old) for address, old in before.items()]
    assert changed.count(True) >= 2 * bundle.geometry.num_layers
    assert set(cuda.blocks) == set(before)


def test_closed(decoder: OrtCudaDecoder, cuda: HostCuda, bundle: Bundle) -> None:
    decoder.close()
    assert not cuda.blocks
    with pytest.raises(ExecutorError, match="the decoder executor is closed"):
        fed(decoder, bundle)


def test_too_little_memory(bundle: Bundle) -> None:
    cuda = HostCuda(limit=100_000)
    place = Place(CPU, "cpu", native.ort_library_path, lambda: cuda)
    with pytest.raises(ExecutorError, match="allocating"):
        OrtCudaDecoder(bundle.decoder_path, bundle.geometry, num_pages=NUM_PAGES, place=place)
    assert not cuda.blocks


def test_no_silent_fall_back_to_the_cpu(bundle_path: Path) -> None:
    with pytest.raises(ExecutorError, match="CUDAExecutionProvider"):
        OrtVision(bundle_path / "vision.onnx", providers=CUDA)
