"""A model's figures for Prometheus.

Owns: the names, units and labels of every metric, and the page that serves them.
Guarantees: nothing is computed between two scrapes but what the cache counts anyway; a scrape takes
    the model's lock once, for as long as it copies the counts.
Does not know: how anything is counted. Needs ``prometheus-client`` (``pip install
'edgekv[metrics]'``), which running a model does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from edgekv.cache import ALLOCATION_BUCKETS_US, CrossCounts
from edgekv.checks import refuse, whole
from edgekv.errors import MetricsError
from edgekv.figures import ModelFigures
from edgekv.memory import anonymous_bytes
from edgekv.model import Model

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class ModelCollector:
    """A collector for ``prometheus_client``: ``registry.register(ModelCollector(model))``."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._core = _library().core

    def collect(self) -> Iterator[Metric]:
        """Every metric as of now, labelled with the model's name."""
        figures = self._model.figures()
        yield from self._pool(figures)
        yield from self._work(figures)
        yield from self._found(figures)
        yield from self._sessions(figures)
        if figures.cross is not None:
            yield from self._cross(figures.name, figures.cross)
        if (held := anonymous_bytes()) is not None:
            yield self._core.GaugeMetricFamily(
                "edgekv_process_anonymous_bytes",
                "Anonymous memory of the process, resident and swapped.",
                value=held,
            )

    def _pool(self, figures: ModelFigures) -> Iterator[Metric]:
        """What the pool holds now."""
        counts, geometry, gauge = figures.counts, figures.geometry, self._core.GaugeMetricFamily
        pages = gauge("edgekv_kv_pages", "Pages by state.", labels=["model", "state"])
        for state in ("free", "live", "cached", "in_flight"):
            pages.add_metric([figures.name, state], getattr(counts, state))
        yield pages
        peak = gauge("edgekv_kv_pages_peak", "Most pages in use at once.", labels=["model"])
        peak.add_metric([figures.name], counts.peak)
        yield peak
        layers = gauge(
            "edgekv_kv_layer_bytes",
            "Bytes of live pages in each layer; pages span all layers alike.",
            labels=["model", "layer"],
        )
        for layer in range(geometry.num_layers):
            live = counts.live * geometry.page_bytes // geometry.num_layers
            layers.add_metric([figures.name, str(layer)], live)
        yield layers
        pool = gauge("edgekv_kv_pool_bytes", "Bytes of the pool.", labels=["model"])
        pool.add_metric([figures.name], counts.num_pages * geometry.page_bytes)
        yield pool

    def _work(self, figures: ModelFigures) -> Iterator[Metric]:
        """What was done since the model was loaded."""
        name, counted, counter = figures.name, figures.counters, self._core.CounterMetricFamily
        yield from self._counters(
            name,
            (
                ("edgekv_kv_allocated_pages", "Pages taken by appends.", counted.allocated_pages),
                ("edgekv_kv_forks", "Contexts forked, mostly for questions.", counted.num_forks),
                ("edgekv_kv_aborted_appends", "Appends that came to nothing.", counted.num_aborted),
                ("edgekv_kv_recalled_segments", "Segments that came back.",
                 counted.inserted_segments),
                ("edgekv_decoder_steps", "Steps of the decoder.", counted.num_steps),
            ),
        )  # fmt: skip
        tokens = counter("edgekv_kv_tokens", "Tokens written, by kind.", labels=["model", "kind"])
        for kind, number in sorted(counted.tokens.items()):
            tokens.add_metric([name, kind], number)
        yield tokens
        dropped = counter(
            "edgekv_kv_evicted_segments",
            "Frames and texts that left a context, by the rule that chose them.",
            labels=["model", "rule"],
        )
        for rule, number in sorted(counted.dropped_segments.items()):
            dropped.add_metric([name, rule], number)
        yield dropped
        yield self._allocation_times(figures)

    def _counters(self, name: str, rows: Iterable[tuple[str, str, float]]) -> Iterator[Metric]:
        """A counter for each (metric, text, value)."""
        for metric, text, value in rows:
            family = self._core.CounterMetricFamily(metric, text, labels=["model"])
            family.add_metric([name], value)
            yield family

    def _sessions(self, figures: ModelFigures) -> Iterator[Metric]:
        """Each open session, by its number."""
        core = self._core
        for kind, metric, text, field in (
            (core.GaugeMetricFamily, "context_frames", "Frames in the context.",
             "num_context_frames"),
            (core.GaugeMetricFamily, "context_tokens", "Tokens in the context.", "num_tokens"),
            (core.GaugeMetricFamily, "context_pages", "Pages, shared ones too.", "num_pages"),
            (core.CounterMetricFamily, "frames", "Frames pushed.", "num_frames"),
            (core.CounterMetricFamily, "evicted_frames", "Frames that left.",
             "num_evicted_frames"),
            (core.CounterMetricFamily, "questions", "Questions asked.", "num_questions"),
        ):  # fmt: skip
            family = kind(f"edgekv_session_{metric}", text, labels=["model", "session"])
            for session in figures.sessions:
                family.add_metric([figures.name, str(session.number)], getattr(session, field))
            yield family

    def _cross(self, name: str, counts: CrossCounts) -> Iterator[Metric]:
        """What cross-attention sees, in pools of its own."""
        pages = self._core.GaugeMetricFamily(
            "edgekv_cross_pages", "Pages of inputs by state.", labels=["model", "state"]
        )
        for state in ("free", "live", "cached"):
            pages.add_metric([name, state], getattr(counts, state))
        yield pages
        yield from self._counters(
            name,
            (
                ("edgekv_cross_hits", "Inputs that were found encoded.", counts.num_hits),
                ("edgekv_cross_misses", "Inputs that were not.", counts.num_misses),
                ("edgekv_cross_evicted_inputs", "Inputs that made way.", counts.num_evicted),
            ),
        )

    def _found(self, figures: ModelFigures) -> Iterator[Metric]:
        """What came of looking before computing."""
        name, shared, encoded = figures.name, figures.shared, figures.encoder_cache
        for metric, text, results in (
            ("edgekv_kv_lookups", "Segments looked for in the pool.",
             {"hit": shared.hits, "miss": shared.misses}),
            ("edgekv_encoder_lookups", "Pictures looked for among encoder outputs.",
             {"hit": encoded.hits, "miss": encoded.misses}),
        ):  # fmt: skip
            family = self._core.CounterMetricFamily(metric, text, labels=["model", "result"])
            for result, value in results.items():
                family.add_metric([name, result], value)
            yield family
        yield from self._counters(
            name,
            (
                ("edgekv_kv_given_up_segments", "Cached segments whose pages were needed.",
                 shared.given_up),
                ("edgekv_encoder_evictions", "Encoder outputs that made way.", encoded.evictions),
            ),
        )  # fmt: skip
        held = self._core.GaugeMetricFamily(
            "edgekv_encoder_cache_bytes", "Bytes of encoder outputs.", labels=["model"]
        )
        held.add_metric([name], encoded.num_bytes)
        yield held

    def _allocation_times(self, figures: ModelFigures) -> Metric:
        counted, total = figures.counters, 0
        buckets = []
        bounds = (*(repr(bound / 1e6) for bound in ALLOCATION_BUCKETS_US), "+Inf")
        for bound, number in zip(bounds, counted.allocations, strict=True):
            total += number
            buckets.append((bound, total))
        family = self._core.HistogramMetricFamily(
            "edgekv_kv_allocation_seconds", "Time to take an append's pages.", labels=["model"]
        )
        family.add_metric([figures.name], buckets, counted.allocation_us / 1e6)
        metric: Metric = family
        return metric


