"""Jobs that write rows into tablets without a broker: runs of several attempts are staged, sealed together, and adopted
as a write by the current version. Some runs are incomplete; some arrive after the seal; some seals name other runs than
the first one did; some adoptions use a version that is long outdated."""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ebla.model.errors import Corruption, EblaError, Refused, Stale
from ebla.model.identity import AttemptId, JobId, Replica, SessionId, TopologyVersion, TransferId
from ebla.model.schema import TableSchema
from ebla.model.token import Token, TokenRange
from ebla.model.transfers import ROWS_NAME, StagedFile, StagingKind, TransferTarget
from ebla.ports.environment import Environment
from ebla.sim.checkers.rows import AttemptedWrite
from ebla.sim.clock import EPOCH_US
from ebla.sim.clusters.nodes import SimNode
from ebla.sim.clusters.transfer_nodes import TransferCluster
from ebla.sim.rng import SimRng
from ebla.sim.transfers.flight import connect, put_file
from ebla.sim.workloads.rows_client import RowsLoad
from ebla.sim.workloads.rows_table import PARTITIONS, ROWS, item_of
from ebla.sim.workloads.topology_driver import ON_TABLETS
from ebla.sim.world import Unit
from ebla.storage.codec.key_codec import decode_token
from ebla.storage.codec.row_file import encode_rows, rows_batch
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import merge_streams
from ebla.transfers.cluster_client import WireClusterClient
from ebla.wire.transfer_messages import (
    AdoptRequest,
    CloseSessionRequest,
    FlightPut,
    OpenSessionRequest,
    OpenStagingRequest,
    SealRequest,
)
from ebla.wire.verbs import ADOPT, CLOSE_SESSION, OPEN_SESSION, OPEN_STAGING, SEAL

CALL_MS, SEAL_MS, ADOPT_MS, CLOSE_MS = 2_500, 10_000, 4_000, 6_000
LIFE_MS = 15_000
THINK_S = 0.8
WRITERS = 3
RUNS_MAX = 4
ROWS_PER_RECORD = 3
TRIES_MAX = 4
RETRY_PAUSE_S = 0.5


@dataclass(slots=True, kw_only=True)
class WriterStats:
    """Counters of the writers, outside every incarnation."""

    sealed: int = 0
    adopted: int = 0
    stale: int = 0
    """Adoptions with an outdated version."""
    other_sets: int = 0
    """Refused seals of another set of runs."""
    not_whole: int = 0
    """Refused seals with an incomplete run."""
    writing: int = 0
    """Running writes of the current incarnation."""
    sessions: dict[SessionId, None] = field(default_factory=dict)
    """Sessions that may still take effect, until they are closed."""

    def __str__(self) -> str:
        return (
            f"{self.sealed} seals of runs, {self.other_sets} of other sets and {self.not_whole} of incomplete runs "
            f"refused; {self.adopted} adopted as writes, {self.stale} refused as outdated"
        )


@dataclass(frozen=True, slots=True)
class StagedRowsRun:
    attempt: AttemptId
    items: tuple[Item, ...]
    records: tuple[bytes, ...]

    @property
    def file(self) -> StagedFile:
        data = b"".join(self.records)
        return StagedFile(name=ROWS_NAME, size_bytes=len(data), checksum=zlib.crc32(data))


