"""The ONNX Runtime executor for CUDA, all of it but the GPU: it runs on the CPU provider here, its
pools in the memory of a GPU made of host memory. Against the CPU executor: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from edgekv import native
from edgekv.bundle import Bundle
from edgekv.cache import PageCache
from edgekv.config import KVDtype
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
    made = make(bundle, cuda)
    yield made
    made.close()


def make(
    bundle: Bundle, cuda: HostCuda, kv_dtype: KVDtype | None = None, **options: int
) -> OrtCudaDecoder:
    path, geometry = bundle.decoder_path_for(kv_dtype), bundle.geometry_for(kv_dtype)
    place = Place(CPU, "cpu", native.ort_library_path, lambda: cuda)
    return OrtCudaDecoder(path, geometry, num_pages=NUM_PAGES, place=place, **options)


def fed(
    decoder: DecoderExecutor, bundle: Bundle, kv_dtype: KVDtype | None = None
) -> list[np.ndarray[Any, Any]]:
    """Logits of a few pieces, one of them on a fork that copies a page."""
    geometry = bundle.geometry_for(kv_dtype)
    runner = Runner(decoder, PageCache(geometry, NUM_PAGES, max_positions=528))
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


@pytest.mark.parametrize("kv_dtype", get_args(KVDtype))
def test_same_bits_as_on_the_cpu(bundle: Bundle, cuda: HostCuda, kv_dtype: KVDtype) -> None:
    path, geometry = bundle.decoder_path_for(kv_dtype), bundle.geometry_for(kv_dtype)
    with (
        closing(make(bundle, cuda, kv_dtype)) as decoder,
        closing(OrtDecoder(path, geometry, num_pages=NUM_PAGES)) as other,
    ):
        *logits, pages = fed(decoder, bundle, kv_dtype)
        *wanted, other_pages = fed(other, bundle, kv_dtype)
    np.testing.assert_array_equal(logits, wanted)
    written = other_pages.view(np.uint8) != 0  # the others were never written: NaN here
    np.testing.assert_array_equal(
        pages.view(np.uint8)[written], other_pages.view(np.uint8)[written]
    )
    assert written.mean() > 0.4


def test_only_what_changed_of_the_table_travels(
    decoder: OrtCudaDecoder, cuda: HostCuda, bundle: Bundle
) -> None:
    runner = Runner(decoder, PageCache(bundle.geometry, NUM_PAGES, max_positions=528))
    sequence = runner.cache.open()
    runner.feed(sequence, "answer", bundle.embed([1] * 60))
    entry_bytes = 4 * (2 + bundle.geometry.num_rope_axes)
    for _ in range(3):
        cuda.copied.clear()
        runner.feed(sequence, "answer", bundle.embed([1]), extend=True)
        assert cuda.copied == [entry_bytes]  # the last page holds a token more


def test_a_step_beyond_the_table_is_refused(bundle: Bundle, cuda: HostCuda) -> None:
    with closing(make(bundle, cuda, max_columns=2)) as decoder:
        runner = Runner(decoder, PageCache(bundle.geometry, NUM_PAGES, max_positions=528))
        with pytest.raises(ExecutorError, match="up to 8 rows of 2 pages, got 1 of 3"):
            runner.feed(runner.cache.open(), "text", bundle.embed([1] * 40))


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
    make(bundle, enough := HostCuda())
    for limit in (100_000, sum(block.nbytes for block in enough.blocks.values()) - 1):
        cuda = HostCuda(limit=limit)
        with pytest.raises(ExecutorError, match="allocating"):
            make(bundle, cuda)
        assert not cuda.blocks


def test_no_silent_fall_back_to_the_cpu(bundle_path: Path) -> None:
    with pytest.raises(ExecutorError, match="CUDAExecutionProvider"):
        OrtVision(bundle_path / "vision.onnx", providers=CUDA)
