"""The TensorRT decoder over a GPU made of host memory, against the CPU executor: the same bits.

The graph is the demo decoder; ONNX Runtime plays TensorRT's part (see ``host_cuda``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekv.bundle import Bundle
from edgekv.cache import PageCache
from edgekv.config import KVDtype, KVGeometry
from edgekv.contents import slot_shape
from edgekv.errors import ExecutorError
from edgekv.executors.base import DecoderExecutor
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.ort_cpu import OrtDecoder
from edgekv.executors.signature import decoder_signature
from edgekv.executors.tensorrt.decoder import TensorRTDecoder
from edgekv.executors.tensorrt.jobs import decoder_job
from edgekv.executors.tensorrt.profiles import StepLimits
from edgekv.generate import Runner
from tests.executors.host_cuda import HostContext, HostCuda, HostRunning

NUM_PAGES = 96
QUERY_SIZE = 192  # of the demo model: 6 heads of 32 numbers


@dataclass
class Rig:
    """The decoder under test with all it runs on, and the CPU executor beside it."""

    cuda: HostCuda
    running: HostRunning
    decoder: TensorRTDecoder
    other: OrtDecoder
    bundle: Bundle
    geometry: KVGeometry

    @property
    def contexts(self) -> list[HostContext]:
        return self.running.contexts

    def runners(self) -> tuple[Runner, Runner]:
        """Two runners over caches that do the same."""
        return self.runner(self.decoder), self.runner(self.other)

    def runner(self, decoder: DecoderExecutor) -> Runner:
        cache = PageCache(self.geometry, NUM_PAGES, max_positions=528)
        return Runner(decoder, cache, max_step_tokens=64)


def make(
    bundle: Bundle, cuda: HostCuda, kv_dtype: KVDtype | None = None
) -> tuple[HostRunning, TensorRTDecoder]:
    manifest, geometry = bundle.manifest, bundle.geometry_for(kv_dtype)
    signature = decoder_signature(
        geometry,
        hidden_size=manifest.hidden_size,
        vocab_size=manifest.vocab_size,
        page_mass=True,
    )
    limits = StepLimits(NUM_PAGES, geometry.page_size, NUM_PAGES, max_step_tokens=64, max_rows=2)
    job = decoder_job(bundle.decoder_path_for(kv_dtype), signature, limits)
    running = HostRunning(job, cuda)
    decoder = TensorRTDecoder(
        running,
        job.profiles,
        cuda,
        DevicePools(cuda, geometry, NUM_PAGES, page_mass=True),
        num_rope_axes=geometry.num_rope_axes,
        vocab_size=manifest.vocab_size,
    )
    return running, decoder


def made_rig(bundle_path: Path, kv_dtype: KVDtype | None, *, integrated: bool) -> Iterator[Rig]:
    bundle = Bundle.open(bundle_path)
    geometry = bundle.geometry_for(kv_dtype)
    cuda = HostCuda(integrated=integrated)
    running, decoder = make(bundle, cuda, kv_dtype)
    path = bundle.decoder_path_for(kv_dtype)
    other = OrtDecoder(path, geometry, num_pages=NUM_PAGES, num_threads=1)
    yield Rig(cuda, running, decoder, other, bundle, geometry)
    decoder.close()
    other.close()


@pytest.fixture(params=[False, True], ids=["discrete", "integrated"])
def rig(request: pytest.FixtureRequest, bundle_path: Path) -> Iterator[Rig]:
    yield from made_rig(bundle_path, None, integrated=request.param)


@pytest.fixture(params=["bfloat16", "int8"])
def narrow_rig(request: pytest.FixtureRequest, bundle_path: Path) -> Iterator[Rig]:
    """Pools that NumPy has no dtype for, or that have scales beside them."""
    yield from made_rig(bundle_path, request.param, integrated=False)


def embeds(bundle: Bundle, num_tokens: int, seed: int) -> np.ndarray[Any, Any]:
    ids = np.random.default_rng(seed).integers(0, bundle.manifest.vocab_size, num_tokens)
    return bundle.embed(ids)


def same_logits(rig: Rig, pieces: list[int]) -> None:
    """Feed pieces of these lengths to both; every piece's logits must be the same bits."""
    runners = rig.runners()
    sequences = [runner.cache.open() for runner in runners]
    for number, length in enumerate(pieces):
        rows = embeds(rig.bundle, length, number)
        got, wanted = (
            runner.feed(sequence, "text", rows)
            for runner, sequence in zip(runners, sequences, strict=True)
        )
        np.testing.assert_array_equal(got, wanted)
    assert np.ptp(wanted) > 1  # a model that says nothing would agree with anything