class TransfersWriter:
    """One incarnation, on the machine of a node."""

    def __init__(
        self, environment: Environment, load: RowsLoad, home: SimNode, written: WriterStats, here: Unit
    ) -> None:
        assert isinstance(load.cluster, TransferCluster)
        self._environment = environment
        self._rng = SimRng(f"writer {environment.rng.uuid()}")
        self._load = load
        self._cluster = load.cluster
        self._home = home
        self._written = written
        self._loop = asyncio.get_running_loop()
        self._here = here

    async def run(self) -> None:
        self._written.writing = 0
        name = f"writer-{self._home.control.name}"
        node = self._cluster.context(self._home, name, 1)
        peers = node.peers_context(self._environment, name)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(self._keep_writing(WireClusterClient(tasks, peers, node.cluster_addresses)))

    async def _keep_writing(self, clients: WireClusterClient) -> None:
        while True:
            await asyncio.sleep(self._rng.random() * THINK_S)
            if self._load.stopping or ON_TABLETS not in self._load.tables:
                continue
            self._written.writing += 1
            try:
                await self._write(clients)
            except (EblaError, OSError):
                pass  # the job fails
            finally:
                self._written.writing -= 1

    async def _write(self, clients: WireClusterClient) -> None:
        snapshot = self._home.snapshot
        schema = self._load.tables[ON_TABLETS]
        tablets = None if snapshot is None else snapshot.tablets.get(schema.id)
        if snapshot is None or tablets is None:
            return
        clients.follow(snapshot)
        number = self._rng.randrange(0, tablets.tablet_count)
        part = TokenRange(Token(tablets.after_token(number)), Token(tablets.last_token(number)))
        version = snapshot.version
        session = SessionId(self._rng.uuid())
        self._written.sessions[session] = None
        results = OpenSessionRequest(session=session, table=schema.id, job=JobId(self._rng.uuid()), life_ms=LIFE_MS)
        await clients.control(OPEN_SESSION, results, CALL_MS)
        runs = self._runs(schema, part)
        for replica in tablets.all_replicas(number) if runs else ():
            opening = OpenStagingRequest(
                session=session,
                transfer=TransferId(self._rng.uuid()),
                table=schema.id,
                shard=replica.shard,
                range=part,
                version=version,
                kind=StagingKind.ROWS,
            )
            try:
                await self._write_replica(clients, replica, opening, runs)
            except (EblaError, OSError):
                continue  # this replica is left to repair
        if self._rng.happens(0.7):
            answer = await clients.control(CLOSE_SESSION, CloseSessionRequest(session), CLOSE_MS)
            self._cluster.close_answered(session, answer.down)

    def _runs(self, schema: TableSchema, part: TokenRange) -> list[StagedRowsRun]:
        """Some keys are in several runs, each with its own timestamp."""
        found = []
        for _ in range(self._rng.randrange(1, RUNS_MAX + 1)):
            items: dict[bytes, Item] = {}
            for _ in range(self._rng.randrange(1, 14)):
                cell = (ON_TABLETS, self._rng.randrange(0, PARTITIONS), self._rng.randrange(0, ROWS))
                tried = AttemptedWrite(
                    timestamp_us=self._load.ledger.unique_us(EPOCH_US + int(self._loop.time() * 1e6)), deletes=False
                )
                item = item_of(schema, cell, tried.timestamp_us)
                if decode_token(item[0]) in part and item[0] not in items:
                    self._load.ledger.tries(cell, tried)
                    items[item[0]] = item
            if items:
                found.append(_run(AttemptId(self._rng.uuid()), sorted(items.values())))
        return found

    def _as_new_attempt(self, run: StagedRowsRun) -> StagedRowsRun:
        """The same rows as another attempt."""
        return replace(run, attempt=AttemptId(self._rng.uuid()))

    # -- one replica -------------------------------------------------------------------------------------------------

    async def _write_replica(
        self, clients: WireClusterClient, to: Replica, opening: OpenStagingRequest, runs: Sequence[StagedRowsRun]
    ) -> None:
        target = (await clients.bulk(to.host, OPEN_STAGING, opening, CALL_MS)).target
        # New attempt ids per target: an attempt at one target is independent of others.
        own = [self._as_new_attempt(run) for run in runs]
        broken = self._rng.choice(own) if self._rng.happens(0.25) else None
        for run in own:
            await self._put(target, run, cut=run is broken)
        if self._rng.happens(0.3):
            await self._put(target, self._as_new_attempt(own[0]))  # a speculative attempt that no seal names
        if broken is not None:
            await self._seal_broken(clients, target, own)
            again = self._as_new_attempt(broken)
            await self._put(target, again)
            own = [again if run is broken else run for run in own]
        schema = self._load.tables[ON_TABLETS]
        self._cluster.ledger.sends_rows(target.transfer, list(merge_streams([run.items for run in own], schema)))
        await self._seal(clients, target, own)
        await self._adopt(clients, to, opening, target)

    async def _put(self, target: TransferTarget, run: StagedRowsRun, *, cut: bool = False) -> None:
        stream = connect(self._cluster.world, self._rng, self._here, self._cluster.bulk_of(target.host))
        put = FlightPut(ticket=target.ticket, attempt=run.attempt, name=ROWS_NAME, size_bytes=0)
        await put_file(stream, put, run.records[:-1] if cut else run.records)

    async def _seal_broken(
        self, clients: WireClusterClient, target: TransferTarget, runs: Sequence[StagedRowsRun]
    ) -> None:
        """INV-XFER-2: a seal with an incomplete run is refused."""
        try:
            await clients.bulk(target.host, SEAL, self._order(target, runs), SEAL_MS)
        except Corruption:
            self._written.not_whole += 1
            return
        self._cluster.world.fail(f"INV-XFER-2: transfer {target.transfer} was sealed with a run that is not whole")

    async def _seal(self, clients: WireClusterClient, target: TransferTarget, runs: Sequence[StagedRowsRun]) -> None:
        orders = [self._order(target, runs) for _ in range(self._rng.choice((1, 1, 2)))]
        async with asyncio.TaskGroup() as tasks:
            seals = [tasks.create_task(_try_seal(clients, target, order)) for order in orders]
        if not any(seal.result() for seal in seals):
            await clients.bulk(target.host, SEAL, orders[0], SEAL_MS)  # once more: every answer was lost
        self._written.sealed += 1
        if self._rng.happens(0.3):
            await self._seal_other(clients, target, runs)
        if self._rng.happens(0.3):
            await self._put_late(target, runs[0])

    async def _seal_other(
        self, clients: WireClusterClient, target: TransferTarget, runs: Sequence[StagedRowsRun]
    ) -> None:
        """INV-XFER-2: after a seal no other set of runs is accepted."""
        other = self._as_new_attempt(runs[0])
        named = self._rng.choice(([*runs, other], [other, *runs[1:]], runs[:-1] or [other]))
        try:
            await clients.bulk(target.host, SEAL, self._order(target, named), SEAL_MS)
        except Refused:
            self._written.other_sets += 1
            return
        self._cluster.world.fail(f"INV-XFER-2: transfer {target.transfer} was sealed with one set, and then another")

    async def _put_late(self, target: TransferTarget, run: StagedRowsRun) -> None:
        try:
            await self._put(target, run)
        except Refused:
            return
        self._cluster.world.fail(f"transfer {target.transfer} accepts rows after its seal")

    def _order(self, target: TransferTarget, runs: Sequence[StagedRowsRun]) -> SealRequest:
        named = list(runs)
        self._rng.shuffle(named)
        more = tuple((run.attempt, run.file) for run in named[1:])
        return SealRequest(
            session=target.session,
            transfer=target.transfer,
            attempt=named[0].attempt,
            files=(named[0].file,),
            layers=(),
            more=more,
        )

    async def _adopt(
        self, clients: WireClusterClient, to: Replica, opening: OpenStagingRequest, target: TransferTarget
    ) -> None:
        """By the current version, or sometimes by the first one, which may be fenced off by now."""
        for _ in range(TRIES_MAX):
            snapshot = self._home.snapshot
            version = opening.version if snapshot is None or self._rng.happens(0.3) else snapshot.version
            request = AdoptRequest(
                session=target.session,
                transfer=target.transfer,
                table=opening.table,
                range=target.range,
                fence=TopologyVersion(0),
                version=version,
            )
            try:
                await clients.shard(to, ADOPT, request, ADOPT_MS)
            except Stale:
                self._written.stale += 1
                await asyncio.sleep(self._rng.random() * RETRY_PAUSE_S)
            else:
                self._written.adopted += 1
                return


def _run(attempt: AttemptId, items: Sequence[Item]) -> StagedRowsRun:
    records = [
        encode_rows(rows_batch(items[start : start + ROWS_PER_RECORD]))
        for start in range(0, len(items), ROWS_PER_RECORD)
    ]
    return StagedRowsRun(attempt, tuple(items), tuple(records))


async def _try_seal(clients: WireClusterClient, target: TransferTarget, order: SealRequest) -> bool:
    try:
        await clients.bulk(target.host, SEAL, order, SEAL_MS)
    except EblaError:
        return False
    return True
