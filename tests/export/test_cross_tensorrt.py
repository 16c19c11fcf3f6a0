"""Models with cross-attention through NVIDIA's parser and builder (TensorRT-RTX), without a GPU:
all of their graphs but the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorrt_rtx_bindings", reason="pip install 'edgekv[gpu-test]'")

from edgekv import names
from edgekv.bundle import Bundle, CrossSettings
from edgekv.executors import EngineSource, decoder_signature, encoder_signature
from edgekv.executors.signature import Signature
from edgekv.executors.tensorrt.jobs import encoder_job
from edgekv.executors.tensorrt.profiles import Profile, Range, StepLimits, decoder_profiles
from edgekv.export.build import ExportOptions, export_bundle
from tests.executors.host_cuda import HostCuda
from tests.export import rtx
from tests.export.cross_models import save_mllama, save_whisper

trt: Any = rtx.stand_in()

from edgekv.executors.tensorrt.build import (  # noqa: E402 - after the stand-in
    BuildOptions,
    Log,
    build_engine,
    create_network,
    network_signature,
)
from edgekv.executors.tensorrt.running import provide_engine  # noqa: E402

SAVE = {"mllama": save_mllama, "whisper": save_whisper}
FIXTURES = {"mllama": "llama", "whisper": "whisper"}
PLENTY = 10_000  # bytes that an engine of these sizes has more of


@pytest.fixture(scope="module", params=["mllama", "whisper", "mllama-20-fp16", "whisper-20-fp16"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """In float32 with opset 23, as other tests have them exported, or as said."""
    model, *said = request.param.split("-")
    if not said:
        exported: tuple[Bundle, Any] = request.getfixturevalue(FIXTURES[model])
        return exported[0]
    opset, weights = said
    root = tmp_path_factory.mktemp(request.param)
    SAVE[model](root / "hf")
    options = ExportOptions(weights=weights, opset=int(opset))
    export_bundle(root / "hf", root / "bundle", options, lambda _: None)
    return Bundle.open(root / "bundle")


def cross_of(bundle: Bundle) -> CrossSettings:
    assert bundle.cross is not None
    return bundle.cross


def cut_graph(graph: Path, target: Path) -> tuple[Signature, int]:
    """What is left of a graph without its operators, and how many there were."""
    num_cut = rtx.cut_at_operator(graph, target)
    network = create_network(trt.Builder(log := Log()))
    parser = trt.OnnxParser(network, log)
    assert parser.parse_from_file(str(target)), parser.get_error(0).desc()
    return network_signature(network), num_cut


def test_every_node_but_the_operator_is_accepted(bundle: Bundle, tmp_path: Path) -> None:
    """In the graphs of all KV dtypes."""
    cross = cross_of(bundle)
    num_cross = cross.geometry.num_layers
    expected = dict.fromkeys(bundle.manifest.decoders.values(), bundle.geometry.num_layers)
    expected = {graph: own + num_cross for graph, own in expected.items()}
    expected |= dict.fromkeys(cross.graphs.values(), num_cross)
    assert len(expected) == 8
    for graph, num_operators in expected.items():
        refused = rtx.refused_nodes(bundle.path / graph)
        assert {(node.operator, "Plugin not found" in node.reason) for node in refused} == {
            (names.OP_NAME, True)
        }
        # The parser looks no further behind a refused node; without them it reads all of the rest.
        cut = tmp_path / graph
        _, num_cut = cut_graph(bundle.path / graph, cut)
        assert num_cut == len(refused) == num_operators
        assert rtx.refused_nodes(cut) == []
    assert rtx.refused_nodes(bundle.encoder_path) == []


def test_the_encoders_engine_is_built_once(bundle: Bundle, tmp_path: Path) -> None:
    """As the executor asks for it; its attention may be one that has no kernel of its own."""
    cross, seen = cross_of(bundle), list[str]()
    signature = encoder_signature(
        num_states=cross.max_states,
        hidden_size=cross.hidden_size,
        tiles=cross.tiles,
        audio=cross.audio,
    )
    job = encoder_job(bundle.encoder_path, signature)
    source = EngineSource(
        tmp_path,
        bundle.manifest.name,
        bundle.weights_sha256,
        bundle.manifest.weights,
        lambda graph, *_: seen.append(graph),
    )
    engine = bytes(provide_engine(job, source, HostCuda()))
    assert len(engine) > PLENTY
    assert set(seen) == {bundle.encoder_path.name}
    seen.clear()
    assert bytes(provide_engine(job, source, HostCuda())) == engine
    assert not seen


def test_what_surrounds_the_writing_nodes_builds(bundle: Bundle, tmp_path: Path) -> None:
    cross, cut = cross_of(bundle), tmp_path / "cut.onnx"
    signature, _ = cut_graph(bundle.path / cross.graphs[cross.geometry.dtype], cut)
    states = (cross.max_states, cross.hidden_size)
    assert signature.taken[names.ENCODER_STATES] == ("float32", states)
    assert len(signature.given) == 2 * cross.geometry.num_layers
    ranges = {names.ENCODER_STATES: Range(states, states, states)}
    for name, (_, dims) in signature.taken.items():
        if name not in ranges:  # what an operator gives, which nobody reads
            shape = (cross.max_states, dims[1] or 1)
            ranges[name] = Range(shape, shape, shape)
    options = BuildOptions(weights=bundle.manifest.weights)
    engine = build_engine(cut, [Profile("cross", ranges)], signature, options, logger=Log())
    assert len(memoryview(engine)) > PLENTY


def test_decoder_parts_build_for_both_profiles(bundle: Bundle, tmp_path: Path) -> None:
    """With the profiles the runtime uses, and with what the operator gives as inputs."""
    cross, manifest = cross_of(bundle), bundle.manifest
    signature = decoder_signature(
        bundle.geometry,
        hidden_size=manifest.hidden_size,
        vocab_size=manifest.vocab_size,
        page_mass=manifest.mass_layer is not None,
        cross=cross.geometry,
    )
    size = bundle.geometry.page_size
    limits = StepLimits(300, size, 300, num_cross_pages=40)
    cut = tmp_path / "cut.onnx"
    left, _ = cut_graph(bundle.decoder_path, cut)
    profiles = rtx.profiles_of_cut(left, decoder_profiles(signature, limits))
    options = BuildOptions(weights=manifest.weights)
    engine = build_engine(cut, profiles, left, options, logger=Log())
    assert len(memoryview(engine)) > PLENTY
