"""Staging as a bulk process leaves it, written by the test itself."""

import uuid
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from tests.unit.replica.shard_rig import DATA, OWN, ShardRig, in_shard, small_cluster, with_sessions
from tests.unit.storage.small_table import SMALL
from tests.unit.storage.store_rig import Rig, limits, plain

from ebla.model.identity import AttemptId, SessionId, TopologyVersion, TransferId
from ebla.model.token import WHOLE_RING, TokenRange
from ebla.model.transfers import StagingKind
from ebla.options import CommitLogMode
from ebla.ports.disk import Disk
from ebla.replica.replica_context import ReplicaLimits
from ebla.storage.codec.row_file import encode_rows, rows_batch
from ebla.storage.codec.staging_format import (
    SealedFile,
    SealedLayer,
    TargetFile,
    staging_folder,
    transfer_folder,
    write_sealed,
    write_target,
)
from ebla.storage.layers.layer import Item, build_layer
from ebla.storage.merge.row_merge import facts_of
from ebla.topology.snapshot import Session, Snapshot
from ebla.topology.states import SessionKind
from ebla.topology.tablet_map import TabletMap, tablet_map
from ebla.wire.transfer_messages import AdoptRequest

SESSION = SessionId(uuid.UUID(int=31))
OPEN = Session(id=SESSION, kind=SessionKind.BULK_JOB, table=SMALL.id)
TRANSFER = TransferId(uuid.UUID(int=41))
ATTEMPT = AttemptId(uuid.UUID(int=51))


ONE = tablet_map(SMALL.id, [(OWN,)])
ITEMS = tuple(sorted(plain(number, 1, 5) for number in range(20)))
AT_ONCE_MS = 1_000


def opened(tablets: TabletMap = ONE, *, version: int = 2, fence: int = 1) -> Snapshot:
    return with_sessions(small_cluster(tablets, version=version, fence=fence), OPEN)


def disk_of(rig: Rig) -> Disk:
    assert rig.engine is not None
    return rig.engine.disk


def request_of(
    token_range: TokenRange = WHOLE_RING,
    *,
    session: SessionId = SESSION,
    transfer: TransferId = TRANSFER,
    fence: int = 0,
    version: int | None = None,
) -> AdoptRequest:
    routed_by = None if version is None else TopologyVersion(version)
    return AdoptRequest(
        session=session,
        transfer=transfer,
        table=SMALL.id,
        range=token_range,
        fence=TopologyVersion(fence),
        version=routed_by,
    )


class Staging:
    """Of one transfer."""

    def __init__(self, rig: Rig, shard: ShardRig, request: AdoptRequest) -> None:
        self._rig = rig
        self._shard = shard
        self._request = request
        self.folder = transfer_folder(staging_folder(DATA), request.session, request.transfer)
        disk_of(rig).make_folder(self.folder)

    async def open(self, kind: StagingKind, **fields: object) -> None:
        """For the stack that covers the range now."""
        stack = self._shard.stacks.covering(SMALL.id, self._request.range)
        assert stack is not None
        target = TargetFile(
            table=SMALL.id, shard=OWN.shard, incarnation=stack.incarnation, range=self._request.range, kind=kind
        )
        await write_target(disk_of(self._rig), self.folder, msgspec.structs.replace(target, **fields))

    async def seal_layers(self, layers: Sequence[tuple[TokenRange, Sequence[Item]]]) -> None:
        sealed: list[SealedLayer] = []
        disk_of(self._rig).make_folder(f"{self.folder}/sealed")
        for number, (token_range, items) in enumerate(layers):
            sealed.append(SealedLayer(f"sealed/{number}", token_range))
            await self.build(sealed[-1].folder, items)
        await write_sealed(disk_of(self._rig), self.folder, SealedFile(attempt=ATTEMPT, layers=tuple(sealed)))

    async def build(self, name: str, items: Sequence[Item]) -> None:
        assert self._rig.engine is not None
        facts = facts_of([value for _, value in items], SMALL)
        await build_layer(self._rig.engine, f"{self.folder}/{name}", sorted(items), facts)

    async def seal_rows(self, *records: Sequence[Item], rows: int | None = None) -> None:
        data = b"".join(encode_rows(rows_batch(items)) for items in records)
        disk_of(self._rig).make_folder(f"{self.folder}/sealed")
        file = disk_of(self._rig).create(f"{self.folder}/sealed/rows")
        file.append(data)
        await file.sync()
        file.close()
        count = sum(map(len, records)) if rows is None else rows
        sealed = SealedFile(attempt=ATTEMPT, rows_file="sealed/rows", rows=count, size_bytes=len(data))
        await write_sealed(disk_of(self._rig), self.folder, sealed)


def adopted_in(work: Callable[[ShardRig, Rig, Staging], Awaitable[None]], **bounds: int) -> None:
    """With a session open on a table of one tablet."""
    rig = Rig(bounds=limits(CommitLogMode.PERIODIC, period_ms=60_000))

    async def main(shard: ShardRig) -> None:
        await shard.follow(opened())
        await work(shard, rig, Staging(rig, shard, request_of()))

    in_shard(main, rig=rig, bounds=ReplicaLimits(version_wait_ms=200, fence_wait_ms=200, **bounds))
