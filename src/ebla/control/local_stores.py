"""The stores of this node's shards: control creates, adopts and checks them, and tells each shard which one to open.

All of it happens before the node listens. The order for a store that the mark does not know yet:

1. Its id is drawn and written to the mark, durably.
2. The store is created, or a store of the previous release is given that id.
3. The mark says that the store is there. From now on it is only checked, and never created again: a folder that is
   empty has lost it.

Then every store is stamped with the incarnation that this start will have, and after that the mark names it: a log or
layers from an older copy have a smaller stamp than the mark.

A crash between any two steps leaves them to the next start, with the id that was drawn. In a folder of the previous
release the format is raised after the last store, so until then the next start adopts the rest.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from ebla.control.group0.join_state import JoinStateFile, StoreMark
from ebla.model.advice import replace_node_advice
from ebla.model.errors import DiskFull, Refused
from ebla.model.identity import HostId, ShardNumber, StoreId
from ebla.observe.event_reporter import EventReporter
from ebla.ports.environment import Environment
from ebla.storage.manifest import manifest_path
from ebla.storage.store_identity import StoreLost, adopt_store, check_store, create_store, stamp_store
from ebla.version import DATA_FORMAT


class LocalStores:
    """`folder` is the node's data folder."""

    def __init__(
        self, environment: Environment, folder: str, host: HostId, mark: JoinStateFile, report: EventReporter
    ) -> None:
        self._disk = environment.disk
        self._rng = environment.rng
        self._folder = folder
        self._host = host
        self._mark = mark
        self._report = report

    async def prepare(self, shard_count: int, is_past_none: Callable[[], Awaitable[bool]]) -> None:
        """Returns once every store is there. Raises `Refused` if one is lost. `is_past_none`: whether this node is in
        the ring or was in it, so that its shards had stores; needed for a folder of the previous release only."""
        await self._mark.load()
        adopts = await self._format() < DATA_FORMAT
        number = 0
        while number < max(shard_count, len(self._mark.mark.stores)) or (adopts and self._has_manifest(number)):
            await self._prepare_one(number, is_past_none if adopts else None)
            number += 1
        await self._stamp()
        if adopts:
            await self._raise_format()

    async def _prepare_one(self, number: int, is_past_none: Callable[[], Awaitable[bool]] | None) -> None:
        marks = self._mark.mark.stores
        if number < len(marks) and marks[number].is_created:
            await self.check(ShardNumber(number))
            return
        folder = self._shard_folder(number)
        is_there = self._has_manifest(number)
        if is_past_none is not None and not is_there and await is_past_none():
            raise self._lost(number, f"its store is missing in {folder}")
        store = marks[number].store if number < len(marks) else StoreId(self._rng.uuid())
        await self._save(number, StoreMark(store=store, is_created=False))
        try:
            if is_past_none is not None and is_there:
                await adopt_store(self._disk, self._rng, folder, store)
                self._report("store.adopted", {"shard": number, "store": str(store)})
            else:
                await create_store(self._disk, self._rng, folder, store)
                self._report("store.created", {"shard": number, "store": str(store)})
        except StoreLost as error:
            raise self._lost(number, error.message) from error
        await self._save(number, StoreMark(store=store, is_created=True))

    async def _stamp(self) -> None:
        """On a full disk the stamps of an earlier start stay. The start fails at its own incarnation a moment later,
        and by then the node can be asked why."""
        with suppress(DiskFull):
            await self._stamp_all()

    async def _stamp_all(self) -> None:
        mark = self._mark.mark
        incarnation = mark.incarnation + 1
        for number in range(len(mark.stores)):
            await stamp_store(self._disk, self._shard_folder(number), incarnation)
        # After the stamps: a mark that is ahead of them would refuse a store that was there all the time.
        await self._mark.save(stores=tuple(msgspec.structs.replace(one, stamped=incarnation) for one in mark.stores))

    def id_of(self, shard: ShardNumber) -> StoreId:
        return self._mark.mark.stores[shard].store

    async def check(self, shard: ShardNumber) -> None:
        """INV-START-3: raises `Refused` if the shard's folder no longer holds its store. Changes nothing."""
        try:
            mark = self._mark.mark.stores[shard]
            await check_store(self._disk, self._shard_folder(shard), mark.store, mark.stamped)
        except StoreLost as error:
            raise self._lost(shard, error.message) from error

    def _lost(self, shard: int, what: str) -> Refused:
        return Refused(
            f"shard {shard}: {what}. Nothing was changed",
            advice=f"is its disk mounted? If it is lost, {replace_node_advice(self._host)}",
        )

    def _shard_folder(self, number: int) -> str:
        return f"{self._folder}/shard-{number}"

    def _has_manifest(self, number: int) -> bool:
        return self._disk.exists(manifest_path(self._shard_folder(number)))

    async def _save(self, number: int, store: StoreMark) -> None:
        marks = self._mark.mark.stores
        stores = (*marks[:number], store, *marks[number + 1 :])
        await self._mark.save(stores=stores)

    # ---- the format of the folder

    @property
    def _format_path(self) -> str:
        return f"{self._folder}/FORMAT"

    async def _format(self) -> int:
        """Without a file the folder is new: `runtime/data_folder.py` has checked it."""
        if not self._disk.exists(self._format_path):
            return DATA_FORMAT
        file = self._disk.open(self._format_path)
        try:
            return int(file.read(0, 16))
        finally:
            file.close()

    async def _raise_format(self) -> None:
        """Last: a release that knows only the previous format would create stores on its own."""
        temporary = f"{self._format_path}.new"
        if self._disk.exists(temporary):
            self._disk.unlink(temporary)
        file = self._disk.create(temporary)
        try:
            file.append(f"{DATA_FORMAT}\n".encode())
            await file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, self._format_path)
        await self._disk.sync_folder(self._folder)
