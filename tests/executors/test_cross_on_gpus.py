"""Models with cross-attention on the executors for GPUs, all of it but the GPU and TensorRT:
sessions say what they say on the CPU, bit by bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgekv
from edgekv import names
from edgekv.bundle import Bundle
from edgekv.cache import PageCache
from edgekv.errors import ExecutorError
from edgekv.estimate import estimate
from edgekv.executors import EngineSource, create_decoder, create_encoder
from edgekv.executors.device_pools import DevicePools
from edgekv.executors.host_pools import HostPools
from edgekv.executors.ort_cpu import OrtDecoder
from edgekv.executors.ort_cross import OrtCross
from edgekv.executors.signature import decoder_signature, encoder_signature
from edgekv.executors.tensorrt import open as tensorrt_executor
from edgekv.executors.tensorrt.decoder import TensorRTDecoder
from edgekv.executors.tensorrt.jobs import decoder_job
from edgekv.executors.tensorrt.profiles import StepLimits
from edgekv.types import CrossTables
from tests.executors.host_cuda import HostCuda, HostRunning
from tests.executors.host_gpus import HostGpus
from tests.session.cross_bundle import TILES, Kind, save_cross_bundle


def inputs(kind: Kind) -> Callable[[int], Any]:
    """Pictures of different sizes, hence numbers of tiles, or sounds."""
    rng = np.random.default_rng(0)
    if kind == "sounds":
        return lambda k: edgekv.Sound(rng.normal(0, 0.3, 1920).astype(np.float32), float(k))
    shapes = [(9, 5, 3), (4, 4, 3), (5, 9, 3), (9, 5, 3)]
    return lambda k: edgekv.Frame(rng.integers(0, 256, shapes[k], np.uint8), float(k), k)


def life(bundle: Path, kind: Kind, device: str, file: Path) -> list[Any]:
    """What a session says about what it is given, before and after it was saved."""
    said: list[Any] = []
    make = inputs(kind)
    with edgekv.load(bundle, kv_budget="64KiB", device=device, num_threads=1) as model:
        session = model.session(instructions="Look." if kind == "pictures" else None)
        for k in range(4):
            session.push(make(k))
            said.append(session.logits("What is it?"))
            said.append(np.array(session.ask("And now?").token_ids))
        session.save(file)
        session.close()
        with model.restore(file) as restored:
            said.append(restored.logits("What is it?"))
    return said


@pytest.mark.parametrize("kind", ["pictures", "sounds"])
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_sessions_say_the_same_as_on_the_cpu(
    gpus: HostGpus, tmp_path: Path, device: str, kind: Kind
) -> None:
    bundle = save_cross_bundle(tmp_path / "bundle", kind, "float16")
    ours = life(bundle, kind, device, tmp_path / "a")
    assert gpus.made
    assert not any(gpu.blocks or gpu.num_graphs for gpu in gpus.made)
    for mine, other in zip(ours, life(bundle, kind, "cpu", tmp_path / "b"), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert not np.array_equal(ours[0], ours[2])  # what is given is attended to
    np.testing.assert_array_equal(ours[-3], ours[-1])


def test_decoding_on_tensorrt_sends_no_cross_table(gpus: HostGpus, tmp_path: Path) -> None:
    """What a token sees does not change within an answer; its steps are launches of one graph."""
    bundle = save_cross_bundle(tmp_path / "bundle", "pictures", "float16")
    with edgekv.load(bundle, kv_budget="64KiB", device="tensorrt") as model:
        session = model.session()
        session.push(inputs("pictures")(0))
        cross_gpu, decoder_gpu, _ = gpus.made
        before = len(cross_gpu.copied)
        options = edgekv.SamplingOptions(max_new_tokens=12)
        assert len(session.ask("What is it?", options).token_ids) == 12
        assert len(cross_gpu.copied) == before
        assert decoder_gpu.num_launches > 8
        decode, _ = gpus.engines["decoder.float16.onnx"].contexts
        assert decode.num_plain_runs <= 4  # two a width of the page table: a run, and its recording
        entry_bytes = 8  # of a cross page table; those of this one have 12
        assert entry_bytes not in decoder_gpu.copied


def test_a_picture_that_cannot_be_written_costs_itself_only(gpus: HostGpus, tmp_path: Path) -> None:
    bundle = save_cross_bundle(tmp_path / "bundle", "pictures", "float16")
    make = inputs("pictures")
    first, second = make(0), make(1)
    with edgekv.load(bundle, kv_budget="64KiB", device="tensorrt") as model:
        session = model.session()
        session.push(first)
        said = session.logits("What is it?")
        # Both fail as they record their graphs, which launch without asking the context again.
        for graph, what in (("encoder.onnx", "encoder"), ("cross.float16.onnx", "cross")):
            (context,) = gpus.engines[graph].contexts
            context.fail = True
            with pytest.raises(ExecutorError, match=f"the {what} graph failed: no reason"):
                session.push(second)
            context.fail = False
            np.testing.assert_array_equal(session.logits("What is it?"), said)
        session.push(second)
        assert not np.array_equal(session.logits("What is it?"), said)
    assert {running.num_released for running in gpus.engines.values()} == {1}


@pytest.mark.parametrize("gpus", [False], indirect=True)
@pytest.mark.parametrize("short", [0, 1, 2], ids=["cross", "decoder", "encoder"])
def test_too_little_memory_takes_none(
    gpus: HostGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    """A byte less than one of the executors needs."""
    bundle = save_cross_bundle(tmp_path / "bundle", "pictures", "float16")
    edgekv.load(bundle, kv_budget="64KiB", device="tensorrt").close()
    limits = [gpu.most_bytes for gpu in gpus.made]
    limits[short] -= 1
    small: list[HostCuda] = []

    def new() -> HostCuda:
        small.append(HostCuda(limit=limits[len(small)]))
        return small[-1]

    run = tensorrt_executor.gpu().run
    monkeypatch.setattr(tensorrt_executor, "gpu", lambda: tensorrt_executor.Place(new, run))
    with pytest.raises(ExecutorError, match="allocating"):
        edgekv.load(bundle, kv_budget="64KiB", device="tensorrt")
    assert len(small) == short + 1
    assert not any(gpu.blocks for gpu in small)


def test_cross_tables_of_any_width_are_read_whole(tmp_path: Path) -> None:
    """Inputs that take turns, of few pages and of many, in one row and in two: each token sees its
    own and no other's."""
    num_pages, rng = 40, np.random.default_rng(1)
    bundle = Bundle.open(save_cross_bundle(tmp_path / "bundle", "pictures", "float16"))
    assert bundle.cross is not None
    path, geometry, cross = bundle.decoder_path, bundle.geometry, bundle.cross.geometry
    manifest, cuda = bundle.manifest, HostCuda()
    signature = decoder_signature(
        geometry, hidden_size=manifest.hidden_size, vocab_size=manifest.vocab_size, cross=cross
    )
    pools = HostPools(cross, num_pages, cross=True), DevicePools(cuda, cross, num_pages, cross=True)
    every = np.arange(num_pages, dtype=np.int32)
    contents = rng.normal(0, 3, pools[0].read_pages(every).shape).astype(np.float16)
    for pool in pools:
        pool.write_pages(every, contents)
    limits = StepLimits(24, geometry.page_size, 24, 8, 2, num_cross_pages=num_pages)
    job = decoder_job(path, signature, limits)
    ours = TensorRTDecoder(
        HostRunning(job, cuda), job.profiles, cuda, DevicePools(cuda, geometry, 24),
        cross_pools=pools[1], num_rope_axes=geometry.num_rope_axes, vocab_size=manifest.vocab_size,
    )  # fmt: skip
    other = OrtDecoder(
        path, geometry, num_pages=24, num_threads=1, signature=signature, cross_pools=pools[0]
    )
    cache = PageCache(geometry, 24, max_positions=96)
    sequences, said = [cache.open() for _ in range(2)], []
    # Pages that the input of each row of a step has, 0 = it sees none.
    for number, widths in enumerate(
        [[3], [3], [20], [20], [2], [40], [20, 2], [1, 20], [0, 17], [3], [20]]
    ):
        table = np.full((len(widths), max(widths), 2), -1, np.int32)
        for row, width in zip(table, widths, strict=True):
            row[:width, 0] = rng.permutation(num_pages)[:width]
            row[:width, 1] = cross.page_size
        table[0, widths[0] - 1, 1] -= 1
        seen = CrossTables(table, np.maximum(table[:, :, 1], 0).sum(axis=1, dtype=np.int32))
        appends = [one.append("text", 1) for one, _ in zip(sequences, widths, strict=False)]
        with cache.begin_step(appends) as step:
            tables = replace(step.tables, cross=seen)
            rows = bundle.embed(np.arange(len(widths)) + number)
            last = np.arange(len(widths))
            logits = [decoder.run(rows, tables, last) for decoder in (ours, other)]
            step.commit()
        np.testing.assert_array_equal(*logits)
        said.append(logits[0])
    assert np.ptp(np.concatenate(said), axis=0).max() > 0.5  # what is seen matters
    # One row of up to 16 columns, and of up to 32; two of up to 32. One of up to 64 came once.
    assert cuda.num_graphs == 3
    for decoder in (ours, other):
        decoder.close()
    assert set(cuda.blocks) == {address for _, address in pools[1].bindings()}  # its owner's still