def serve_metrics(model: Model, port: int, *, address: str = "127.0.0.1") -> Server:
    """Serve ``model``'s metrics and the process's own on http://address:port/metrics.

    ``port`` 0 takes a free one. Raises MetricsError when the port cannot be had or
    ``prometheus-client`` is not installed.
    """
    port = whole(port, "port", least=0, most=65535)
    if not isinstance(address, str) or not address.isprintable() or not address:
        refuse("address", "be a host name or an IP address", address)
    library = _library()
    registry = library.CollectorRegistry()
    registry.register(ModelCollector(model))
    library.ProcessCollector(registry=registry)
    try:
        server, thread = library.start_http_server(port, addr=address, registry=registry)
    except (OSError, ValueError) as error:  # ValueError: a host name that can be none
        reason = getattr(error, "strerror", None) or error
        raise MetricsError(f"metrics cannot be served on {address}:{port}: {reason}") from None
    return Server(server, thread, address)


class Server:
    """A page of metrics being served, until ``close``."""

    def __init__(self, server: Any, thread: Any, address: str) -> None:
        self._server, self._thread, self._address = server, thread, address
        self.port = int(server.server_port)

    @property
    def url(self) -> str:
        """Of the page, at the address that was asked for."""
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving, and wait until it has stopped."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _library() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError:
        raise MetricsError(
            "metrics are served with prometheus-client: pip install 'edgekv[metrics]'"
        ) from None
    return prometheus_client
