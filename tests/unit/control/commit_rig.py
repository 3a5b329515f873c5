"""Group 0 and the nodes around a service that commits to the topology: rows in memory, commits with scripted
outcomes."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from tests.unit.topology.world import HISTORY, cluster, host

from ebla.control.group0.node import Group0Node
from ebla.control.topology.barrier_client import CALL_MS, BarrierClient
from ebla.control.topology.deps import TopologyDeps
from ebla.group0.commands import CommandAnswer, ConditionFailed, Done, Forgotten
from ebla.model.errors import DeadlineExceeded, Unavailable
from ebla.model.identity import HostId
from ebla.model.transaction import Revision, Transaction
from ebla.ports.clock import Clock
from ebla.sim.clock import SimClock
from ebla.sim.rng import SimRng
from ebla.topology import keys
from ebla.topology.apply.command import apply_command
from ebla.topology.apply.draft import ProposedChange
from ebla.topology.commands import Command, SetBalancing
from ebla.topology.snapshot import Snapshot
from ebla.topology.snapshot_builder import advance
from ebla.wire.feed_messages import NodeBarrierRequest
from ebla.wire.peers import Peers

Commit = Callable[[Transaction], Awaitable[CommandAnswer]]


class _Group0:
    """Of a node whose start is confirmed."""

    def __init__(self, rig: "CommitRig") -> None:
        self._rig = rig
        self.running = SimpleNamespace(client=rig, raft=rig)
        self.is_running = True

    @property
    def leads(self) -> bool:
        return self._rig.leads


class CommitRig:
    """`script` has what becomes of the next commits; after it all is well."""

    def __init__(self) -> None:
        self.world, _ = cluster(3)
        self.script: list[Commit] = []
        self.commits = 0
        self.quorum = True
        self.leads = True
        self.down: tuple[HostId, ...] = ()
        self.confirmed: dict[HostId, int] = {}
        self.drains: set[bool] = set()
        self.silent: tuple[HostId, ...] = ()
        self.lagging: Snapshot | None = None
        """What this node shows until it has done a read barrier."""
        self.group0 = cast("Group0Node", _Group0(self))
        self.barriers = BarrierClient(host(1), self._on_own, cast("Peers", self), lambda: self.down)
        self.reported: list[str] = []

    def deps(self, seed: str, clock: Clock | None = None) -> TopologyDeps:
        return TopologyDeps(
            group0=self.group0,
            topology=self,
            barriers=self.barriers,
            down=lambda: self.down,
            rng=SimRng(seed),
            clock=clock or SimClock(lambda: 0.0, SimRng("clock").random),
            report=lambda event, _fields: self.reported.append(event),
        )

    @property
    def snapshot(self) -> Snapshot:
        return self.lagging or self.world.snapshot

    def planned(self, command: Command) -> Transaction:
        applied = apply_command(self.snapshot, command)
        assert isinstance(applied, ProposedChange), applied
        return applied.transaction

    # ---- as group 0

    @property
    def is_leader(self) -> bool:
        return self.leads

    async def read_barrier(self, _deadline_ms: int) -> Revision:
        if not self.quorum:
            raise Unavailable("no quorum")
        self.lagging = None
        return Revision(HISTORY, self.world.group0.index)

    async def transact(
        self, transaction: Transaction, _deadline_ms: int, _before_offer: object = None
    ) -> CommandAnswer:
        self.commits += 1
        return await (self.script.pop(0) if self.script else self.commit)(transaction)

    async def commit(self, transaction: Transaction) -> CommandAnswer:
        entries = self.world.group0.commit(transaction)
        if entries is None:
            return ConditionFailed(keys.STATE, None)
        self.world.snapshot = advance(self.world.snapshot, entries)
        return Done(Revision(HISTORY, self.world.group0.index))

    async def commit_unanswered(self, transaction: Transaction) -> CommandAnswer:
        await self.commit(transaction)
        raise DeadlineExceeded("no answer")

    async def commit_forgotten(self, transaction: Transaction) -> CommandAnswer:
        await self.commit(transaction)
        return Forgotten("long ago")

    async def lose(self, _transaction: Transaction) -> CommandAnswer:
        await asyncio.sleep(0.1)
        raise DeadlineExceeded("no answer")

    async def refuse(self, _transaction: Transaction) -> CommandAnswer:
        raise Unavailable("took nothing up")

    async def overtaken(self, transaction: Transaction) -> CommandAnswer:
        self.world.do(SetBalancing(not self.snapshot.state.balancing_enabled))
        return await self.commit(transaction)

    # ---- as the nodes

    async def _on_own(self, request: NodeBarrierRequest, deadline_ms: int) -> None:
        await self.call(host(1), None, request, deadline_ms)

    async def call(self, to: HostId, _verb: Any, request: NodeBarrierRequest, deadline_ms: int) -> None:
        assert 0 < deadline_ms <= CALL_MS
        self.drains.add(request.drain)
        if to in self.silent:
            await asyncio.sleep(deadline_ms / 1000)
            raise DeadlineExceeded("shard-0 has not reported")
        self.confirmed[to] = request.version
