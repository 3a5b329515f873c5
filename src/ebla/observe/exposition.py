"""Metrics as Prometheus reads them."""

import itertools
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ebla.observe.metrics import Description, HistogramSeries, Metrics

PREFIX = "ebla_"


class MetricsCollector(Collector):
    """Reads the numbers when Prometheus scrapes. Works in any registry, next to other collectors."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for counter in self._metrics.counters.values():
            counted = CounterMetricFamily(*_naming(counter.description), labels=counter.description.labels)
            for labels, one in counter.all_series():
                counted.add_metric(labels, one.value)
            yield counted
        for gauge in self._metrics.gauges.values():
            measured = GaugeMetricFamily(*_naming(gauge.description), labels=gauge.description.labels)
            for labels, level in gauge.all_series():
                measured.add_metric(labels, level.value)
            yield measured
        for histogram in self._metrics.histograms.values():
            spread = HistogramMetricFamily(*_naming(histogram.description), labels=histogram.description.labels)
            for labels, observed in histogram.all_series():
                spread.add_metric(labels, buckets=_buckets(observed), sum_value=observed.sum)
            yield spread


def expose(metrics: Metrics) -> bytes:
    """The text of a scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MetricsCollector(metrics))
    return generate_latest(registry)


def _naming(description: Description) -> tuple[str, str]:
    return PREFIX + description.name, description.help


def _buckets(series: HistogramSeries) -> list[tuple[str, float]]:
    """Prometheus' buckets are cumulative."""
    bounds = [*(str(float(bound)) for bound in series.bounds), "+Inf"]
    return list(zip(bounds, itertools.accumulate(series.counts), strict=True))
