"""Metrics of a process on the wire: as numbers, so that the collector can add the process they come from."""

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
    """For a histogram, the sum of the observations."""
    counts: tuple[int, ...] = ()
    """For a histogram: observations at or below each bound and above the one before; the last is above all bounds."""


class MetricFamily(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    kind: str
    """A `MetricKind`, or a value that only a newer process knows."""
    name: str
    help: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...]
    series: tuple[MetricSample, ...]


class MetricsRequest(msgspec.Struct, frozen=True, array_like=True):
    """The metrics of this process since its start."""


class MetricsAnswer(msgspec.Struct, frozen=True, array_like=True):
    metrics: tuple[MetricFamily, ...]


def collect_metrics(metrics: Metrics) -> MetricsAnswer:
    return MetricsAnswer(tuple(_families(metrics)))


def _families(metrics: Metrics) -> Iterator[MetricFamily]:
    for counter in metrics.counters.values():
        counted = tuple(MetricSample(labels, one.value) for labels, one in counter.all_series())
        yield _family(MetricKind.COUNTER, counter.description, counted)
    for gauge in metrics.gauges.values():
        levels = tuple(MetricSample(labels, one.value) for labels, one in gauge.all_series())
        yield _family(MetricKind.GAUGE, gauge.description, levels)
    for histogram in metrics.histograms.values():
        spread = tuple(MetricSample(labels, one.sum, tuple(one.counts)) for labels, one in histogram.all_series())
        yield _family(MetricKind.HISTOGRAM, histogram.description, spread)


def _family(kind: MetricKind, about: Description, series: tuple[MetricSample, ...]) -> MetricFamily:
    return MetricFamily(
        kind=kind, name=about.name, help=about.help, labels=about.labels, bounds=about.bounds, series=series
    )
