"""Taps on shards for transfers: they record what becomes part of a stack.

They reach into private parts on purpose: a part that forgot to hold a guard would also forget to report it.
"""

import contextvars
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ebla.model.identity import Replica, SessionId, TransferId
from ebla.replica.replica_server import ReplicaServer
from ebla.sim.checkers.transfers import AdoptedLayers, TransfersLedger
from ebla.sim.disk import ProcessDisk
from ebla.storage.layers.layer import Item
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.manifest import Incarnation, LayerEntry, ManifestEdit, StackEntry
from ebla.storage.store import ShardStore
from ebla.wire.transfer_messages import AdoptAnswer, AdoptRequest

if TYPE_CHECKING:
    from ebla.storage.layers.layer import Layer
    from ebla.storage.stack import Stack


@dataclass(slots=True)
class _Adopting:
    """One call and the rows it has merged so far."""

    request: AdoptRequest
    began: float
    items: list[Item] = field(default_factory=list)


_ADOPTING: contextvars.ContextVar[_Adopting | None] = contextvars.ContextVar("adopting", default=None)


class TransferTaps:
    """For one incarnation of a shard."""

    def __init__(self, ledger: TransfersLedger, own: Replica, disk: ProcessDisk) -> None:
        self._ledger = ledger
        self._own = own
        self._disk = disk
        self._entries: dict[Incarnation, StackEntry] = {}
        self._fresh: dict[TransferId, str] = {}
        """The folder of the first layer of each transfer."""

    def watch(self, replica: ReplicaServer) -> None:
        adoptions, store = replica.adoptions, replica.context.store
        self._observe(store, began=None)
        self._watch_manifest(store)
        self._watch_rows(store)
        adopt = adoptions.adopt

        async def watched(request: AdoptRequest, deadline_ms: int) -> AdoptAnswer:
            call = _Adopting(request, self._ledger.now())
            token = _ADOPTING.set(call)
            try:
                answer = await adopt(request, deadline_ms)
            finally:
                _ADOPTING.reset(token)
            if answer.rows:
                self._ledger.merged(self._own, request.transfer, call.items)
            await self._check_built(request.transfer)
            return answer

        adoptions.adopt = watched  # type: ignore[method-assign]  # records, and does the same

    async def _check_built(self, transfer: TransferId) -> None:
        """A layer built from staged rows must hold all of them and nothing else."""
        folder = self._fresh.pop(transfer, None)
        if folder is None or not self._ledger.has_rows(transfer) or not self._disk.exists(folder):
            return  # files as they were sent, or a compaction was faster
        layer = await MemoryEngine(self._disk).open(folder, writable=False)
        self._ledger.merged(self._own, transfer, list(layer.scan()))
        await layer.discard()

    def _watch_manifest(self, store: ShardStore) -> None:
        manifest = store.manifest
        change = manifest.change

        async def watched(edit: ManifestEdit, then: Callable[[], None] = lambda: None) -> None:
            call = _ADOPTING.get()

            def noted() -> None:
                then()
                self._observe(store, None if call is None else call.began)

            await change(edit, noted)

        manifest.change = watched  # type: ignore[method-assign]  # records, and does the same

    def _watch_rows(self, store: ShardStore) -> None:
        write_open = store.write_open

        def watched(stack: "Stack", live: "Layer", items: Sequence[Item]) -> int:
            sequence = write_open(stack, live, items)
            call = _ADOPTING.get()
            if call is not None:
                self._ledger.effect(self._own, call.request.session, call.began)
                call.items.extend(items)
            return sequence

        store.write_open = watched  # type: ignore[method-assign]  # records, and does the same

    def _observe(self, store: ShardStore, began: float | None) -> None:
        """At a start `began` is None and nothing counts as an effect: an earlier incarnation adopted it."""
        at_start = not self._entries
        for stack in store.stacks.values():
            before = self._entries.get(stack.incarnation)
            if before is stack.entry:
                continue
            self._entries[stack.incarnation] = stack.entry
            known = () if before is None else tuple(one.id for one in before.bases)
            fresh: dict[str, list[LayerEntry]] = {}
            for entry in stack.entry.bases:
                if entry.origin and entry.id not in known:
                    fresh.setdefault(entry.origin, []).append(entry)
            for origin, layers in fresh.items():
                session, transfer = _named(origin)
                if began is not None and not at_start:
                    self._ledger.effect(self._own, session, began)
                placed = [(one, stack.folder_of(one)) for one in layers]
                self._fresh[transfer] = placed[0][1]
                self._ledger.appeared(
                    AdoptedLayers(
                        own=self._own, incarnation=stack.incarnation, session=session, transfer=transfer, layers=placed
                    ),
                    self._disk,
                )


def _named(origin: str) -> tuple[SessionId, TransferId]:
    session, _, transfer = origin.partition("/")
    return SessionId(uuid.UUID(session)), TransferId(uuid.UUID(transfer))
