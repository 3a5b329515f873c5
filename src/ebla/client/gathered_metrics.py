"""Metrics of many processes as those of one, each series with the names of who told it."""

from collections.abc import Iterable, Sequence

from ebla.observe.metrics import Metrics
from ebla.wire.metrics_messages import MetricKind, MetricsAnswer, ToldMetric

SERIES_MAX = 1 << 20
"""Every process bounds its own."""


def gathered(names: Sequence[str], told: Iterable[tuple[Sequence[str], MetricsAnswer]]) -> Metrics:
    """`names` are labels that stand before a metric's own, as in `node, shard`; each answer comes with their values.
    A kind that is not known here is left out."""
    metrics = Metrics(SERIES_MAX)
    for values, answer in told:
        for metric in answer.metrics:
            _add(metrics, (*names, *metric.labels), tuple(values), metric)
    return metrics


def _add(metrics: Metrics, labels: tuple[str, ...], who: tuple[str, ...], metric: ToldMetric) -> None:
    for series in metric.series:
        where = (*who, *series.labels)
        match metric.kind:
            case MetricKind.COUNTER:
                metrics.counter(metric.name, metric.help, labels=labels).series(*where).add(series.value)
            case MetricKind.GAUGE:
                metrics.gauge(metric.name, metric.help, labels=labels).series(*where).set(series.value)
            case MetricKind.HISTOGRAM:
                histogram = metrics.histogram(metric.name, metric.help, bounds=metric.bounds, labels=labels)
                found = histogram.series(*where)
                found.sum = series.value
                found.counts = list(series.counts)
