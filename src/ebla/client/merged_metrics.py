"""Metrics of many processes as those of one, each series with the names of who told it."""

from collections.abc import Iterable, Sequence

from ebla.observe.metrics import Metrics
from ebla.wire.metrics_messages import MetricFamily, MetricKind, MetricsAnswer, collect_metrics
from ebla.wire.transfer_messages import BulkStatusAnswer

SERIES_MAX = 1 << 20
"""Every process bounds its own."""


def merge_metrics(names: Sequence[str], told: Iterable[tuple[Sequence[str], MetricsAnswer]]) -> Metrics:
    """`names` are labels that stand before a metric's own, as in `node, shard`; each answer comes with their values.
    A kind that is not known here is left out."""
    metrics = Metrics(SERIES_MAX)
    for values, answer in told:
        for metric in answer.metrics:
            _add(metrics, (*names, *metric.labels), tuple(values), metric)
    return metrics


def _add(metrics: Metrics, labels: tuple[str, ...], who: tuple[str, ...], metric: MetricFamily) -> None:
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


def bulk_metrics(status: BulkStatusAnswer) -> MetricsAnswer:
    """What the bulk process of a node counts, since its start."""
    metrics = Metrics()
    refused = metrics.counter(
        "bulk_refused_total",
        "Pieces of transfers refused: their session was closed, or their ticket no good",
        labels=("why",),
    )
    refused.series("session").add(status.refused_closed_session)
    refused.series("ticket").add(status.refused_tickets)
    moved = metrics.counter("bulk_bytes_total", "Bytes of transfers", labels=("way",))
    moved.series("in").add(status.received_bytes)
    moved.series("out").add(status.sent_bytes)
    metrics.gauge("bulk_streams", "Streams of transfers under way").series().set(status.streams)
    metrics.gauge("bulk_checkpoints", "Checkpoints kept for transfers").series().set(status.checkpoints)
    metrics.gauge("bulk_stagings", "Transfers in staging").series().set(len(status.stagings))
    return collect_metrics(metrics)
