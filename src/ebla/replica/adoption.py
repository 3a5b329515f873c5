"""Adopts sealed staging into a stack: layers become bases in one step, rows are merged into the live layer.

Everything happens under a guard that was entered behind a read barrier (INV-XFER-1), and into the same incarnation of
the stack that the staging was opened for. Repeating an adoption changes nothing: layers are known by the transfer that
brought them (INV-XFER-3), and rows merge with themselves.

A compaction must not drop a tombstone while older data may still arrive under it (INV-LAYER-GC). An open session holds
tombstone collection in all stacks of its table (`ReplicaStacks`). An adoption holds it once more while it runs. Without
that hold:

1. the adoption has its guard and reads what was sealed;
2. the session is closed, and its hold ends;
3. a compaction that dropped a tombstone is swapped in;
4. the adoption continues, as its guard allows, and a deleted row becomes visible again.

What a job writes was routed by a version of the topology, and is fenced like every other write
(`replica_context.py`): on arrival, before the effect and after it. The version is held while it runs, so that a barrier
waits for it. A layer takes effect by a write of the manifest, which takes more than one step. A fence that arrives in
the middle is not installed before that write is over (INV-ROWS-1), and from its arrival on nothing below it begins.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from ebla.model.errors import (
    Corruption,
    DeadlineExceeded,
    EblaError,
    InternalError,
    InvalidRequest,
    Overloaded,
    Refused,
    Stale,
)
from ebla.model.identity import SessionId, TableId, TopologyVersion, TransferId
from ebla.model.token import TokenRange, intersect_ranges
from ebla.replica.replica_context import OvertakenByFence, ReplicaContext, fenced_off, overtaken
from ebla.storage.codec.key_codec import in_spans, key_spans
from ebla.storage.codec.row_file import items_of, read_row_file
from ebla.storage.codec.staging_format import (
    SealedFile,
    TargetFile,
    is_inside,
    read_sealed,
    read_target,
    staging_folder,
    transfer_folder,
)
from ebla.storage.layers.layer import Item, LayerDamaged
from ebla.storage.stack import Stack
from ebla.storage.stack_changes import Adoption
from ebla.wire.transfer_messages import AdoptAnswer, AdoptRequest, FindTargetAnswer, FindTargetRequest

MERGE_RETRY_S = 0.02
"""The pause after a chunk of rows that the live layer could not accept."""


class StagingDamaged(Corruption):
    """What is on disk is not what was sealed. Nothing was changed."""


class PartialAdoption(InternalError):
    """Some of the rows were merged. Repeat the request under the same session to merge all."""


@dataclass(frozen=True, slots=True)
class _Staged:
    folder: str
    target: TargetFile
    sealed: SealedFile


class ShardAdoptions:
    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._staging = staging_folder(context.data_folder)
        self._coming_fence = TopologyVersion(0)
        """The fence of a view that is about to be installed."""
        self._effects: list[TopologyVersion] = []
        """The versions of manifest writes in progress."""
        self._effect_over = asyncio.Event()
        self._merging = asyncio.Lock()
        """Merge one chunk at a time. A job brings rows to many stacks at once, and merging a chunk for each in one turn
        would block the loop for too long."""
        self._running = 0
        self._serial = 0

    async def find_target(self, request: FindTargetRequest, deadline_ms: int) -> FindTargetAnswer:
        """The session was open on return. As long as it is, no tombstone is collected in the stack."""
        context = self._context
        await context.wait_version(request.version, deadline_ms)
        async with context.guards.hold_guard(request.session, deadline_ms):
            stack = self._held_stack(request.session, request.table, request.range)
            transfer = request.transfer
            is_adopted = transfer is not None and origin_of(request.session, transfer) in stack.entry.adopted
            return FindTargetAnswer(
                incarnation=stack.incarnation,
                stack_range=stack.entry.range,
                free_bytes=context.store.free_bytes,
                is_adopted=is_adopted,
            )

    async def adopt(self, request: AdoptRequest, deadline_ms: int) -> AdoptAnswer:
        """Durable on return. `OvertakenByFence`: the data is there, but must not be relied on."""
        context, version = self._context, request.version
        if self._running >= context.limits.adoptions_max:
            raise Overloaded(f"{self._running} adoptions run already", advice="try again in a moment")
        if version is None:
            return await self._begin(request, deadline_ms)
        self._check_fence(version)
        context.view.hold(version)
        try:
            await context.wait_version(version, deadline_ms)
            answer = await self._begin(request, deadline_ms)
            fence = context.view.current.fence
            if version < fence:
                raise overtaken(version, fence)
            return answer
        finally:
            context.view.release(version)

    async def _begin(self, request: AdoptRequest, deadline_ms: int) -> AdoptAnswer:
        context = self._context
        self._running += 1
        try:
            await self._wait_fence(request.fence, deadline_ms)
            async with context.guards.hold_guard(request.session, deadline_ms):
                # Nothing awaits between the guard and the hold: the open session holds collection in between.
                stack = self._held_stack(request.session, request.table, request.range)
                self._serial += 1
                hold = f"adoption {self._serial}"
                context.store.add_gc_hold(stack, hold)
                try:
                    return await self._adopt(request, stack, deadline_ms)
                finally:
                    context.store.release_gc(stack, hold)
        finally:
            self._running -= 1

    async def before_fence(self, fence: TopologyVersion) -> None:
        """A view with this fence is about to be installed. On return no layer of an older version is being adopted, and
        none will be."""
        self._coming_fence = max(self._coming_fence, fence)
        while any(version < fence for version in self._effects):
            self._effect_over.clear()
            await self._effect_over.wait()

    # -- checks ----------------------------------------------------------------------------------------------------

    async def _wait_fence(self, fence: TopologyVersion, deadline_ms: int) -> None:
        """Waits outside of the guard: inside, it would delay the end of the session."""
        wait_ms = min(deadline_ms, self._context.limits.fence_wait_ms)
        if not await self._context.view.wait_fence(fence, wait_ms / 1000):
            raise Stale(f"the fence has not come to version {fence} here within {wait_ms} ms", advice="try again")

    def _held_stack(self, session: SessionId, table: TableId, token_range: TokenRange) -> Stack:
        """The stack that covers the range. To be called in the step in which the guard was entered."""
        context = self._context
        context.check_table(table)
        opened = context.view.current.snapshot.sessions[session]
        if opened.table is not None and opened.table != table:
            raise InvalidRequest(f"session {session} is for table {opened.table}, not for {table}")
        stack = context.stacks.covering(table, token_range)
        if stack is None:
            version = context.view.current.version
            raise Stale(
                f"no replica of table {table} on this shard covers the tokens after {token_range.start} up to "
                f"{token_range.end} at version {version}",
                advice="refresh and retry",
            )
        stack.check()
        if not context.stacks.is_collecting_held(stack):
            raise Refused(f"session {session} holds nothing in table {table}", advice="open one for this table")
        return stack

    def _check_fence(self, version: TopologyVersion) -> None:
        fence = self._context.view.current.fence
        if version < fence:
            raise fenced_off(version, fence)

    def _check_there(self, request: AdoptRequest, stack: Stack) -> None:
        """To be called in the step of the effect, and once more after it."""
        if self._context.stacks.covering(request.table, request.range) is not stack:
            raise Stale("the replica left this shard meanwhile", advice="refresh and retry")

    def _check_before(self, request: AdoptRequest, stack: Stack) -> None:
        """To be called in the step of the effect."""
        self._check_there(request, stack)
        version = request.version
        if version is not None:
            self._check_fence(version)
            if version < self._coming_fence:
                raise Stale(f"version {version} is about to be fenced off by {self._coming_fence}", advice="refresh")

    def _check_layers(self, stack: Stack, layers: int) -> None:
        """A job brings layers as fast as disks allow, and a read looks into each of them. Further layers wait until
        these are compacted."""
        layers_max, bases = self._context.limits.adopted_layers_max, len(stack.entry.bases)
        if bases + layers > max(layers_max, layers):
            self._context.store.compaction_wanted.set()
            raise Overloaded(
                f"replica {stack.incarnation:016x} has {bases} layers, and with {layers} more it would have over "
                f"{layers_max}; they are being compacted",
                advice="try again in a while; fewer and larger jobs make fewer layers, and limits.adopted_layers_max "
                "says how many there may be",
            )

    async def _staged(self, request: AdoptRequest, stack: Stack) -> _Staged:
        folder = transfer_folder(self._staging, request.session, request.transfer)
        target = await read_target(self._context.disk, folder)
        if target is None:
            raise Refused(f"nothing is staged here for transfer {request.transfer}", advice="open its staging first")
        if (target.table, target.shard, target.range) != (request.table, self._context.shard, request.range):
            raise InvalidRequest(f"the staging of transfer {request.transfer} was opened for something else")
        if target.incarnation != stack.incarnation:
            raise Stale(
                f"transfer {request.transfer} was staged for replica {target.incarnation:016x}, and this one is "
                f"{stack.incarnation:016x}",
                advice="it was emptied, or left and came back, since: start the job again",
            )
        sealed = await read_sealed(self._context.disk, folder)
        if sealed is None:
            raise Refused(f"transfer {request.transfer} is not sealed", advice="seal one of its attempts first")
        return _Staged(folder, target, sealed)

    # -- the effect --------------------------------------------------------------------------------------------------

    async def _adopt(self, request: AdoptRequest, stack: Stack, deadline_ms: int) -> AdoptAnswer:
        expires_at = asyncio.get_running_loop().time() + deadline_ms / 1000
        staged = await self._staged(request, stack)
        if self._context.view.current.fence < request.fence:
            raise Stale(f"the fence is not at version {request.fence} here", advice="try again")
        self._check_before(request, stack)
        layers = await self._adopt_layers(request, stack, staged)
        rows = 0
        if staged.sealed.rows_file:
            path = f"{staged.folder}/{staged.sealed.rows_file}"
            await self._check_rows(path, staged.sealed.rows)
            rows = await self._merge_rows(request, stack, path, expires_at)
        self._check_there(request, stack)
        return AdoptAnswer(layers, rows)

    async def _adopt_layers(self, request: AdoptRequest, stack: Stack, staged: _Staged) -> int:
        origin = origin_of(request.session, request.transfer)
        adoptions = [
            Adoption(f"{staged.folder}/{layer.folder}", part, origin)
            for layer in staged.sealed.layers
            for part in intersect_ranges(layer.range, staged.target.range)
        ]
        if not adoptions:
            return 0
        store = self._context.store
        if request.version is not None and origin not in stack.entry.adopted:
            self._check_layers(stack, len(adoptions))
        begun: list[TopologyVersion] = []

        def begin_effect() -> None:
            self._check_before(request, stack)
            if request.version is not None:
                begun.append(request.version)
                self._effects.append(request.version)

        try:
            return await store.adopt_all(stack, adoptions, self._ended(stack.entry.adopted), begin_effect)
        except LayerDamaged as failure:
            if is_inside(failure.folder, staged.folder):
                raise _damaged(request.transfer, failure) from failure
            store.note_damage(stack, failure)
            raise
        finally:
            for version in begun:
                self._effects.remove(version)
                self._effect_over.set()

    def _ended(self, origins: Sequence[str]) -> list[str]:
        """The origins whose sessions are closed: their adoptions cannot be repeated. The view has reached a read
        barrier, so a session that is open and not in it was opened after all of these were adopted."""
        listed = {str(session) for session in self._context.view.current.snapshot.sessions}
        return [origin for origin in origins if origin.partition("/")[0] not in listed]

    async def _check_rows(self, path: str, rows: int) -> None:
        """The whole file, before any row of it is merged."""
        found = 0
        try:
            async with aclosing(read_row_file(self._context.disk, path)) as batches:
                async for batch in batches:
                    found += batch.num_rows
        except FileNotFoundError:
            raise _damaged_rows(path, "it is missing") from None
        if found != rows:
            raise _damaged_rows(path, f"it has {found} rows, and {rows} were sealed")

    async def _merge_rows(self, request: AdoptRequest, stack: Stack, path: str, expires_at: float) -> int:
        merged = 0
        limits, spans = self._context.limits, key_spans(request.range)
        try:
            async with aclosing(read_row_file(self._context.disk, path)) as batches:
                async for batch in batches:
                    for start in range(0, batch.num_rows, limits.adopt_items_max):
                        items = items_of(batch.slice(start, limits.adopt_items_max))
                        wanted = [item for item in items if in_spans(item[0], spans)]
                        for piece in chunks_of(wanted, limits.adopt_bytes_max):
                            await self._merge(request, stack, piece, expires_at)
                            merged += len(piece)
            await self._context.store.sync()
        except EblaError as error:
            if not merged:
                raise
            if isinstance(error, Stale) and request.version is not None:
                raise OvertakenByFence(f"only some of the rows were merged: {error.message}") from error
            raise PartialAdoption(f"only some of the rows were merged: {error.message}", advice="ask again") from error
        return merged

    async def _merge(self, request: AdoptRequest, stack: Stack, items: Sequence[Item], expires_at: float) -> None:
        store, loop = self._context.store, asyncio.get_running_loop()
        while True:
            async with self._merging:
                live = await store.open_live(stack)
                self._check_before(request, stack)
                began_at = loop.time()
                try:
                    store.write_open(stack, live, items)
                except Overloaded as error:
                    if began_at >= expires_at:
                        raise DeadlineExceeded(f"the live layer takes nothing: {error.message}") from error
                else:
                    await asyncio.sleep(loop.time() - began_at)  # leave half of the time to clients
                    return
            await asyncio.sleep(MERGE_RETRY_S)


def origin_of(session: SessionId, transfer: TransferId) -> str:
    return f"{session}/{transfer}"


def chunks_of(items: Sequence[Item], bytes_max: int) -> Iterator[Sequence[Item]]:
    """Chunks of at most `bytes_max`, except for a single item that is larger."""
    first, size = 0, 0
    for index, (key, value) in enumerate(items):
        item_bytes = len(key) + len(value)
        if size + item_bytes > bytes_max and index > first:
            yield items[first:index]
            first, size = index, 0
        size += item_bytes
    if first < len(items):
        yield items[first:]


def _damaged(transfer: TransferId, failure: LayerDamaged) -> StagingDamaged:
    return StagingDamaged(
        f"what was sealed of transfer {transfer} cannot be read: {failure.message}",
        advice="check the device and start the job again",
    )


def _damaged_rows(path: str, what: str) -> StagingDamaged:
    return StagingDamaged(f"the sealed file {path} is damaged: {what}", advice="check the device, start the job again")