def test_prefill_and_decode(rig: Rig) -> None:
    same_logits(rig, [5, 64, 33, *[1] * 24, 130, *[1] * 8])
    assert rig.cuda.num_launches > 20  # decode steps went through recorded graphs


def test_a_graph_per_shape_is_recorded_at_its_second_step(rig: Rig) -> None:
    same_logits(rig, [1])
    assert (rig.contexts[0].num_plain_runs, rig.cuda.num_graphs) == (1, 0)
    same_logits(rig, [1] * 4)
    # Recording asks the context once more, then it is left alone.
    assert (rig.contexts[0].num_plain_runs, rig.cuda.num_graphs) == (2, 1)
    assert rig.contexts[1].num_plain_runs == 0


def test_graphs_stay_right_when_shapes_alternate(rig: Rig) -> None:
    """Each single token is a segment with a page of its own: 16 entries are passed at once."""
    same_logits(rig, [1] * 15 + [40] + [1] * 8)
    assert rig.cuda.num_graphs == 2
    same_logits(rig, [1] * 6)
    assert rig.cuda.num_graphs == 2


def test_only_what_changed_of_the_table_travels(rig: Rig) -> None:
    runner = rig.runner(rig.decoder)
    sequence = runner.cache.open()
    runner.feed(sequence, "answer", embeds(rig.bundle, 60, 0))
    for number in range(3):
        rig.cuda.copied.clear()
        runner.feed(sequence, "answer", embeds(rig.bundle, 1, number), extend=True)
        entry_bytes = 4 * (2 + rig.bundle.geometry.num_rope_axes)
        assert rig.cuda.copied.count(entry_bytes) == 1  # the last page holds a token more


def test_a_shrunk_table_leaves_nothing_behind(rig: Rig) -> None:
    """A short sequence after a long one: the long one's entries must not be seen."""
    same_logits(rig, [300, 200])
    same_logits(rig, [3, 1, 1, 1])


def test_several_rows_at_once(rig: Rig) -> None:
    logits = []
    for decoder in (rig.decoder, rig.other):
        runner = rig.runner(decoder)
        sequences = [runner.cache.open() for _ in range(2)]
        for number, sequence in enumerate(sequences):
            runner.feed(sequence, "text", embeds(rig.bundle, 9 + number, number))
        for _ in range(3):
            appends = [sequence.append("answer", 1) for sequence in sequences]
            with runner.cache.begin_step(appends) as step:
                rows = embeds(rig.bundle, 2, 7)
                logits.append(decoder.run(rows, step.tables, np.arange(2)))
                step.commit()
    np.testing.assert_array_equal(logits[:3], logits[3:])


