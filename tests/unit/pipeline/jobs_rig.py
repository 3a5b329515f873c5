"""Fakes for runs and the queue: a scripted cluster client, a scripted engine, and a small group 0."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from tests.unit.topology.small_cluster import TABLE, cluster, host, node, replica

from ebla.feed.topology_view import TopologyView, View, view_of
from ebla.group0.commands import ConditionFailed, Done
from ebla.model.cql_types import Scalar, ScalarType
from ebla.model.errors import EblaError
from ebla.model.identity import (
    Address,
    AttemptId,
    CheckpointId,
    HistoryId,
    HostId,
    JobId,
    Replica,
    ShardNumber,
    TopologyVersion,
)
from ebla.model.records.jobs import JobRecord, JobSpec, job_key
from ebla.model.schema import Column, ColumnKind, encode_schema, new_schema
from ebla.model.stored_value import StoredValue, decode_stored, encode_stored
from ebla.model.token import TokenRange
from ebla.model.transaction import DeleteKey, KeyMissing, KeyUnchanged, PutKey, Revision, Transaction
from ebla.model.transfers import (
    BucketDifference,
    CheckpointFile,
    CheckpointLayer,
    CheckpointPart,
    ComparisonResult,
    ComparisonTask,
    FileMove,
    MoveResult,
    RowMove,
    StagedFile,
    TransferResult,
    TransferSource,
    TransferTarget,
    TransferTask,
)
from ebla.ports.transfer_engine import EngineState, EngineStatus, TaskCounts
from ebla.sim.loop import simulated_loop
from ebla.sim.rng import SimRng
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Snapshot, Table
from ebla.topology.tablet_map import tablet_map
from ebla.wire.group0_messages import ExecuteAnswer, Group0ReadAnswer, KeyValue, WatchAnswer, WatchedChange
from ebla.wire.transfer_messages import (
    AdoptAnswer,
    BulkStatusAnswer,
    CloseSessionAnswer,
    OpenSessionAnswer,
    OpenStagingAnswer,
    SealAnswer,
    StagingStatus,
    TakeCheckpointAnswer,
)
from ebla.wire.verbs import EmptyAnswer as DoneAnswer
from ebla.wire.verbs import Verb

T = TypeVar("T")
HISTORY = HistoryId(UUID(int=5))
FILE_BYTES = 1_000


def in_simulated_time(work: Coroutine[Any, Any, T]) -> T:
    result: T = simulated_loop(SimRng("jobs")).run_until_complete(work)
    return result


class LoopClock:
    """In step with the loop."""

    def boot_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def wall_us(self) -> int:
        return 1_700_000_000_000_000 + self.boot_ms() * 1000


# ---- the topology


def a_snapshot(tablets: int = 2, copies: int = 2, nodes: int = 3) -> Snapshot:
    """Tablet n on the `copies` nodes from n + 1 on, around, all at shard 1."""
    columns = (
        Column(name="k", type=ScalarType(Scalar.INT), kind=ColumnKind.PARTITION_KEY),
        Column(name="v", type=ScalarType(Scalar.TEXT), kind=ColumnKind.REGULAR),
    )
    schema = new_schema(TABLE, "ks", "t", columns)
    sets = [tuple(replica((number + place) % nodes + 1, 1) for place in range(copies)) for number in range(tablets)]
    made = cluster(*(node(number) for number in range(1, nodes + 1)), tablets=tablet_map(TABLE, sets))
    table = Table(id=TABLE, keyspace="ks", name="t", definition=encode_schema(schema))
    return with_fields(made, tables=FrozenMap({TABLE: table}))


def with_fields(snapshot: Snapshot, **changes: Any) -> Snapshot:
    fields = {name: getattr(snapshot, name) for name in snapshot.__dataclass_fields__}
    return Snapshot(**{**fields, **changes})


def a_view(snapshot: Snapshot | None = None) -> TopologyView:
    view = TopologyView()
    view.install(view_of(snapshot or a_snapshot(), Revision(HISTORY, 1)))
    return view


def without_table(before: View) -> View:
    snapshot = with_fields(before.snapshot, tables=FrozenMap(), tablets=FrozenMap())
    return view_of(snapshot, Revision(HISTORY, before.revision.index + 1))


# ---- the cluster client


def name_of(host_id: HostId) -> str:
    return f"n{host_id.int}"


class ScriptedCluster:
    """Answers every verb as processes that are well would; `failing` holds errors to raise first, by verb."""

    def __init__(self, rng: SimRng, version: TopologyVersion) -> None:
        self._rng = rng
        self._version = version
        self.calls: list[str] = []
        self.requests: list[Any] = []
        self.failing: dict[str, list[EblaError]] = defaultdict(list)
        self.received: dict[Any, int] = {}
        self.empty_sources: set[HostId] = set()
        self.parts_at: dict[HostId, int] = {}
        self.free_answers: dict[str, Callable[[Any], Any]] = {}

    def words(self) -> list[str]:
        """Without the questions for progress."""
        return [call for call in self.calls if not call.startswith("bulk_status")]

    def of(self, kind: type[T]) -> list[T]:
        return [request for request in self.requests if isinstance(request, kind)]

    async def control(self, verb: Verb[Any, Any], request: Any, deadline_ms: int) -> Any:
        return await self._answer(verb, request, None, "")

    async def bulk(self, host_id: HostId, verb: Verb[Any, Any], request: Any, deadline_ms: int) -> Any:
        return await self._answer(verb, request, host_id, f" {name_of(host_id)}")

    async def shard(self, place: Replica, verb: Verb[Any, Any], request: Any, deadline_ms: int) -> Any:
        return await self._answer(verb, request, place.host, f" {name_of(place.host)}/{place.shard}")

    async def _answer(self, verb: Verb[Any, Any], request: Any, host_id: HostId | None, where: str) -> Any:
        self.calls.append(f"{verb.name}{where}")
        self.requests.append(request)
        await asyncio.sleep(0.001)
        if self.failing[verb.name]:
            raise self.failing[verb.name].pop(0)
        if verb.name in self.free_answers:
            return self.free_answers[verb.name](request)
        match verb.name:
            case "open_session":
                return OpenSessionAnswer(10, self._version)
            case "close_session":
                return CloseSessionAnswer()
            case "open_staging":
                assert host_id is not None
                return OpenStagingAnswer(self._target(request, host_id))
            case "take_checkpoint":
                assert host_id is not None
                return TakeCheckpointAnswer(self._source(request, host_id))
            case "seal":
                return SealAnswer(sum(file.size_bytes for file in request.files))
            case "adopt":
                return AdoptAnswer(1, 0)
            case "release":
                return DoneAnswer()
            case "bulk_status":
                stagings = tuple(
                    StagingStatus(
                        session=request.session,
                        transfer=transfer,
                        phase="open",
                        received_bytes=size,
                        attempts=1,
                    )
                    for transfer, size in self.received.items()
                )
                return BulkStatusAnswer(stagings=stagings)
        raise AssertionError(verb.name)

    def _target(self, request: Any, host_id: HostId) -> TransferTarget:
        return TransferTarget(
            host=host_id,
            shard=request.shard,
            session=request.session,
            transfer=request.transfer,
            kind=request.kind,
            range=request.range,
            ticket=b"right",
            flight=Address("127.0.0.9", 7001),
            machine="here",
            folder=f"/staging/{request.transfer}",
        )

    def _source(self, request: Any, host_id: HostId) -> TransferSource:
        layers = (CheckpointLayer(folder="0", range=request.range, files=(CheckpointFile("rows", FILE_BYTES),)),)
        parts = tuple(
            CheckpointPart(shard=ShardNumber(1), range=one, layers=layers)
            for one in request.range.split(self.parts_at.get(host_id, 1))
        )
        if host_id in self.empty_sources:
            parts = ()
        checkpoint = CheckpointId(self._rng.uuid())
        return TransferSource(
            host=host_id,
            checkpoint=checkpoint,
            table=request.table,
            parts=parts,
            ticket=b"right",
            flight=Address("127.0.0.9", 7001),
            machine="here",
            folder="/cp",
        )


# ---- the engine


class ScriptedEngine:
    """`Transfers`. Brings everything, finds no difference but where `differs` says so."""

    def __init__(self, rng: SimRng) -> None:
        self._rng = rng
        self.state = EngineStatus(state=EngineState.READY, master="local[2]", version="4")
        self.ran: list[Sequence[TransferTask]] = []
        self.failing: list[EblaError] = []
        self.differs: Callable[[TokenRange, int], bool] = lambda _range, _look: False
        self.attempts = 1
        self.lacking: set[HostId] | None = None
        """Hosts that lack rows; None: all."""
        self.takes_s = 0.01
        self.looks = 0
        self.reported_files: tuple[StagedFile, ...] | None = None
        """What attempts at files say; None: what they should."""

    def status(self) -> EngineStatus:
        return self.state

    def tasks(self, job: JobId) -> TaskCounts:
        return TaskCounts(1, 1, 2)

    async def run(self, job: JobId, work: Sequence[TransferTask]) -> Sequence[TransferResult]:
        self.ran.append(work)
        if any(isinstance(one, ComparisonTask) for one in work):
            self.looks += 1
        await asyncio.sleep(self.takes_s)
        if self.failing:
            raise self.failing.pop(0)
        return [result for one in work for result in self._results(one)]

    def _results(self, work: TransferTask) -> list[TransferResult]:
        match work:
            case FileMove():
                return [self._moved(work.target, 0) for _ in range(self.attempts)]
            case RowMove():
                return [
                    self._moved(one.target, 7) if self._lacks(one.target.host) else self._nothing(one.target)
                    for one in work.targets
                ]
            case ComparisonTask():
                buckets = work.range.split(work.buckets)
                found: list[TransferResult] = [
                    BucketDifference(
                        bucket, tuple((source.host, bytes([number]), 3) for number, source in enumerate(work.sources))
                    )
                    for bucket in buckets
                    if self.differs(bucket, self.looks)
                ]
                return [*found, ComparisonResult(work.range, work.buckets, 10)]

    def _lacks(self, host_id: HostId) -> bool:
        return self.lacking is None or host_id in self.lacking

    def _moved(self, target: TransferTarget, rows: int) -> MoveResult:
        attempt = AttemptId(self._rng.uuid())
        usual = (StagedFile(name="rows" if rows else "0/rows", size_bytes=FILE_BYTES, checksum=1),)
        files = usual if self.reported_files is None else self.reported_files
        return MoveResult(
            transfer=target.transfer,
            attempt=attempt,
            files=files,
            rows=rows,
            size_bytes=FILE_BYTES,
            short_cut=bool(target.machine),
        )

    def _nothing(self, target: TransferTarget) -> MoveResult:
        return MoveResult(transfer=target.transfer, attempt=AttemptId(self._rng.uuid()), files=())


# ---- group 0


class SmallGroup0:
    """Keys with revisions, transactions, and a watch: what records need of it, within one process."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[bytes, int]] = {}
        self.index = 1
        self._log: list[tuple[int, str, bytes | None]] = []
        self._changed = asyncio.Event()
        self.lost_answers: list[EblaError] = []
        """Raised after a transaction was applied."""
        self.refusals: list[EblaError] = []
        """Raised instead of applying one."""
        self.writes: list[tuple[float, str, bytes | None]] = []

    async def ask(self, verb: Verb[Any, Any], request: Any, deadline_ms: int) -> Any:
        await asyncio.sleep(0.001)
        match verb.name:
            case "group0_watch":
                return await self._watch(request)
            case "group0_read":
                keys = [key for key in sorted(self.values) if key in request.keys or key.startswith(request.prefixes)]
                found = tuple(KeyValue(key, self.values[key][0], self._at(self.values[key][1])) for key in keys)
                return Group0ReadAnswer(self._at(self.index), found)
            case "group0_execute":
                return self._execute(request.transaction)
        raise AssertionError(verb.name)

    def _at(self, index: int) -> Revision:
        return Revision(HISTORY, index)

    def _execute(self, transaction: Transaction) -> ExecuteAnswer:
        if self.refusals:
            raise self.refusals.pop(0)
        for condition in transaction.conditions:
            there = self.values.get(condition.key)
            actual = None if there is None else self._at(there[1])
            match condition:
                case KeyMissing() if actual is not None:
                    return ExecuteAnswer(ConditionFailed(condition.key, actual))
                case KeyUnchanged() if actual != condition.revision:
                    return ExecuteAnswer(ConditionFailed(condition.key, actual))
        for change in transaction.changes:
            match change:
                case PutKey():
                    self.put(change.key, change.value)
                case DeleteKey():
                    self.delete(change.key)
        if self.lost_answers:
            raise self.lost_answers.pop(0)
        return ExecuteAnswer(Done(self._at(self.index)))

    def put(self, key: str, value: bytes) -> None:
        self.index += 1
        self.values[key] = (value, self.index)
        self._record(key, value)

    def delete(self, key: str) -> None:
        self.index += 1
        self.values.pop(key, None)
        self._record(key, None)

    def _record(self, key: str, value: bytes | None) -> None:
        self._log.append((self.index, key, value))
        self.writes.append((asyncio.get_running_loop().time(), key, value))
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, request: Any) -> WatchAnswer:
        if request.after is None:
            rows = [(key, value, index) for key, (value, index) in sorted(self.values.items())]
            changes = tuple(WatchedChange(*row) for row in rows if row[0].startswith(request.prefix))
            return WatchAnswer(revision=self._at(self.index), reset=True, changes=changes)
        if not self._after(request):
            try:
                async with asyncio.timeout(request.wait_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return WatchAnswer(revision=self._at(self.index), reset=False, changes=tuple(self._after(request)))

    def _after(self, request: Any) -> list[WatchedChange]:
        return [
            WatchedChange(key, value, index)
            for index, key, value in self._log
            if index > request.after.index and key.startswith(request.prefix)
        ]

    def new_loop(self) -> None:
        """Tasks that waited are gone with the loop before."""
        self._changed = asyncio.Event()

    # ---- jobs

    def put_job(self, job: JobRecord) -> None:
        self.put(job_key(job.id), encode_stored(StoredValue(job)))

    def job(self, job: JobId) -> JobRecord:
        return decode_stored(JobRecord, self.values[job_key(job)][0]).value

    def history_of(self, job: JobId) -> list[JobRecord]:
        written = [value for _, key, value in self.writes if key == job_key(job) and value is not None]
        return [decode_stored(JobRecord, value).value for value in written]


def a_job(number: int, spec: JobSpec, **changes: Any) -> JobRecord:
    job = JobRecord(id=JobId(UUID(int=number)), spec=spec, what="a job", submitted_ms=number, life_ms=3_600_000)
    return msgspec.structs.replace(job, **changes)


HOSTS = tuple(host(number) for number in (1, 2, 3))