def test_inputs_that_an_encoder_does_not_take_are_named(gpus: HostGpus, tmp_path: Path) -> None:
    bundle = Bundle.open(save_cross_bundle(tmp_path / "bundle", "pictures", "float16"))
    signature = encoder_signature(num_states=6, hidden_size=16, tiles=TILES)
    engines = EngineSource(tmp_path, "tiny", "", "fp32")
    encoder = create_encoder("tensorrt", bundle.encoder_path, signature=signature, engines=engines)
    tiles, number = np.ones((2, 3, 4, 4), np.float32), np.array([1], np.int64)
    good = {names.PIXEL_VALUES: tiles, names.ASPECT_RATIO_IDS: number}
    states = encoder.encode(good)
    for wrong, said in (
        ({}, "takes aspect_ratio_ids, pixel_values, got nothing"),
        ({names.PIXEL_VALUES: tiles}, "takes aspect_ratio_ids, pixel_values, got pixel_values"),
        (good | {names.PIXEL_VALUES: tiles[:1]}, r"takes pixel_values \(2, .* float32, got \(1, "),
        (
            good | {names.ASPECT_RATIO_IDS: number.astype(np.int32)},
            r"takes aspect_ratio_ids \(1,\) int64, got \(1,\) int32",
        ),
    ):
        with pytest.raises(ExecutorError, match=f"the encoder engine {said}"):
            encoder.encode(wrong)
    np.testing.assert_array_equal(encoder.encode(good), states)
    encoder.close()
    with pytest.raises(ExecutorError, match="the encoder executor is closed"):
        encoder.encode(good)
    assert not gpus.made[0].blocks


