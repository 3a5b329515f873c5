"""Jobs that write and read whole tables through brokers: with several runs per job, attempts that do not count, and
runs that overtake one another, are aborted, die, or return long after their job is done."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.errors import EblaError, Outcome, Stale, Unavailable, Unreachable
from ebla.model.identity import AttemptId, HostId, SessionId, TransferId
from ebla.model.records.write_jobs import WriteJobState
from ebla.model.schema import TableSchema
from ebla.model.token import Token, TokenRange
from ebla.model.transfers import ROWS_NAME, StagedFile, TransferTarget
from ebla.ports.environment import Environment
from ebla.sim.checkers.rows import AttemptedWrite, Cell, ReadInterval
from ebla.sim.clusters.broker_nodes import BrokerCluster
from ebla.sim.clusters.nodes import SimShard
from ebla.sim.remote_calls import CallPath
from ebla.sim.rng import SimRng
from ebla.sim.transfers.checkpoint_scans import read_rows, scan_source
from ebla.sim.transfers.flight import connect, put_file
from ebla.sim.workloads.rows_client import RowsLoad
from ebla.sim.workloads.rows_table import PARTITIONS, ROWS, cell_of, item_of
from ebla.sim.workloads.topology_driver import ON_TABLETS, ON_VNODES
from ebla.sim.world import Unit
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_codec import decode_row, is_head
from ebla.storage.codec.row_file import encode_rows, rows_batch
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import merge_streams, without_deleted_rows
from ebla.wire.errors import error_from_frame
from ebla.wire.frames import encode
from ebla.wire.table_calls import (
    ABORT_WRITE,
    COMMIT_WRITE,
    OPEN_READ,
    OPEN_WRITE,
    AbortWriteRequest,
    CallAnswer,
    CallRequest,
    CommitWriteRequest,
    OpenReadRequest,
    OpenWriteRequest,
    ReadId,
    ReadRange,
    StagedRun,
    StagingPlan,
    TableCall,
    TableReadPlan,
)
from ebla.wire.transfer_messages import FlightPut

A = TypeVar("A")
Q = TypeVar("Q")

LATENCY_S = 0.01
TIMEOUT_SLACK_S = 3.0
"""How long a caller waits beyond the deadline of its call."""

OPEN_MS, COMMIT_MS, ABORT_MS, READ_MS = 12_000, 20_000, 10_000, 12_000
THINK_S = 0.5
TRIES_MAX = 4
COMMITS_MAX = 6
LEVELS = (Level.QUORUM,) * 5 + (Level.ONE, Level.ALL)
JOBS_OPEN_MAX = 12
BATCHES_MAX = 40


@dataclass(slots=True, kw_only=True)
class SimWriteJob:
    """Something to write, possibly by several runs."""

    name: str
    table: str
    level: Level
    batch: int | None = None
    runs: int = 0
    under_way: int = 0
    is_over: bool = False
    """Done, or no run will try again."""

    @property
    def id(self) -> tuple[str, int | None]:
        return (self.name, self.batch)


@dataclass(slots=True, kw_only=True)
class WriteJobsLoad:
    """What the job clients share, outside every incarnation."""

    rows: RowsLoad
    cluster: BrokerCluster
    jobs: list[SimWriteJob] = field(default_factory=list)
    drawn: int = 0
    reads: int = 0
    failed_reads: int = 0
    is_active: int = 0
    running: set[tuple[str, int]] = field(default_factory=set)
    """Running actions: the client's name and the number of the action. A dead incarnation leaves its actions here, and
    the next incarnation of that client removes them."""
    late: list[tuple[CommitWriteRequest, SimWriteJob]] = field(default_factory=list)
    """Commits that were answered or given up. Repeated, they must do no harm."""


@dataclass(slots=True, kw_only=True)
class WriteJobRun:
    """One run of a job."""

    job: SimWriteJob
    session: SessionId
    plan: StagingPlan
    cells: dict[Cell, AttemptedWrite]
    items: list[Item]
    targets: list[TransferTarget] = field(default_factory=list)
    runs: list[StagedRun] = field(default_factory=list)
    expected: dict[TransferId, list[Item]] = field(default_factory=dict)


class WriteJobsClient:
    def __init__(self, environment: Environment, load: WriteJobsLoad, here: Unit) -> None:
        self._environment = environment
        self._rng = SimRng(f"table jobs {environment.rng.uuid()}")
        self._load = load
        self._cluster = load.cluster
        self._ledger = load.rows.ledger
        self._write_jobs = load.cluster.write_jobs
        self._here = here
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        while not self._load.rows.stopping:
            self._load.is_active += 1
            act = (self._here.name, self._load.is_active)
            self._load.running.add(act)
            try:
                await self._act()
            except EblaError as error:
                self._cluster.world.log("jobs", f"not now: {error}")
            finally:
                self._load.running.discard(act)
            await asyncio.sleep(self._rng.random() * THINK_S)
        await asyncio.Event().wait()

    async def _act(self) -> None:
        kind = self._rng.randrange(0, 100)
        if kind < 25:
            await self.read(self._rng.choice((ON_TABLETS, ON_VNODES)), self._rng.choice(LEVELS))
        elif kind < 32 and self._load.late:
            await self._ask_late()
        else:
            job = self._next_job()
            job.under_way += 1
            try:
                await self._write(job)
            finally:
                job.under_way -= 1

    # -- writing -----------------------------------------------------------------------------------------------------

    def _next_job(self) -> SimWriteJob:
        """A job that is not over, sometimes while another run of it is still running; or a new one."""
        overtaking = self._rng.happens(0.08)
        jobs = [job for job in self._load.jobs if not job.is_over and (overtaking or not job.under_way)]
        if jobs and (len(jobs) >= JOBS_OPEN_MAX or self._rng.happens(0.5)):
            return self._rng.choice(jobs)
        self._load.drawn += 1
        table, level = self._rng.choice((ON_TABLETS, ON_TABLETS, ON_VNODES)), self._rng.choice(LEVELS)
        if self._rng.happens(0.25):
            name = f"stream-{table}"
            known = [job for job in self._load.jobs if job.name == name]
            if any(not job.is_over for job in known) or len(known) >= BATCHES_MAX:
                return (
                    self._rng.choice(jobs)
                    if jobs
                    else self._made(SimWriteJob(name=f"job-{self._load.drawn}", table=table, level=level))
                )
            return self._made(SimWriteJob(name=name, table=table, level=level, batch=len(known)))
        return self._made(SimWriteJob(name=f"job-{self._load.drawn}", table=table, level=level))

    def _made(self, job: SimWriteJob) -> SimWriteJob:
        self._load.jobs.append(job)
        return job

    async def _write(self, job: SimWriteJob) -> None:
        schema = self._load.rows.tables[job.table]
        session = SessionId(self._rng.uuid())
        job.runs += 1
        self._write_jobs.begins(job.id, session)
        asked = OpenWriteRequest(session=session, table=schema.id, level=job.level, job=job.name, batch=job.batch)
        plan = await self._somewhere(lambda shard: self._call(shard, OPEN_WRITE, asked, OPEN_MS))
        if plan.state is WriteJobState.DONE:
            job.is_over = True
            return
        self._cluster.world.log("jobs", f"{job.id} at {job.level.name} by {session}: {plan.timestamp_us}")
        self._write_jobs.opened(job.id, session, plan.timestamp_us)
        run = self._drawn(job, session, plan)
        await self._stage(run)
        kind = self._rng.randrange(0, 100)
        if kind < 10:
            request = AbortWriteRequest(session, asked.table, job.name)
            await self._somewhere(lambda shard: self._call(shard, ABORT_WRITE, request, ABORT_MS))
            self._write_jobs.given_up += 1
        elif kind < 15:
            self._write_jobs.given_up += 1  # its driver is gone; its session ends at its deadline, or with the next run
        else:
            await self._commit(run)

    async def _call(self, shard: SimShard, which: TableCall[Q, A], request: Q, deadline_ms: int) -> A:
        """To the broker of a shard. In production this is a CQL `CALL` statement.

        Raises what the broker raised, or an error of the simulated connection."""
        path = CallPath(
            world=self._cluster.world, rng=self._rng, here=self._here.name, there=shard.unit, latency_s=LATENCY_S
        )
        broker = self._cluster.brokers.get(shard.unit.name)
        payload = encode(CallRequest(deadline_ms, encode(request)))

        async def served() -> bytes:
            assert broker is not None
            return await broker.call(which.name, payload)

        data = await path.call(shard.calls, served, deadline_ms / 1000 + TIMEOUT_SLACK_S)
        answer = msgspec.msgpack.decode(data, type=CallAnswer)
        if answer.failure is not None:
            raise error_from_frame(answer.failure)
        decoded: Any = msgspec.msgpack.decode(answer.answer, type=which.answer)
        return decoded  # type: ignore[no-any-return]  # decoded as what the call answers

    async def _somewhere(self, ask: Callable[[SimShard], Awaitable[A]]) -> A:
        failure: EblaError = Unreachable("no broker was called")
        for _ in range(TRIES_MAX):
            try:
                return await ask(self._rng.choice(self._cluster.shards()))
            except EblaError as error:
                failure = error
            await asyncio.sleep(self._rng.random())
        raise failure

    def _drawn(self, job: SimWriteJob, session: SessionId, plan: StagingPlan) -> WriteJobRun:
        """Each run writes different rows: the input of two runs need not be the same."""
        schema, cells = plan.schema, {}
        for _ in range(self._rng.randrange(1, 40)):
            cell = (job.table, self._rng.randrange(0, PARTITIONS), self._rng.randrange(0, ROWS))
            cells[cell] = AttemptedWrite(timestamp_us=plan.timestamp_us, deletes=False)
            self._ledger.tries(cell, cells[cell])
        items = sorted(item_of(schema, cell, tried.timestamp_us) for cell, tried in cells.items())
        return WriteJobRun(job=job, session=session, plan=plan, cells=cells, items=items)

    # -- staging -----------------------------------------------------------------------------------------------------

    async def _stage(self, run: WriteJobRun) -> None:
        """A target that cannot be staged completely is left out."""
        async with asyncio.TaskGroup() as tasks:
            for number, target in enumerate(run.plan.targets):
                ranges = [route.range for route in run.plan.routes if number in route.targets]
                items = [item for item in run.items if any(_token(item) in one for one in ranges)]
                if items:
                    tasks.create_task(self._try_stage(run, target, items))
                else:
                    run.targets.append(target)

        for route in run.plan.routes:
            has_rows = any(_token(item) in route.range for item in run.items)
            if has_rows and not any(run.plan.targets[number].transfer in run.expected for number in route.targets):
                raise Unavailable("a task could not stage its rows anywhere")

    async def _try_stage(self, run: WriteJobRun, target: TransferTarget, items: Sequence[Item]) -> None:
        try:
            await self._stage_at(run, target, items)
        except (EblaError, OSError):
            return
        run.targets.append(target)

    async def _stage_at(self, run: WriteJobRun, target: TransferTarget, items: Sequence[Item]) -> None:
        """In one or more runs, split at random, and sometimes with an attempt that does not count."""
        if self._rng.happens(0.2):
            await self._put(target, self._sample(items))
        parts: list[list[Item]] = [[] for _ in range(self._rng.randrange(1, 4))]
        for item in items:
            self._rng.choice(parts).append(item)
        made = [await self._put(target, part) for part in parts if part]
        run.runs += made
        run.expected[target.transfer] = list(items)

    def _sample(self, items: Sequence[Item]) -> list[Item]:
        return [item for item in items if self._rng.happens(0.5)] or list(items[:1])

    async def _put(self, target: TransferTarget, items: Sequence[Item]) -> StagedRun:
        attempt, record = AttemptId(self._rng.uuid()), encode_rows(rows_batch(items))
        stream = connect(self._cluster.world, self._rng, self._here, self._cluster.bulk_of(target.host))
        put = FlightPut(ticket=target.ticket, attempt=attempt, name=ROWS_NAME, size_bytes=0)
        answer = await put_file(stream, put, [record])
        if answer.checksum != zlib.crc32(record):
            raise Unavailable("the received bytes differ from those sent")
        file = StagedFile(name=ROWS_NAME, size_bytes=len(record), checksum=answer.checksum)
        return StagedRun(host=target.host, transfer=target.transfer, attempt=attempt, file=file, rows=len(items))

    # -- commit ------------------------------------------------------------------------------------------------------

    async def _commit(self, run: WriteJobRun) -> None:
        tokens = [_token(item) for item in run.items]
        for attempt in range(COMMITS_MAX):
            request = self._request(run)
            for transfer, items in run.expected.items():
                self._cluster.ledger.sends_rows(transfer, items)
            self._load.late.append((request, run.job))
            try:
                answer = await self._call(self._rng.choice(self._cluster.shards()), COMMIT_WRITE, request, COMMIT_MS)
            except EblaError as error:
                self._cluster.world.log("jobs", f"{run.job.id} not committed: {error}")
                # A broker that could not be reached answers for this call, not for an earlier one.
                if error.outcome is Outcome.NOT_APPLIED and not (attempt and isinstance(error, Unreachable)):
                    self._check_unseen(run, error)
                if isinstance(error, Stale):
                    return  # this run is over
                await asyncio.sleep(self._rng.random())
                continue
            if not answer.lacking:
                run.job.is_over = True
                self._cluster.world.log("jobs", f"{run.job.id} is done by {run.session}")
                if self._write_jobs.acknowledged(run.session, run.plan.schema.id, run.job.level, tokens):
                    for cell, tried in run.cells.items():
                        self._ledger.was_acknowledged(cell, tried, run.job.level)
                return
            for copy in answer.lacking:
                self._write_jobs.lacking += 1
                await self._bring(run, copy.target, copy.range)

    def _check_unseen(self, run: WriteJobRun, error: EblaError) -> None:
        """After a "not applied" no row may be visible."""
        if run.job.runs == 1 and any(tried.shown for tried in run.cells.values()):
            self._load.rows.found(f"INV-BULKW-1: rows of {run.job} are seen, and its commit was answered: {error}")

    async def _bring(self, run: WriteJobRun, target: TransferTarget, part: TokenRange) -> None:
        items = [item for item in run.items if _token(item) in part]
        if items:
            try:
                run.runs.append(await self._put(target, items))
            except OSError as error:
                raise Unavailable(f"a copy could not be sent: {error}") from error
            run.expected[target.transfer] = sorted([*run.expected.get(target.transfer, ()), *items])
        if target not in run.targets:
            run.targets.append(target)

    def _request(self, run: WriteJobRun) -> CommitWriteRequest:
        job = run.job
        return CommitWriteRequest(
            session=run.session,
            table=run.plan.schema.id,
            job=job.name,
            level=job.level,
            runs=tuple(run.runs),
            targets=tuple(run.targets),
            batch=job.batch,
        )

    async def _ask_late(self) -> None:
        """As a driver that was frozen and does not know the outcome of its job."""
        request, _ = self._rng.choice(self._load.late)
        await self._call(self._rng.choice(self._cluster.shards()), COMMIT_WRITE, request, COMMIT_MS)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read(self, table: str, level: Level) -> bool:
        """Reads the whole table: nothing acknowledged before may be missing."""
        schema = self._load.rows.tables[table]
        cells = [(table, partition, row) for partition in range(PARTITIONS) for row in range(ROWS)]
        floors = self._ledger.floors(cells, level)
        request = OpenReadRequest(read=ReadId(self._rng.uuid()), table=schema.id, level=level)
        try:
            plan = await self._somewhere(lambda shard: self._call(shard, OPEN_READ, request, READ_MS))
            shown: dict[Cell, int] = {}
            for piece in plan.pieces:
                shown |= await self._piece(plan, piece, table)
        except EblaError:
            self._load.failed_reads += 1
            return False
        # This read repairs nothing: a later read need not return an unacknowledged write that this one returned.
        read = ReadInterval(level, 0.0, self._loop.time())
        self._load.rows.found(self._ledger.check_shown(floors, shown, read))
        self._load.rows.found(self._ledger.check_missing(floors, shown, read))
        self._load.reads += 1
        return True

    async def _piece(self, plan: TableReadPlan, piece: ReadRange, table: str) -> dict[Cell, int]:
        replicas: list[list[Item]] = []
        for place in piece.sources:
            source = plan.sources[place]
            try:
                replicas.append(await self._rows(source.host, source.ticket, piece.range))
            except (EblaError, OSError):
                continue
            if len(replicas) == piece.needed:
                schema = self._cluster.schema(plan.schema.id)
                return _visible(merge_streams(replicas, schema), schema, table)
        raise Unavailable("too few sources are left")

    async def _rows(self, host: HostId, ticket: bytes, part: TokenRange) -> list[Item]:
        stream = connect(self._cluster.world, self._rng, self._here, self._cluster.bulk_of(host))
        try:
            rows, _ = await scan_source(
                stream, lambda service: service.open_read(ticket, part), partial(read_rows, token_range=part)
            )
            return rows
        finally:
            stream.closed = True


def _visible(items: Iterable[Item], schema: TableSchema, table: str) -> dict[Cell, int]:
    column, shown = schema.column("a").number, {}
    for key, value in without_deleted_rows(items, schema):
        if is_head(value):
            continue
        cell = decode_row(value, schema.layouts).cells.get(column)
        if cell is not None and cell.value is not None:
            shown[cell_of(schema, table, key)] = cell.timestamp_us
    return shown


def _token(item: Item) -> Token:
    return Token(decode_token(item[0][:8]))
