"""A broker with a small cluster around it: group 0 in a dict, and scripted bulk processes and shards."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from tests.unit.pipeline.jobs_rig import HISTORY, LoopClock, a_snapshot, in_simulated_time, with_fields
from tests.unit.topology.small_cluster import TABLE, host

from ebla.broker.broker import TableBroker
from ebla.broker.broker_deps import BrokerDeps, BrokerLimits
from ebla.feed.topology_view import TopologyView, view_of
from ebla.group0.commands import ConditionFailed, Done
from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError
from ebla.model.identity import Address, AttemptId, HostId, Replica, SessionId, TopologyVersion
from ebla.model.records.write_jobs import WriteJobRecord, write_key
from ebla.model.stored_value import decode_stored
from ebla.model.token import TokenRange
from ebla.model.transaction import DeleteKey, KeyMissing, PutKey, Revision, Transaction
from ebla.model.transfers import StagedFile, TransferTarget
from ebla.observe.event_reporter import discard_event
from ebla.options import DEFAULT_LIMITS, NodeLimits
from ebla.request.timestamps import WriteTimestamps
from ebla.sim.rng import SimRng
from ebla.topology.snapshot import Session, Snapshot
from ebla.topology.states import SessionKind
from ebla.wire.errors import error_from_frame
from ebla.wire.feed_messages import ReadBarrierAnswer
from ebla.wire.frames import encode
from ebla.wire.group0_messages import ExecuteAnswer, Group0ReadAnswer, KeyValue
from ebla.wire.table_calls import (
    CallAnswer,
    CallRequest,
    CommitWriteRequest,
    OpenTableReadAnswer,
    OpenWriteRequest,
    ReadSource,
    StackSizeEstimate,
    StagedRun,
    StagingPlan,
    TableCall,
)
from ebla.wire.transfer_messages import (
    AdoptAnswer,
    AdoptRequest,
    CloseSessionAnswer,
    OpenSessionAnswer,
    OpenStagingAnswer,
    OpenStagingRequest,
    SealAnswer,
    SealRequest,
)
from ebla.wire.verbs import EmptyAnswer as DoneAnswer
from ebla.wire.verbs import Verb

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

DEADLINE_MS = 600_000
Hook = Callable[[HostId, Any], Awaitable[Any] | None]
"""What happens instead at a node; None: what always does."""


@dataclass(slots=True, kw_only=True)
class Cluster:
    """`transfers.cluster_client.ClusterClient` and the processes behind it."""

    view: TopologyView
    values: dict[str, tuple[bytes, Revision]] = field(default_factory=dict)
    index: int = 1
    asked: list[tuple[str, HostId | None, Any]] = field(default_factory=list)
    hooks: dict[str, Hook] = field(default_factory=dict)
    on_execute: Callable[[Transaction], None] | None = None
    held: list[TopologyVersion] = field(default_factory=list)
    """Oldest version in use whenever a shard adopted."""
    adopted: dict[tuple[Replica, TokenRange], list[TopologyVersion]] = field(default_factory=dict)
    stacks: tuple[StackSizeEstimate, ...] = ()

    def of(self, kind: type[T]) -> list[tuple[HostId | None, T]]:
        return [(where, request) for _, where, request in self.asked if isinstance(request, kind)]

    def names(self) -> list[str]:
        return [name for name, _, _ in self.asked]

    # ---- the topology

    def install(self, snapshot: Snapshot) -> None:
        self.index += 1
        self.view.install(view_of(snapshot, Revision(HISTORY, self.index), self.view.current))

    def change(self, **changes: Any) -> None:
        """The next version, with something else in it."""
        snapshot = with_fields(self.view.current.snapshot, **changes)
        state = msgspec.structs.replace(snapshot.state, version=TopologyVersion(snapshot.version + 1))
        self.install(with_fields(snapshot, state=state))

    @property
    def sessions(self) -> list[SessionId]:
        return list(self.view.current.snapshot.sessions)

    # ---- calls

    async def control(self, verb: Verb[Any, Any], request: Any, _deadline_ms: int) -> Any:
        self.asked.append((verb.name, None, request))
        await asyncio.sleep(0.001)
        instead = self.hooks[verb.name](host(0), request) if verb.name in self.hooks else None
        if instead is not None:
            return await instead
        snapshot = self.view.current.snapshot
        match verb.name:
            case "read_barrier":
                return ReadBarrierAnswer(Revision(HISTORY, self.index))
            case "group0_read":
                wanted = [
                    key
                    for key in sorted(self.values)
                    if key in request.keys or any(key.startswith(one) for one in request.prefixes)
                ]
                found = tuple(KeyValue(key, *self.values[key]) for key in wanted)
                return Group0ReadAnswer(Revision(HISTORY, self.index), found)
            case "group0_execute":
                if self.on_execute is not None:
                    self.on_execute(request.transaction)
                return ExecuteAnswer(self._execute(request.transaction))
            case "open_session":
                opened = Session(
                    id=request.session,
                    kind=SessionKind.BULK_JOB,
                    table=request.table,
                    tablet=None,
                    request=request.job,
                    deadline_ms=99,
                )
                self.change(sessions=snapshot.sessions.put(request.session, opened))
                return OpenSessionAnswer(99, snapshot.version)
            case "close_session":
                if request.session in snapshot.sessions:
                    self.change(sessions=snapshot.sessions.without(request.session))
                return CloseSessionAnswer()
        raise AssertionError(verb.name)

    def _execute(self, transaction: Transaction) -> Done | ConditionFailed:
        for condition in transaction.conditions:
            found = self.values.get(condition.key)
            held = (
                found is None
                if isinstance(condition, KeyMissing)
                else found is not None and found[1] == condition.revision
            )
            if not held:
                return ConditionFailed(condition.key, None if found is None else found[1])
        self.index += 1
        revision = Revision(HISTORY, self.index)
        for change in transaction.changes:
            if isinstance(change, PutKey):
                self.values[change.key] = (change.value, revision)
            else:
                assert isinstance(change, DeleteKey)
                self.values.pop(change.key, None)
        self.install(self.view.current.snapshot)
        return Done(revision)

    async def bulk(self, where: HostId, verb: Verb[Any, Any], request: Any, _deadline_ms: int) -> Any:
        self.asked.append((verb.name, where, request))
        await asyncio.sleep(0.001)
        instead = self.hooks[verb.name](where, request) if verb.name in self.hooks else None
        if instead is not None:
            return await instead
        match request:
            case OpenStagingRequest():
                return OpenStagingAnswer(target_of(where, request))
            case SealRequest():
                return SealAnswer(request.files[0].size_bytes)
        match verb.name:
            case "open_table_read":
                source = ReadSource(host=where, flight=Address("127.0.0.9", 7001), ticket=b"right of " + where.bytes)
                return OpenTableReadAnswer(source, self.stacks)
            case "close_table_read":
                return DoneAnswer()
        raise AssertionError(verb.name)

    async def shard(self, replica: Replica, verb: Verb[Any, Any], request: Any, _deadline_ms: int) -> Any:
        assert isinstance(request, AdoptRequest)
        assert request.version is not None
        self.asked.append((verb.name, replica.host, request))
        self.held.append(self.view.versions.oldest(TopologyVersion(1 << 40)))
        await asyncio.sleep(0.001)
        instead = self.hooks[verb.name](replica.host, request) if verb.name in self.hooks else None
        if instead is not None:
            return await instead
        again = self.adopted.setdefault((replica, request.range), [])
        again.append(request.version)
        return AdoptAnswer(1 if len(again) == 1 else 0, 0)


def target_of(where: HostId, request: OpenStagingRequest) -> TransferTarget:
    return TransferTarget(
        host=where,
        shard=request.shard,
        session=request.session,
        transfer=request.transfer,
        kind=request.kind,
        range=request.range,
        ticket=b"right",
        flight=Address("127.0.0.9", 7001),
    )


async def raises(error: EblaError) -> Any:
    raise error


@dataclass(slots=True)
class Rig:
    cluster: Cluster
    broker: TableBroker
    drawn: int = 0

    async def call(self, which: TableCall[Q, A], request: Q, deadline_ms: int = DEADLINE_MS) -> A:
        data = await self.broker.call(which.name, encode(CallRequest(deadline_ms, encode(request))))
        answer = msgspec.msgpack.decode(data, type=CallAnswer)
        if answer.failure is not None:
            raise error_from_frame(answer.failure)
        found: Any = msgspec.msgpack.decode(answer.answer, type=which.answer)
        return found  # type: ignore[no-any-return]  # decoded as what the call answers

    def opening(self, job: str = "job", level: Level = Level.QUORUM, batch: int | None = None) -> OpenWriteRequest:
        self.drawn += 1
        return OpenWriteRequest(
            session=SessionId(uuid.UUID(int=1000 + self.drawn, version=4)),
            table=TABLE,
            level=level,
            job=job,
            batch=batch,
        )

    def record(self, job: str = "job") -> WriteJobRecord:
        return decode_stored(WriteJobRecord, self.cluster.values[write_key(TABLE, job)][0]).value


def staged(plan: StagingPlan, *, but: tuple[int, ...] = ()) -> list[StagedRun]:
    """A run for every target but these."""
    return [
        StagedRun(
            host=one.host,
            transfer=one.transfer,
            attempt=AttemptId(uuid.UUID(int=number + 1)),
            file=StagedFile(name="rows", size_bytes=10 + number, checksum=7),
            rows=3,
        )
        for number, one in enumerate(plan.targets)
        if number not in but
    ]


def committing(asked: OpenWriteRequest, plan: StagingPlan, runs: list[StagedRun] | None = None) -> CommitWriteRequest:
    return CommitWriteRequest(
        session=asked.session,
        table=asked.table,
        job=asked.job,
        level=asked.level,
        runs=tuple(staged(plan) if runs is None else runs),
        targets=plan.targets,
        batch=asked.batch,
    )


def with_rig(
    story: Callable[[Rig], Coroutine[Any, Any, None]],
    snapshot: Snapshot | None = None,
    limits: BrokerLimits | None = None,
    node: NodeLimits = DEFAULT_LIMITS,
) -> None:
    """Four tablets with three copies each on four nodes, if nothing else is said."""

    async def run() -> None:
        view = TopologyView()
        view.install(view_of(snapshot or a_snapshot(4, 3, 4), Revision(HISTORY, 1)))
        cluster = Cluster(view=view)
        async with asyncio.TaskGroup() as tasks:
            clock = LoopClock()
            parts = BrokerDeps(
                view=view,
                cluster=cluster,
                host=host(1),
                datacenter="dc1",
                authority=lambda: b"PEM",
                timestamps=WriteTimestamps(clock, node.timestamp_ahead_max_ms),
                tasks=tasks,
                clock=clock,
                rng=SimRng("broker"),
                report=discard_event,
                node=node,
                limits=limits or BrokerLimits(),
            )
            await story(Rig(cluster, TableBroker(parts)))
        assert not cluster.view.versions.oldest(TopologyVersion(1 << 40)) < TopologyVersion(1 << 40), (
            "a version is held"
        )

    in_simulated_time(run())
