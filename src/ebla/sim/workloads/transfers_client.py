"""Submits transfer jobs of every kind, cancels some, and opens sessions that are never closed."""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from ebla.client.job_client import JobClient
from ebla.model.errors import EblaError
from ebla.model.identity import HostId, JobId, SessionId, TableId
from ebla.model.records.jobs import (
    ENDED_STATES,
    CompareReplicas,
    CopyTablets,
    JobSpec,
    StreamRange,
)
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.ports.environment import Environment
from ebla.sim.clusters.nodes import SimNode
from ebla.sim.workloads.rows_client import RowsLoad
from ebla.sim.workloads.topology_driver import ON_TABLETS, ON_VNODES
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.snapshot import Snapshot
from ebla.transfers.token_ranges import ReplicaRange, replica_ranges
from ebla.wire.peers import Peers
from ebla.wire.transfer_messages import CloseSessionRequest, OpenSessionRequest
from ebla.wire.verbs import CLOSE_SESSION, OPEN_SESSION

CALL_MS = 2_000
CLOSE_MS = 6_000
THINK_S = 0.7
UNDER_WAY_MAX = 8
LIFE_MS = 40_000
SHORT_LIFE_MS = 4_000
"""So short that some jobs expire."""
ORPHAN_LIFE_MS = 3_000


@dataclass(slots=True, kw_only=True)
class TransfersLoad:
    """What these clients share, outside every incarnation."""

    orphans: dict[SessionId, None] = field(default_factory=dict)
    """Sessions that are never closed: they end at their deadline."""
    next_specs: list[JobSpec] = field(default_factory=list)
    """Jobs to submit next, before any random one."""
    cancelled: int = 0


class TransfersClient:
    def __init__(
        self,
        environment: Environment,
        load: RowsLoad,
        home: SimNode,
        submitted: TransfersLoad,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._environment = environment
        self._rng = environment.rng
        self._load = load
        self._home = home
        self._submitted = submitted
        name = f"asker-{home.control.name}"
        node = load.cluster.context(home, name, 1)
        self._own = Peers(tasks, node.peers_context(environment, name))
        self._own.set_address(home.host, node.control_socket)
        call = partial(self._own.call, home.host)
        self._jobs = JobClient(call, clock=environment.clock, rng=environment.rng, deadline_ms=CALL_MS)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.random() * THINK_S)
            try:
                if self._submitted.next_specs:
                    await self._submit_next()
                elif not self._load.stopping and len(self._load.tables) == 2:
                    await self._act()
            except EblaError:
                pass  # group 0 shows the outcome

    async def _submit_next(self) -> None:
        spec = self._submitted.next_specs[0]
        await self._submit(spec, LIFE_MS)
        if self._submitted.next_specs and self._submitted.next_specs[0] is spec:
            self._submitted.next_specs.pop(0)

    async def _act(self) -> None:
        snapshot = self._home.snapshot
        if snapshot is None:
            return
        under_way = [job for job in await self._jobs.jobs() if job.state not in ENDED_STATES]
        kind = self._rng.randrange(0, 100)
        if kind < 3 and under_way:
            await self._jobs.cancel(self._rng.choice(under_way).id)
            self._submitted.cancelled += 1
        elif kind < 6:
            await self._orphan()
        elif len(under_way) < UNDER_WAY_MAX:
            spec = self._draw(snapshot)
            if spec is not None:
                life_ms = SHORT_LIFE_MS if self._rng.random() < 0.1 else LIFE_MS
                await self._submit(spec, life_ms)

    async def _submit(self, spec: JobSpec, life_ms: int) -> None:
        await self._jobs.submit(spec, f"a {type(spec).__name__} of the simulation", life_ms)

    # -- job specs ------------------------------------------------------------------------------------------------

    def _draw(self, snapshot: Snapshot) -> JobSpec | None:
        kind = self._rng.randrange(0, 100)
        if kind < 60:
            return self._draw_copy(snapshot)
        table = self._load.tables[self._rng.choice((ON_TABLETS, ON_VNODES))].id
        if kind < 85:
            return self._draw_stream(snapshot, table)
        heal = self._rng.random() < 0.7
        part = self._rng.choice(WHOLE_RING.split(4)) if self._rng.random() < 0.3 else None
        return CompareReplicas(table, part, heal)

    def _draw_copy(self, snapshot: Snapshot) -> JobSpec | None:
        """Also for a table that may be dropped meanwhile, and to a pending replica."""
        passing = self._load.passing.get(ON_TABLETS)
        steady = self._load.tables[ON_TABLETS]
        table = passing.id if passing is not None and self._rng.random() < 0.1 else steady.id
        tablets = snapshot.tablets.get(table)
        if tablets is None:
            return None
        number = self._rng.randrange(0, tablets.tablet_count)
        source = self._rng.choice(tablets.replicas(number)).host
        targets = sorted({one.host for one in tablets.all_replicas(number)} - {source})
        if not targets:
            return None
        short_cut = self._rng.random() < 0.8
        target = self._rng.choice(targets)
        both = [
            other
            for other in range(tablets.tablet_count)
            if source in [one.host for one in tablets.replicas(other)]
            and target in [one.host for one in tablets.all_replicas(other)]
        ]
        numbers = tuple(both) if self._rng.random() < 0.3 else (number,)
        return CopyTablets(table=table, tablets=numbers, source=source, target=target, short_cut=short_cut)

    def _draw_stream(self, snapshot: Snapshot, table: TableId) -> JobSpec | None:
        pieces = list(replica_ranges(ReplicaSets(snapshot), table, WHOLE_RING))
        piece: ReplicaRange = self._rng.choice(pieces)
        hosts: list[HostId] = sorted({one.host for one in (*piece.replicas, *piece.pending)})
        target = self._rng.choice(hosts)
        sources = sorted({one.host for one in piece.replicas} - {target})
        if not sources:
            return None
        self._rng.shuffle(sources)
        count = self._rng.randrange(1, len(sources) + 1)
        part: TokenRange = piece.range
        if self._rng.random() < 0.3:
            part = self._rng.choice(part.split(2))
        return StreamRange(table=table, range=part, sources=tuple(sources[:count]), target=target)

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def _orphan(self) -> None:
        """Opens a session whose owner never returns. Sometimes another client closes it."""
        session = SessionId(self._rng.uuid())
        table = self._load.tables[self._rng.choice((ON_TABLETS, ON_VNODES))].id
        self._submitted.orphans[session] = None
        request = OpenSessionRequest(session=session, table=table, job=JobId(self._rng.uuid()), life_ms=ORPHAN_LIFE_MS)
        await self._own.call(self._home.host, OPEN_SESSION, request, CALL_MS)
        if self._rng.random() < 0.3:
            await self._own.call(self._home.host, CLOSE_SESSION, CloseSessionRequest(session), CLOSE_MS)
