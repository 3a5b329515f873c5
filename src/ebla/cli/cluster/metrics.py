"""`ebla metrics`: metrics of the processes of this machine's nodes, for Prometheus or as JSON."""

import asyncio
import sys
from collections.abc import Awaitable, Iterable, Sequence
from typing import Annotated, Any

import typer

from ebla.cli.cluster.local_cluster import LocalNode
from ebla.cli.cluster.node_calls import call_socket, choose_nodes, local_transport, run_async
from ebla.cli.flags import DATA_DEFAULT, Data, JsonFlag
from ebla.cli.output import print_json, reporting_errors
from ebla.model.errors import EblaError
from ebla.observe.exposition import expose
from ebla.observe.metrics import Metrics
from ebla.runtime.tcp_transport import TcpTransport
from ebla.wire.metrics_messages import MetricFamily, MetricKind, MetricsAnswer, MetricsRequest, collect_metrics
from ebla.wire.transfer_messages import BulkStatusAnswer, BulkStatusRequest
from ebla.wire.verbs import BULK_STATUS, METRICS, STATUS, StatusAnswer, StatusRequest

LABELS = ("node", "shard")

ProcessMetrics = tuple[tuple[str, str], MetricsAnswer]

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@app.command()
def metrics(
    data: Data = DATA_DEFAULT,
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="Only this node.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the metrics of the shards: requests by outcome, latencies, retries, repairs, layers, versions.

    For transfers: bytes in and out, and rejected pieces. For settings: entries, tombstones, conflicts, purge rounds.
    The format is the text format of Prometheus, one series for each shard or node. The exit status is 1 if some process
    did not answer.
    """
    with reporting_errors():
        collected, failures = run_async(_collect(choose_nodes(data, node)))
        if as_json:
            print_json(metrics_json(collected))
        else:
            sys.stdout.write(expose(merge_metrics(LABELS, collected)).decode())
    for line in failures:
        sys.stderr.write(f"ebla: {line}\n")
    raise typer.Exit(1 if failures else 0)


def metrics_json(collected: Sequence[ProcessMetrics]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for (node, shard), answer in collected:
        for metric in answer.metrics:
            for series in metric.series:
                one: dict[str, Any] = {
                    "name": metric.name,
                    "kind": metric.kind,
                    "node": node,
                    "shard": int(shard) if shard else None,
                }
                one |= {"labels": dict(zip(metric.labels, series.labels)), "value": series.value}
                if metric.bounds:
                    one |= {"count": sum(series.counts), "bounds": metric.bounds, "counts": series.counts}
                found.append(one)
    return found


async def _collect(nodes: Sequence[LocalNode]) -> tuple[list[ProcessMetrics], list[str]]:
    """The metrics of the processes that answer, and why the others did not."""
    async with local_transport() as transport:
        async with asyncio.TaskGroup() as tasks:
            collecting = [
                tasks.create_task(_collect_one(node, f"shard {number}", _shard(transport, node, number), str(number)))
                for node in nodes
                for number in range(node.options.shards)
            ]
            for process, read in (("bulk process", _bulk), ("control process", _control)):
                collecting += [tasks.create_task(_collect_one(node, process, read(transport, node))) for node in nodes]
    results = [task.result() for task in collecting]
    return [each for each in results if not isinstance(each, str)], [each for each in results if isinstance(each, str)]


async def _collect_one(
    node: LocalNode, process: str, answer: Awaitable[MetricsAnswer], shard: str = ""
) -> ProcessMetrics | str:
    try:
        return (node.name, shard), await answer
    except EblaError as error:
        return f"{process} of {node.name}: {error}"


async def _shard(transport: TcpTransport, node: LocalNode, number: int) -> MetricsAnswer:
    return await call_socket(transport, node, node.folder.shard_socket(number), METRICS, MetricsRequest())


async def _bulk(transport: TcpTransport, node: LocalNode) -> MetricsAnswer:
    return bulk_metrics(await call_socket(transport, node, node.folder.bulk_socket, BULK_STATUS, BulkStatusRequest()))


async def _control(transport: TcpTransport, node: LocalNode) -> MetricsAnswer:
    socket = node.folder.control_socket
    status = await call_socket(transport, node, socket, STATUS, StatusRequest())
    own = await call_socket(transport, node, socket, METRICS, MetricsRequest())
    return MetricsAnswer((*peer_metrics(status).metrics, *own.metrics))


def peer_metrics(status: StatusAnswer) -> MetricsAnswer:
    metrics = Metrics()
    offsets = metrics.gauge("peer_clock_offset_ms", "Clock of a peer minus the clock of this node", labels=("peer",))
    for peer in status.peers:
        if peer.clock_offset_ms is not None:
            offsets.series(peer.address).set(peer.clock_offset_ms)
    return collect_metrics(metrics)


SERIES_MAX = 1 << 20
"""High: every process bounds its own metrics."""


def merge_metrics(names: Sequence[str], collected: Iterable[tuple[Sequence[str], MetricsAnswer]]) -> Metrics:
    """Metrics of many processes as those of one. `names` are labels put before a metric's own, as in `node, shard`;
    each answer comes with their values. Metrics of an unknown kind are skipped."""
    metrics = Metrics(SERIES_MAX)
    for values, answer in collected:
        for metric in answer.metrics:
            _add(metrics, (*names, *metric.labels), tuple(values), metric)
    return metrics


def _add(metrics: Metrics, labels: tuple[str, ...], values: tuple[str, ...], metric: MetricFamily) -> None:
    for series in metric.series:
        where = (*values, *series.labels)
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
    """Metrics of the bulk process of a node, since its start."""
    metrics = Metrics()
    refused = metrics.counter(
        "bulk_refused_total",
        "Pieces of transfers refused: the session was closed, or the ticket is invalid",
        labels=("reason",),
    )
    refused.series("session").add(status.refused_closed_session)
    refused.series("ticket").add(status.refused_tickets)
    moved = metrics.counter("bulk_bytes_total", "Bytes of transfers", labels=("direction",))
    moved.series("in").add(status.received_bytes)
    moved.series("out").add(status.sent_bytes)
    metrics.gauge("bulk_streams", "Streams of transfers under way").series().set(status.streams)
    metrics.gauge("bulk_checkpoints", "Checkpoints kept for transfers").series().set(status.checkpoints)
    metrics.gauge("bulk_stagings", "Transfers in staging").series().set(len(status.stagings))
    return collect_metrics(metrics)
