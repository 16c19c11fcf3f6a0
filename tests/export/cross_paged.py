"""The graphs of a model with cross-attention driven by hand, over shuffled pages full of NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort

from edgekv import names
from edgekv.bundle import Bundle
from tests.export.paged import PagedDecoder, Row, open_graph

Array = np.ndarray[Any, Any]


@dataclass
class Source:
    """An input whose keys and values lie in pages."""

    pages: list[int]
    num_states: int


@dataclass
class SeeingRow(Row):
    """A sequence and the input that its next tokens see."""

    source: Source | None = None


class CrossDecoder(PagedDecoder):
    """Steps of an exported decoder whose cross-attention reads pages that ``write`` filled."""

    def __init__(self, bundle: Bundle, *, page_size: int = 4, num_pages: int = 64) -> None:
        super().__init__(bundle.decoder_path, bundle.geometry, page_size=page_size)
        cross = bundle.manifest.cross
        assert cross is not None
        self.encoder = open_graph(bundle.path / "encoder.onnx")
        self.writer = open_graph(bundle.path / cross.graphs[cross.geometry.dtype])
        shape = (num_pages, cross.geometry.num_kv_heads, page_size, cross.geometry.head_dim)
        self.max_states = cross.max_states
        self.cross_pools: dict[str, ort.OrtValue] = {}
        for layer in range(cross.geometry.num_layers):
            for name in (names.cross_key_pool(layer), names.cross_value_pool(layer)):
                array = np.full(shape, np.nan, cross.geometry.dtype)
                self.cross_pools[name] = ort.OrtValue.ortvalue_from_numpy(array)
        self.cross_free = list(np.random.default_rng(9).permutation(num_pages))
        self.cross_feeds: dict[str, Array] = {}

    def write(self, feeds: dict[str, Array], num_states: int) -> tuple[Source, Array]:
        """Encode an input and keep its first ``num_states`` states; the source and all states."""
        (states,) = self.encoder.run([names.ENCODER_STATES], feeds)
        num_pages = -(-num_states // self.page_size)
        source = Source([self.cross_free.pop() for _ in range(num_pages)], num_states)
        token = np.arange(num_states)
        slots = np.full(self.max_states, -1, np.int32)
        page = np.array(source.pages)[token // self.page_size]
        slots[:num_states] = page * self.page_size + token % self.page_size
        binding = self.writer.io_binding()
        binding.bind_cpu_input(names.ENCODER_STATES, states)
        binding.bind_cpu_input(names.CROSS_SLOT_MAPPING, slots)
        for name, value in self.cross_pools.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("pool.", "pool_out."), value)
        self.writer.run_with_iobinding(binding)
        return source, np.asarray(states)

    def step(self, rows: list[tuple[Any, Array]], *, logits: list[int] | None = None) -> Array:
        """As ``PagedDecoder.step``; each row's tokens see the whole of its source."""
        sources = [row.source or Source([], 0) for row, _ in rows]
        width = max(len(source.pages) for source in sources) + 1
        table = np.full((len(rows), width, 2), -1, np.int32)
        for index, source in enumerate(sources):
            count = len(source.pages)
            table[index, :count, 0] = source.pages
            table[index, :count, 1] = self.page_size
            if count:
                table[index, count - 1, 1] = source.num_states - (count - 1) * self.page_size
        limits = [
            source.num_states for source, (_, e) in zip(sources, rows, strict=True) for _ in e
        ]
        self.cross_feeds = {
            names.CROSS_PAGE_TABLE: table,
            names.CROSS_KV_LIMITS: np.array(limits, np.int32),
        }
        return super().step(rows, logits=logits)

    def _run(self, feeds: dict[str, Array]) -> Array:
        pools = {name: value.numpy() for name, value in self.cross_pools.items()}
        return super()._run(feeds | self.cross_feeds | pools)