def test_attention_on_pages_adds_up(rig: Rig) -> None:
    taken = []
    for decoder in (rig.decoder, rig.other):
        runner = rig.runner(decoder)
        sequence = runner.cache.open()
        for number, length in enumerate([20, 7, 1, 1, 1]):
            append = sequence.append("text", length)
            with runner.cache.begin_step([append]) as step:
                weights = np.array([number / 2], np.float32)
                tables = replace(step.tables, mass_weights=weights)
                decoder.run(embeds(rig.bundle, length, number), tables, np.array([0]))
                step.commit()
        pages = sequence.table.page_ids
        taken.append([decoder.take_mass(pages[1:4]), decoder.take_mass(pages)])
    for ours, theirs in zip(*taken, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    first, second = taken[0]
    assert (first > 0).all()
    assert (second[1:4] == 0).all()  # taken already
    assert second[0] > 0


def test_queries(rig: Rig) -> None:
    assert rig.decoder.shows_queries
    for length in (11, 1, 1, 1):
        shown = []
        for decoder in (rig.decoder, rig.other):
            runner = rig.runner(decoder)
            append = runner.cache.open().append("text", length)
            with runner.cache.begin_step([append]) as step:
                shown.append(decoder.queries(embeds(rig.bundle, length, length), step.tables))
        np.testing.assert_array_equal(*shown)
        assert shown[0].shape == (length, QUERY_SIZE)


def test_pages_travel(rig: Rig) -> None:
    pages_travel(rig)


def test_pools_of_other_dtypes(narrow_rig: Rig) -> None:
    """Steps write and read them in place, and pages move with their scales."""
    same_logits(narrow_rig, [5, 64, 1, 1, 1, 33])
    pages_travel(narrow_rig)


def pages_travel(rig: Rig) -> None:
    same_logits(rig, [40, 1, 1])
    pages = np.array([3, 4, 5, 11, 0], np.int32)
    contents = rig.decoder.read_pages(pages)
    assert contents.shape == (rig.geometry.num_layers, 2, 5, *slot_shape(rig.geometry))
    np.testing.assert_array_equal(rig.decoder.read_values(pages, 1), contents[1, 1])
    other_pages = np.array([40, 20, 21, 22, 30], np.int32)
    rig.decoder.write_pages(other_pages, contents)
    np.testing.assert_array_equal(rig.decoder.read_pages(other_pages), contents)
    rig.decoder.copy_pages(other_pages[1:4], np.array([7, 8, 9], np.int32))
    np.testing.assert_array_equal(
        rig.decoder.read_pages(np.array([9, 8, 7], np.int32)), contents[:, :, [3, 2, 1]]
    )
    rig.other.write_pages(pages, contents)
    np.testing.assert_array_equal(rig.other.read_pages(pages), contents)


def test_pages_of_another_model_are_refused(rig: Rig) -> None:
    pages = np.array([0], np.int32)
    with pytest.raises(ExecutorError, match=r"pages want .* float16, got .* float32"):
        rig.decoder.write_pages(pages, rig.decoder.read_pages(pages).astype(np.float32))


def test_a_step_beyond_the_engine_is_refused(rig: Rig) -> None:
    runner = rig.runner(rig.decoder)
    append = runner.cache.open().append("text", 65)
    with (
        runner.cache.begin_step([append]) as step,
        pytest.raises(ExecutorError, match=r"prefill profile takes inputs_embeds from .*\(65,"),
    ):
        rig.decoder.run(embeds(rig.bundle, 65, 0), step.tables, np.array([64]))
    same_logits(rig, [5, 1])


def test_a_failed_step_leaves_the_next_one_right(rig: Rig) -> None:
    runner = rig.runner(rig.decoder)
    for context in rig.contexts:
        context.fail = True
    with pytest.raises(ExecutorError, match="TensorRT: a decoder step failed: no reason"):
        runner.feed(runner.cache.open(), "text", embeds(rig.bundle, 20, 0))
    for context in rig.contexts:
        context.fail = False
    same_logits(rig, [20, 1, 1, 1])


def test_everything_is_taken_at_construction_and_given_back(rig: Rig) -> None:
    before = set(rig.cuda.blocks)
    same_logits(rig, [70, 1, 1, 1])
    assert set(rig.cuda.blocks) == before
    rig.decoder.close()
    assert (rig.cuda.blocks, rig.cuda.num_graphs, rig.running.num_released) == ({}, 0, 1)
    rig.decoder.close()
    assert rig.running.num_released == 1
    with pytest.raises(ExecutorError, match="the decoder executor is closed"):
        same_logits(rig, [1])


@pytest.mark.parametrize("share", [0.1, 0.9, 0.999])
def test_too_little_memory_takes_none(bundle_path: Path, share: float) -> None:
    bundle, enough = Bundle.open(bundle_path), HostCuda()
    make(bundle, enough)
    cuda = HostCuda(limit=int(share * sum(block.nbytes for block in enough.blocks.values())))
    with pytest.raises(ExecutorError, match="allocating"):
        make(bundle, cuda)
    assert not cuda.blocks
