"""What adding up attention costs: a question's step on a graph that cannot, one that does not now,
and one that does.

Owns: the comparison, on one full context. Does not know: rules, streams, questions.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import thread_time

import numpy as np

from edgekv import names
from edgekv.bundle import Bundle
from edgekv.cache import PageCache, Sequence
from edgekv.executors import choose_device, create_decoder
from edgekv.inputs import InputEncoder
from edgekv.types import SegmentKind

_QUESTION = 16  # tokens
_ROUNDS = 200


def mass_cost(bundle: Bundle) -> dict[str, float]:
    """Milliseconds of processor time of a step of 16 tokens, medians: ``mass_on_ms``,
    ``mass_off_ms`` (weights are 0) and ``mass_absent_ms`` (left out without the ``onnx`` library,
    which takes the node's inputs away), and the ratios to the last of those that is there."""
    inputs = InputEncoder(bundle, None)
    frame = max(bundle.tokens_per_image, 1)
    start = max(len(inputs.start_ids(None)), 1)
    geometry = bundle.geometry
    room = bundle.manifest.max_context_tokens - start - 2 * _QUESTION
    pages = geometry.pages_for(start) + geometry.pages_for(_QUESTION)
    cache = PageCache(geometry, pages + room // frame * geometry.pages_for(frame))
    sequence = cache.open()
    _lay_out(cache, sequence, "system", start)
    for _ in range(room // frame):
        _lay_out(cache, sequence, "frame", frame)
    with tempfile.TemporaryDirectory() as folder:
        graphs = {"on": bundle.decoder_path, "off": bundle.decoder_path}
        if bundle.manifest.mass_layer is None:
            return {}
        if (stripped := _without_mass(bundle.decoder_path, Path(folder))) is not None:
            graphs["absent"] = stripped
        times = _time(cache, sequence, graphs, bundle.manifest.hidden_size)
    figures = {f"mass_{name}_ms": value for name, value in times.items()}
    if "absent" in times:
        figures["mass_off_ratio"] = times["off"] / times["absent"]
        figures["mass_on_ratio"] = times["on"] / times["absent"]
    else:
        figures["mass_on_ratio"] = times["on"] / times["off"]
    return figures


def _time(
    cache: PageCache, sequence: Sequence, graphs: dict[str, Path], hidden: int
) -> dict[str, float]:
    """Milliseconds of each, taken in turns so that other work on the machine meets them alike."""
    decoders = {
        name: create_decoder(
            choose_device("cpu"),
            path,
            cache.geometry,
            num_pages=cache.counts.num_pages,
            num_threads=1,
        )
        for name, path in graphs.items()
    }
    embeds = np.random.default_rng(0).standard_normal((_QUESTION, hidden)).astype(np.float32)
    times: dict[str, list[float]] = {name: [] for name in decoders}
    try:
        for _ in range(_ROUNDS):
            for name, decoder in decoders.items():
                weight = float(name == "on")
                with cache.begin_step(
                    [sequence.append("text", _QUESTION, mass_weight=weight)]
                ) as step:
                    began = thread_time()
                    decoder.run(embeds, step.tables, np.array([_QUESTION - 1]))
                    if weight:
                        decoder.take_mass(sequence.table.page_ids)
                    times[name].append(1e3 * (thread_time() - began))
    finally:
        for decoder in decoders.values():
            decoder.close()
    return {name: float(np.median(values)) for name, values in times.items()}


def _lay_out(cache: PageCache, sequence: Sequence, kind: SegmentKind, num_tokens: int) -> None:
    with cache.begin_step([sequence.append(kind, num_tokens)]) as step:
        step.commit()


def _without_mass(path: Path, folder: Path) -> Path | None:
    """The same graph whose nodes have no ``page_mass``; None without the ``onnx`` library."""
    try:
        import onnx
    except ImportError:
        return None
    model = onnx.load(path)
    graph = model.graph
    for node in graph.node:
        if names.PAGE_MASS in node.input:
            del node.input[list(node.input).index(names.PAGE_MASS) :]
            while not node.input[-1]:
                del node.input[-1]
            del node.output[-1]
    gone = (names.PAGE_MASS, names.MASS_WEIGHTS, names.PAGE_MASS_OUT)
    for values in (graph.input, graph.output):
        for value in [value for value in values if value.name in gone]:
            values.remove(value)
    onnx.save(model, folder / path.name)
    return folder / path.name
