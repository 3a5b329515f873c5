"""Commands and calls to a node of a Flight test, and limits for its client."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.cluster.conftest import LocalNodes
from typer.testing import CliRunner

from ebla.cli.app import app
from ebla.cli.cluster.node_calls import call_socket, local_transport
from ebla.transfers.flight_streams import FlightClientLimits
from ebla.wire.verbs import A, Q, Verb

QUICK = FlightClientLimits(attempts_max=2, pause_s=0.1)


def json_of(nodes: LocalNodes, *arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--data", str(nodes.data), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def asked(nodes: LocalNodes, socket: Path, verb: Verb[Q, A], request: Q) -> A:
    async def run() -> A:
        async with local_transport() as transport:
            return await call_socket(transport, nodes.nodes[0], socket, verb, request, deadline_ms=30_000)

    return asyncio.run(run())
