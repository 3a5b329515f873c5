"""Metrics of a process on the wire: as numbers, so that whoever gathers them may add who told them."""

import enum
from collections.abc import Iterator

import msgspec

from ebla.observe.metrics import Description, Metrics


class MetricKind(enum.StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    labels: tuple[str, ...]
    value: float
    """Of a histogram the sum of what was observed."""
    counts: tuple[int, ...] = ()
    """Of a histogram: how many fell at or below each bound and above the one before; the last is what is above all."""


class MetricFamily(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    kind: str
    """A `MetricKind`, or one that only a newer process knows."""
    name: str
    help: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...]
    series: tuple[MetricSample, ...]


class MetricsRequest(msgspec.Struct, frozen=True, array_like=True):
    """What has this process counted since it began?"""


class MetricsAnswer(msgspec.Struct, frozen=True, array_like=True):
    metrics: tuple[MetricFamily, ...]


def collect_metrics(metrics: Metrics) -> MetricsAnswer:
    return MetricsAnswer(tuple(_told(metrics)))


def _told(metrics: Metrics) -> Iterator[MetricFamily]:
    for counter in metrics.counters.values():
        counted = tuple(MetricSample(labels, one.value) for labels, one in counter.all_series())
        yield _one(MetricKind.COUNTER, counter.description, counted)
    for gauge in metrics.gauges.values():
        levels = tuple(MetricSample(labels, one.value) for labels, one in gauge.all_series())
        yield _one(MetricKind.GAUGE, gauge.description, levels)
    for histogram in metrics.histograms.values():
        spread = tuple(MetricSample(labels, one.sum, tuple(one.counts)) for labels, one in histogram.all_series())
        yield _one(MetricKind.HISTOGRAM, histogram.description, spread)


def _one(kind: MetricKind, about: Description, series: tuple[MetricSample, ...]) -> MetricFamily:
    return MetricFamily(
        kind=kind, name=about.name, help=about.help, labels=about.labels, bounds=about.bounds, series=series
    )