def test_pools_in_another_memory_are_refused(tmp_path: Path) -> None:
    bundle = Bundle.open(save_cross_bundle(tmp_path / "bundle", "pictures", "float16"))
    assert bundle.cross is not None
    graph, geometry = bundle.path / bundle.cross.graphs["float16"], bundle.cross.geometry
    on_cpu = OrtCross(graph, geometry, num_pages=4)
    for device in ("cuda", "tensorrt"):
        with pytest.raises(ExecutorError, match="cross pools of a OrtCross cannot be read here"):
            create_decoder(
                device,  # type: ignore[arg-type]
                bundle.decoder_path,
                bundle.geometry,
                num_pages=4,
                cross=on_cpu,
            )


def test_doctor_counts_every_graph(tmp_path: Path) -> None:
    path = save_cross_bundle(tmp_path / "bundle", "pictures", "float16")
    graphs = {graph.name for graph in Bundle.open(path).graph_paths}
    assert graphs == {"decoder.float16.onnx", "encoder.onnx", "cross.float16.onnx"}
    command = [sys.executable, "-m", "edgekv", "doctor", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in said.splitlines() if "while its engines are built" in line)
    assert line.split()[0] == "TensorRT"


def test_the_states_on_their_way_are_in_the_estimate(tmp_path: Path, bundle_path: Path) -> None:
    """Three copies of 6 states of 16 float32."""
    path = save_cross_bundle(tmp_path / "bundle", "pictures", "float16")
    ours, other = (estimate(Bundle.open(one), "64KiB") for one in (path, bundle_path))
    assert ours.workspace_bytes - other.workspace_bytes == 3 * 6 * 16 * 4
