"""Attempts of tasks of the simulated engine: over Flight, or by hard links on the same machine.

The faults of an attempt are drawn before it begins: it may hang for longer than its session lives and then go on,
ignore a cancellation, die without a report, corrupt a byte on the way unnoticed, or keep a staged file open and write
to it later. Attempts check no session: the protection against all this must be on the receiving side.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from ebla.bulk.stream_service import SourceStream, StreamService
from ebla.model.errors import Corruption, EblaError, Overloaded, Unavailable, Unreachable
from ebla.model.identity import AttemptId, CheckpointId, HostId, TransferId
from ebla.model.schema import TableSchema
from ebla.model.token import TokenRange
from ebla.model.transfers import (
    ROWS_NAME,
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
from ebla.ports.disk import Disk, File
from ebla.ports.environment import Environment
from ebla.ports.transfer_engine import SourceDamaged
from ebla.sim.disk import ProcessDisk
from ebla.sim.rng import SimRng
from ebla.sim.transfers.checkpoint_scans import (
    compare_hashes,
    missing_rows,
    read_hashes,
    read_rows,
    scan_source,
)
from ebla.sim.transfers.flight import (
    BulkHandle,
    SimFlightServer,
    SimFlightStream,
    append,
    connect,
    finish_put,
    open_put,
    open_source,
)
from ebla.sim.world import World
from ebla.storage.codec.row_file import encode_rows, rows_batch
from ebla.storage.layers.layer import Item
from ebla.storage.merge.row_merge import merge_streams
from ebla.wire.transfer_messages import FlightPut, PutAnswer

T = TypeVar("T")

CHUNK_BYTES_MIN = 900
CHUNKS_MAX = 40
"""Per file: a large file moves in larger chunks."""
ROWS_PER_RECORD = 6
TRIES_MAX = 3
"""Per file within an attempt. Each try continues where the previous one broke."""
RETRY_PAUSE_S = 0.3
TRANSIENT_ERRORS = (Unreachable, Overloaded)
HANG_MEAN_S = 7.0
LATE_WRITE_MEAN_S = 3.0
LATE_WRITES_MAX = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFaults:
    """The probability of each fault of an attempt, independent of the others."""

    hangs: float = 0.25
    ignores_cancel: float = 0.6
    """It goes on after a cancellation."""
    dies: float = 0.06
    corrupts: float = 0.05
    short_cut: float = 0.6
    """Where it is possible."""
    keeps_open: float = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFaultPlan:
    hangs_at: int | None
    """The step before which it hangs. The others likewise."""
    hangs_s: float
    dies_at: int | None
    corrupts_at: int | None
    ignores_cancel: bool
    short_cut: bool
    keeps_open: bool


def draw_fault_plan(rng: SimRng, habits: AttemptFaults) -> AttemptFaultPlan:
    def draw_step(share: float) -> int | None:
        return int(rng.exponential(6.0)) if rng.happens(share) else None

    return AttemptFaultPlan(
        hangs_at=draw_step(habits.hangs),
        hangs_s=rng.exponential(HANG_MEAN_S),
        dies_at=draw_step(habits.dies),
        corrupts_at=draw_step(habits.corrupts),
        ignores_cancel=rng.happens(habits.ignores_cancel),
        short_cut=rng.happens(habits.short_cut),
        keeps_open=rng.happens(habits.keeps_open),
    )


class AttemptLost(EblaError):
    """It died: its driver must never learn of this."""


class AttemptCancelled(EblaError):
    """It noticed that its job was cancelled."""


@dataclass(slots=True, kw_only=True)
class SimAttempt:
    """Shared by driver and executor."""

    id: AttemptId
    work: TransferTask
    rng: SimRng
    fault_plan: AttemptFaultPlan
    cancelled: bool = False
    ended: bool = False
    """As far as its driver knows."""


OnAttemptEnd = Callable[["Sequence[TransferResult] | EblaError"], None]
AttemptLaunch = tuple[SimAttempt, OnAttemptEnd]


class EngineAccess(Protocol):
    """What attempts need of their engine, `SimSparkEngine`."""

    def bulk_of(self, host: HostId) -> BulkHandle: ...

    def note_rows(self, transfer: TransferId, items: Sequence[Item], checkpoints: tuple[CheckpointId, ...]) -> None:
        """The rows that an attempt has read and is about to put."""
        ...


class SimExecutor:
    """A process that runs attempts."""

    def __init__(self, world: World, name: str, machine: str, engine: EngineAccess) -> None:
        self.world = world
        self.engine = engine
        self.unit = world.unit(name, self.run, machine=machine)
        self.environment: Environment | None = None
        self.inbox: asyncio.Queue[AttemptLaunch] = asyncio.Queue()
        self.short_cuts = 0

    async def run(self, environment: Environment) -> None:
        """One incarnation."""
        self.environment, self.inbox = environment, asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            while True:
                attempt, ended = await self.inbox.get()
                tasks.create_task(self._run(AttemptRun(self, environment, attempt, tasks), ended))

    async def _run(self, task: "AttemptRun", ended: OnAttemptEnd) -> None:
        end: Sequence[TransferResult] | EblaError
        try:
            end = await task.run()
        except EblaError as error:
            end = error
        except OSError as error:
            end = Unavailable(f"a file could not be used: {error}")
        ended(end)


class AttemptRun:
    """One running attempt."""

    def __init__(
        self, executor: SimExecutor, environment: Environment, attempt: SimAttempt, tasks: asyncio.TaskGroup
    ) -> None:
        self._executor = executor
        assert isinstance(environment.disk, ProcessDisk)
        self._disk = environment.disk
        self._attempt = attempt
        self._rng = attempt.rng
        self._fate = attempt.fault_plan
        self._tasks = tasks
        self._steps = 0
        self._pieces = 0
        self._streams: dict[HostId, SimFlightStream] = {}

    async def run(self) -> Sequence[TransferResult]:
        try:
            match self._attempt.work:
                case FileMove() as move:
                    return (await self._move_files(move),)
                case RowMove() as move:
                    return await self._move_rows(move)
                case ComparisonTask() as asked:
                    return await self._compare(asked)
        finally:
            # The kernel closes the streams, however the attempt ended. Nothing else is cleaned up.
            for stream in self._streams.values():
                stream.closed = True

    # -- what may happen at any step ---------------------------------------------------------------------------------

    async def _step(self) -> None:
        number, self._steps = self._steps, self._steps + 1
        if number == self._fate.dies_at:
            raise AttemptLost("killed")
        if number == self._fate.hangs_at:
            await asyncio.sleep(self._fate.hangs_s)
        if self._attempt.cancelled and not self._fate.ignores_cancel:
            raise AttemptCancelled("its job was cancelled")

    def _maybe_corrupted(self, data: bytes) -> bytes:
        number, self._pieces = self._pieces, self._pieces + 1
        if number != self._fate.corrupts_at or not data:
            return data
        at = self._rng.randrange(0, len(data))
        return data[:at] + bytes([data[at] ^ 1 << self._rng.randrange(0, 8)]) + data[at + 1 :]

    async def _again(self, host: HostId) -> None:
        """After a stream that broke or was refused."""
        stream = self._streams.pop(host, None)
        if stream is not None:
            stream.closed = True
        await asyncio.sleep(self._rng.exponential(RETRY_PAUSE_S))

    def _stream(self, host: HostId) -> SimFlightStream:
        found = self._streams.get(host)
        if found is not None:
            return found
        bulk = self._executor.engine.bulk_of(host)
        stream = self._streams[host] = connect(self._executor.world, self._rng, self._executor.unit, bulk)
        return stream

    # -- files -------------------------------------------------------------------------------------------------------

    async def _move_files(self, move: FileMove) -> MoveResult:
        layers = move.source.parts[move.part].layers
        named = [
            (f"{place}/{file.name}", f"{layer.folder}/{file.name}", file)
            for place, layer in enumerate(layers)
            for file in layer.files
        ]
        at_hand = self._fate.short_cut and self._is_here(move.target.machine, move.target.folder)
        staged = []
        for name, path, file in named:
            if at_hand:
                staged.append(await self._link_or_copy(move, name, path, file.inode))
            else:
                data = await self._fetch(move.source, path)
                staged.append(await self._put(move.target, name, _pieces(data)))
        self._executor.short_cuts += at_hand
        size = sum(one.size_bytes for one in staged)
        return MoveResult(
            transfer=move.target.transfer,
            attempt=self._attempt.id,
            files=tuple(staged),
            size_bytes=size,
            short_cut=at_hand,
        )

    async def _fetch(self, source: TransferSource, path: str) -> bytes:
        for _ in range(TRIES_MAX):
            try:
                return await self._fetch_once(source, path)
            except TRANSIENT_ERRORS:
                await self._again(source.host)
        raise Unreachable(f"{path} could not be read")

    async def _fetch_once(self, source: TransferSource, path: str) -> bytes:
        stream = self._stream(source.host)
        opened = await stream.call(partial(open_source, stream=stream, find=_finder(source)))
        read = b""
        while True:
            await self._step()
            piece = await stream.call(partial(_read_piece, source=opened, path=path, offset=len(read)))
            if not piece:
                return read
            read += piece

    async def _put(self, target: TransferTarget, name: str, pieces: Sequence[bytes]) -> StagedFile:
        """Returns the checksum of what was read at the source, whatever arrived."""
        data = b"".join(pieces)
        checksum = zlib.crc32(data)
        for _ in range(TRIES_MAX):
            try:
                answer = await self._put_once(target, name, pieces)
            except TRANSIENT_ERRORS:
                await self._again(target.host)
                continue
            if answer.checksum != checksum and self._fate.corrupts_at is None:
                raise Corruption(f"{name} arrived with another checksum")
            return StagedFile(name=name, size_bytes=len(data), checksum=checksum)
        raise Unreachable(f"{name} could not be put")

    async def _put_once(self, target: TransferTarget, name: str, pieces: Sequence[bytes]) -> PutAnswer:
        stream = self._stream(target.host)
        size = 0 if name == ROWS_NAME else sum(len(piece) for piece in pieces)
        put = FlightPut(ticket=target.ticket, attempt=self._attempt.id, name=name, size_bytes=size)
        place = await stream.call(lambda server: open_put(server, stream, put))
        passed, known = 0, place.received_bytes
        for piece in pieces:
            begin = max(0, known - passed)
            passed += len(piece)
            if begin < len(piece):
                await self._step()
                sent = self._maybe_corrupted(piece[begin:])
                await stream.call(partial(append, place=place, data=sent))
        await self._step()
        return await stream.call(partial(finish_put, place=place))

    # -- the short cut -----------------------------------------------------------------------------------------------

    def _is_here(self, machine: str, folder: str) -> bool:
        """By a file in the folder whose name only a process of that machine knows."""
        return bool(machine) and bool(folder) and self._disk.exists(f"{folder}/{machine}")

    async def _link_or_copy(self, move: FileMove, name: str, path: str, inode: int) -> StagedFile:
        await self._step()
        folder = f"{move.target.folder}/{self._attempt.id}"
        if self._steps == 1:
            self._make_folder(move.target.folder, folder)
        place = f"{folder}/{name}"
        self._disk.make_folder(place.rpartition("/")[0])
        if self._is_here(move.source.machine, move.source.folder) and inode:
            existing = f"{move.source.folder}/{path}"
            size = self._disk.size_bytes(existing)
            self._disk.link(existing, place)
            return StagedFile(name=name, size_bytes=size, inode=inode)
        data = await self._fetch(move.source, path)
        return await self._write_here(place, name, data)

    def _make_folder(self, staging: str, folder: str) -> None:
        """Sometimes creates parents that were swept: a late task must not fill the disk for ever."""
        if not self._disk.exists(staging) and not self._fate.ignores_cancel:
            raise Unavailable(f"{staging} is gone")
        self._disk.make_folder(folder)

    async def _write_here(self, place: str, name: str, data: bytes) -> StagedFile:
        file = self._disk.create(place)
        for piece in _pieces(data):
            await self._step()
            file.append(self._maybe_corrupted(piece))
        if self._fate.keeps_open:
            self._tasks.create_task(self._write_later(file))
        else:
            file.close()
        return StagedFile(name=name, size_bytes=len(data), checksum=zlib.crc32(data))

    async def _write_later(self, file: File) -> None:
        """A task that reported its end must not do this."""
        for _ in range(LATE_WRITES_MAX):
            await asyncio.sleep(self._rng.exponential(LATE_WRITE_MEAN_S))
            size = file.size()
            if size:
                file.write(self._rng.randrange(0, size), self._rng.bytes(1))
        file.close()

    # -- rows --------------------------------------------------------------------------------------------------------

    async def _move_rows(self, move: RowMove) -> list[MoveResult]:
        rows: list[Item] = []
        had: list[list[Item]] = [[] for _ in move.sources]
        for part in move.row_parts:
            replicas = [await self._read_rows(move.sources[number], part.range) for number in part.sources]
            rows += merge_streams([items for items, _ in replicas], move.schema or replicas[0][1])
            for number, (items, _) in zip(part.sources, replicas):
                had[number] += items
        read = tuple(source.checkpoint for source in move.sources)
        results = []
        for to in move.targets:
            wanted = missing_rows(rows, () if to.own is None else had[to.own], to.target.range)
            self._executor.engine.note_rows(to.target.transfer, wanted, read)
            results.append(await self._put_rows(to.target, wanted))
        return results

    async def _read_rows(self, source: TransferSource, token_range: TokenRange) -> tuple[list[Item], TableSchema]:
        await self._step()
        try:
            return await self._scan(source, lambda opened, disk: read_rows(opened, disk, token_range))
        except Corruption as error:
            raise SourceDamaged(f"on {source.host}: {error.message}") from error

    async def _put_rows(self, target: TransferTarget, wanted: Sequence[Item]) -> MoveResult:
        records = [
            encode_rows(rows_batch(wanted[start : start + ROWS_PER_RECORD]))
            for start in range(0, len(wanted), ROWS_PER_RECORD)
        ]
        staged = (await self._put(target, ROWS_NAME, records),) if records else ()
        size = sum(one.size_bytes for one in staged)
        return MoveResult(
            transfer=target.transfer, attempt=self._attempt.id, files=staged, rows=len(wanted), size_bytes=size
        )

    async def _scan(self, source: TransferSource, scan: Callable[[SourceStream, Disk], Awaitable[T]]) -> T:
        for _ in range(TRIES_MAX):
            try:
                return await scan_source(self._stream(source.host), _finder(source), scan)
            except TRANSIENT_ERRORS:
                await self._again(source.host)
        raise Unreachable(f"the rows of {source.host} could not be read")

    async def _compare(self, asked: ComparisonTask) -> Sequence[TransferResult]:
        hashes = []
        for source in asked.sources:
            await self._step()
            hashes.append(await self._scan(source, lambda opened, disk: read_hashes(opened, disk, asked)))
        return compare_hashes(asked, hashes)


# ---- in the incarnation of the bulk process


def _finder(source: TransferSource) -> Callable[[StreamService], Awaitable[SourceStream]]:
    async def find(service: StreamService) -> SourceStream:
        return service.open_source(source.ticket)

    return find


async def _read_piece(server: SimFlightServer, source: SourceStream, path: str, offset: int) -> bytes:
    file = server.environment.disk.open(f"{source.folder}/{path}")
    try:
        piece = file.read(offset, max(CHUNK_BYTES_MIN, file.size() // CHUNKS_MAX))
    finally:
        file.close()
    await server.service.admit_sending(source, len(piece))
    if not piece:
        server.service.close_source(source)
    return piece


def _pieces(data: bytes) -> list[bytes]:
    size = max(CHUNK_BYTES_MIN, len(data) // CHUNKS_MAX)
    return [data[start : start + size] for start in range(0, len(data), size)]
