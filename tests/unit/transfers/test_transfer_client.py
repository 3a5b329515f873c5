"""How long calls of a transfer are retried, and what is reported then."""

import asyncio
import uuid
from typing import Any, cast

import pytest

from ebla.model.errors import Unreachable
from ebla.model.identity import JobId, SessionId, TableId, TopologyVersion
from ebla.sim.rng import SimRng
from ebla.transfers.cluster_client import ClusterClient
from ebla.transfers.deadline import Deadline
from ebla.transfers.transfer_client import OPEN_SESSION_PATIENCE_MS, TransferCallLimits, TransferClient, TransferScope

SCOPE = TransferScope(
    job=JobId(uuid.UUID(int=1)),
    session=SessionId(uuid.UUID(int=2)),
    table=TableId(uuid.UUID(int=3)),
    version=TopologyVersion(1),
)


class NoLeader:
    """A control process that finds no leader."""

    calls = 0

    async def control(self, _verb: Any, _request: Any, _deadline_ms: int) -> Any:
        self.calls += 1
        raise Unreachable("no leader answers")


async def test_a_caller_with_a_long_deadline_learns_after_a_minute_why_its_session_cannot_be_opened() -> None:
    cluster, loop = NoLeader(), asyncio.get_running_loop()
    limits = TransferCallLimits(patience_ms=0)
    client = TransferClient(cast("ClusterClient", cluster), SimRng("client"), limits)
    began = loop.time()
    with pytest.raises(Unreachable, match="no leader answers"):
        await client.open_session(SCOPE, 60_000, TopologyVersion(1), Deadline(2 * 3_600_000))
    assert 0 <= loop.time() - began - OPEN_SESSION_PATIENCE_MS / 1000 <= limits.pause_max_ms / 1000
    assert cluster.calls > 3
