"""`ebla metrics`: what shards and bulk processes of this machine's nodes count, for Prometheus or as JSON."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ebla.cli.cluster.local_cluster import LocalNode, find_nodes
from ebla.cli.cluster.node_calls import CALL_TIMEOUT_MS, admin_client
from ebla.cli.error_reporting import reporting_errors
from ebla.cli.output import print_json
from ebla.client.merged_metrics import bulk_metrics, merge_metrics
from ebla.model.errors import EblaError, InvalidRequest
from ebla.model.identity import Address
from ebla.observe.event_reporter import discard_event
from ebla.observe.exposition import expose
from ebla.runtime.event_loop import new_event_loop
from ebla.runtime.tcp_transport import TcpTransport, TransportLimits
from ebla.wire.metrics_messages import MetricsAnswer, MetricsRequest
from ebla.wire.transfer_messages import BulkStatusRequest
from ebla.wire.verbs import BULK_STATUS, METRICS

LABELS = ("node", "shard")

ProcessMetrics = tuple[tuple[str, str], MetricsAnswer]


def metrics(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder with one folder per node.")] = Path(
        "data"
    ),
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="This node's alone.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """What the shards count: requests by how they ended, how long they took, retries, repairs, layers, versions.

    And of transfers: bytes in and out, and what was refused. In the text form of Prometheus, one series for each shard,
    or node. The exit status is 1 where some process did not answer.
    """
    with reporting_errors():
        nodes = _chosen(data, node)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            told, silent = runner.run(_ask_all(nodes))
        if as_json:
            print_json(shown(told))
        else:
            sys.stdout.write(expose(merge_metrics(LABELS, told)).decode())
    for line in silent:
        sys.stderr.write(f"ebla: {line}\n")
    raise typer.Exit(1 if silent else 0)


def shown(told: Sequence[ProcessMetrics]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for (node, shard), answer in told:
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


def _chosen(data: Path, name: str | None) -> list[LocalNode]:
    nodes = find_nodes(data)
    if name is None:
        chosen = [node for node in nodes if node.running_pid() is not None]
    else:
        chosen = [node for node in nodes if node.name == name]
    if not chosen:
        what = f"no node of {data} runs" if name is None else f"there is no node {name!r} in {data}"
        raise InvalidRequest(what, advice="see `ebla status`; `ebla up` starts a cluster")
    return chosen


async def _ask_all(nodes: Sequence[LocalNode]) -> tuple[list[ProcessMetrics], list[str]]:
    async with TcpTransport(None, TransportLimits(), discard_event) as transport:
        async with asyncio.TaskGroup() as tasks:
            asking = [
                tasks.create_task(_ask(transport, node, number))
                for node in nodes
                for number in range(node.options.shards)
            ]
            asking += [tasks.create_task(_ask_bulk(transport, node)) for node in nodes]
    results = [task.result() for task in asking]
    return [each for each in results if not isinstance(each, str)], [each for each in results if isinstance(each, str)]


async def _ask(transport: TcpTransport, node: LocalNode, number: int) -> ProcessMetrics | str:
    """What it told, or why it did not."""
    try:
        admin = admin_client(transport, node, CALL_TIMEOUT_MS)
        answer = await admin.ask(Address(str(node.folder.shard_socket(number))), METRICS, MetricsRequest())
    except EblaError as error:
        return f"shard {number} of {node.name}: {error}"
    return (node.name, str(number)), answer


async def _ask_bulk(transport: TcpTransport, node: LocalNode) -> ProcessMetrics | str:
    try:
        admin = admin_client(transport, node, CALL_TIMEOUT_MS)
        place = Address(str(node.folder.bulk_socket))
        status = await admin.ask(place, BULK_STATUS, BulkStatusRequest(), BULK_STATUS.lane)
    except EblaError as error:
        return f"bulk process of {node.name}: {error}"
    return (node.name, ""), bulk_metrics(status)
