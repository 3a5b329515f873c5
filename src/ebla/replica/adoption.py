"""Sealed staging becomes part of a stack: layers as bases in one step, rows merged into the live layer.

Everything happens under a guard, entered behind a read barrier (INV-XFER-1), and into the very life of the stack that
the staging was opened for. Asked for again, nothing changes: layers are known by the transfer that brought them
(INV-XFER-3), and rows merge with themselves.

A fold must not drop a tombstone while something older is on its way under it (INV-LAYER-GC). An open session holds the
collecting in all stacks of its table (`ReplicaStacks`); an adoption holds it once more for as long as it runs. Without
that: the adoption has its guard and reads what was sealed; the session is closed, and with its end the first hold goes;
a fold is swapped in that dropped a tombstone; the adoption goes on, as its guard lets it, and an older row comes out.

What a job writes was routed by a version of the topology, and is fenced like every other write (`fences.py`): on
arrival, before the effect, after it; and the version is held for as long as it runs, so that a barrier waits for it.
A layer takes effect by a write of the manifest, which is not one step: a fence that comes in the middle of it is not
installed before it is over (INV-ROWS-1), and from its coming on nothing below it begins.
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
from ebla.model.token import TokenRange
from ebla.replica.checkpoints import ShardTransferDeps, check_table, wait_version
from ebla.replica.fences import Fences, OvertakenByFence
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
"""After a piece of rows that the live layer could not take."""


class StagingDamaged(Corruption):
    """What was sealed is not what is there. Nothing was changed."""


class PartialAdoption(InternalError):
    """Some of the rows were merged. Asked for again under the same session, all will be."""


@dataclass(frozen=True, slots=True)
class _Staged:
    folder: str
    target: TargetFile
    sealed: SealedFile


class ShardAdoptions:
    def __init__(self, parts: ShardTransferDeps) -> None:
        self._parts = parts
        self._staging = staging_folder(parts.data_folder)
        self._fences = Fences(parts.view)
        self._coming_fence = TopologyVersion(0)
        """Of a view that is about to be installed."""
        self._effects: list[TopologyVersion] = []
        """Of writes of the manifest that are under way."""
        self._effect_over = asyncio.Event()
        self._merging = asyncio.Lock()
        """One piece of rows at a time: a job brings rows to many stacks at once, and a piece of each would be so many
        times as long a turn."""
        self._running = 0
        self._serial = 0

    async def find_target(self, request: FindTargetRequest, deadline_ms: int) -> FindTargetAnswer:
        """On return the session was open, and as long as it is, nothing is collected in the stack."""
        parts = self._parts
        await wait_version(parts, request.version, deadline_ms)
        async with parts.guards.hold_guard(request.session, deadline_ms):
            stack = self._held_stack(request.session, request.table, request.range)
            return FindTargetAnswer(stack.incarnation, stack.entry.range, parts.store.free_bytes)

    async def adopt(self, request: AdoptRequest, deadline_ms: int) -> AdoptAnswer:
        """Durable on return. `OvertakenByFence`: it is there, and nobody may count on it."""
        parts, version = self._parts, request.version
        if self._running >= parts.limits.adoptions_max:
            raise Overloaded(f"{self._running} adoptions run already", advice="try again in a moment")
        if version is None:
            return await self._begin(request, deadline_ms)
        _pass(self._fences.on_arrival(version))
        parts.view.hold(version)
        try:
            await wait_version(parts, version, deadline_ms)
            answer = await self._begin(request, deadline_ms)
            _pass(self._fences.after_effect(version))
            return answer
        finally:
            parts.view.release(version)

    async def _begin(self, request: AdoptRequest, deadline_ms: int) -> AdoptAnswer:
        parts = self._parts
        self._running += 1
        try:
            await self._wait_fence(request.fence, deadline_ms)
            async with parts.guards.hold_guard(request.session, deadline_ms):
                # Nothing awaits between the guard and the hold: the session is open in between, and holds as well.
                stack = self._held_stack(request.session, request.table, request.range)
                self._serial += 1
                hold = f"adoption {self._serial}"
                parts.store.add_gc_hold(stack, hold)
                try:
                    return await self._adopt(request, stack, deadline_ms)
                finally:
                    parts.store.release_gc(stack, hold)
        finally:
            self._running -= 1

    async def before_fence(self, fence: TopologyVersion) -> None:
        """A view with this fence is about to be installed. On return no layer of an older version is on its way into a
        stack, and none will be."""
        self._coming_fence = max(self._coming_fence, fence)
        while any(version < fence for version in self._effects):
            self._effect_over.clear()
            await self._effect_over.wait()

    # -- what has to be so -------------------------------------------------------------------------------------------

    async def _wait_fence(self, fence: TopologyVersion, deadline_ms: int) -> None:
        """Outside of the guard, which would keep the end of the session waiting."""
        wait_ms = min(deadline_ms, self._parts.limits.fence_wait_ms)
        if not await self._parts.view.wait_fence(fence, wait_ms / 1000):
            raise Stale(f"the fence has not come to version {fence} here within {wait_ms} ms", advice="try again")

    def _held_stack(self, session: SessionId, table: TableId, token_range: TokenRange) -> Stack:
        """The one that covers the range. To be asked for in the step in which the guard was entered."""
        parts = self._parts
        check_table(parts, table)
        opened = parts.view.current.snapshot.sessions[session]
        if opened.table is not None and opened.table != table:
            raise InvalidRequest(f"session {session} is for table {opened.table}, not for {table}")
        stack = parts.stacks.covering(table, token_range)
        if stack is None:
            version = parts.view.current.version
            raise Stale(
                f"no replica of table {table} on this shard covers the tokens after {token_range.start} up to "
                f"{token_range.end} at version {version}",
                advice="refresh and retry",
            )
        stack.check()
        if not parts.stacks.is_collecting_held(stack):
            raise Refused(f"session {session} holds nothing in table {table}", advice="open one for this table")
        return stack

    def _check_there(self, request: AdoptRequest, stack: Stack) -> None:
        """To be asked for in the step of the effect, and once more behind it."""
        if self._parts.stacks.covering(request.table, request.range) is not stack:
            raise Stale("the replica left this shard meanwhile", advice="refresh and retry")

    def _check_before(self, request: AdoptRequest, stack: Stack) -> None:
        """In the step of the effect."""
        self._check_there(request, stack)
        version = request.version
        if version is not None:
            _pass(self._fences.before_effect(version))
            if version < self._coming_fence:
                raise Stale(f"version {version} is about to be fenced off by {self._coming_fence}", advice="refresh")

    def _check_layers(self, stack: Stack, layers: int) -> None:
        """A job brings layers as fast as disks are, and a read looks into each of them: who brings more waits until
        they are folded."""
        layers_max, bases = self._parts.limits.adopted_layers_max, len(stack.entry.bases)
        if bases + layers > max(layers_max, layers):
            self._parts.store.compaction_wanted.set()
            raise Overloaded(
                f"replica {stack.incarnation:016x} has {bases} layers, and with {layers} more it would have over "
                f"{layers_max}; they are being folded",
                advice="try again in a while; fewer and larger jobs make fewer layers, and limits.adopted_layers_max "
                "says how many there may be",
            )

    async def _staged(self, request: AdoptRequest, stack: Stack) -> _Staged:
        folder = transfer_folder(self._staging, request.session, request.transfer)
        target = await read_target(self._parts.disk, folder)
        if target is None:
            raise Refused(f"nothing is staged here for transfer {request.transfer}", advice="open its staging first")
        if (target.table, target.shard, target.range) != (request.table, self._parts.shard, request.range):
            raise InvalidRequest(f"the staging of transfer {request.transfer} was opened for something else")
        if target.incarnation != stack.incarnation:
            raise Stale(
                f"transfer {request.transfer} was staged for replica {target.incarnation:016x}, and this one is "
                f"{stack.incarnation:016x}",
                advice="it was emptied, or left and came back, since: start the job again",
            )
        sealed = await read_sealed(self._parts.disk, folder)
        if sealed is None:
            raise Refused(f"transfer {request.transfer} is not sealed", advice="seal one of its attempts first")
        return _Staged(folder, target, sealed)

    # -- the effect --------------------------------------------------------------------------------------------------

    async def _adopt(self, request: AdoptRequest, stack: Stack, deadline_ms: int) -> AdoptAnswer:
        expires_at = asyncio.get_running_loop().time() + deadline_ms / 1000
        staged = await self._staged(request, stack)
        if self._parts.view.current.fence < request.fence:
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
        store = self._parts.store
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
        """Of sessions that are closed: nobody can ask for them again. The view has come to a read barrier, so one that
        is open and not in it was opened after whatever is told of here was adopted."""
        listed = {str(session) for session in self._parts.view.current.snapshot.sessions}
        return [origin for origin in origins if origin.partition("/")[0] not in listed]

    async def _check_rows(self, path: str, rows: int) -> None:
        """The whole file, before any row of it is merged."""
        found = 0
        try:
            async with aclosing(read_row_file(self._parts.disk, path)) as batches:
                async for batch in batches:
                    found += batch.num_rows
        except FileNotFoundError:
            raise _damaged_rows(path, "it is missing") from None
        if found != rows:
            raise _damaged_rows(path, f"it has {found} rows, and {rows} were sealed")

    async def _merge_rows(self, request: AdoptRequest, stack: Stack, path: str, expires_at: float) -> int:
        merged = 0
        limits, spans = self._parts.limits, key_spans(request.range)
        try:
            async with aclosing(read_row_file(self._parts.disk, path)) as batches:
                async for batch in batches:
                    for start in range(0, batch.num_rows, limits.adopt_items_max):
                        items = items_of(batch.slice(start, limits.adopt_items_max))
                        wanted = [item for item in items if in_spans(item[0], spans)]
                        for piece in chunks_of(wanted, limits.adopt_bytes_max):
                            await self._merge(request, stack, piece, expires_at)
                            merged += len(piece)
            await self._parts.store.sync()
        except EblaError as error:
            if not merged:
                raise
            if isinstance(error, Stale) and request.version is not None:
                raise OvertakenByFence(f"only some of the rows were merged: {error.message}") from error
            raise PartialAdoption(f"only some of the rows were merged: {error.message}", advice="ask again") from error
        return merged

    async def _merge(self, request: AdoptRequest, stack: Stack, items: Sequence[Item], expires_at: float) -> None:
        store, loop = self._parts.store, asyncio.get_running_loop()
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
                    await asyncio.sleep(loop.time() - began_at)  # half of the time is for whoever is served
                    return
            await asyncio.sleep(MERGE_RETRY_S)


def _pass(refusal: Stale | None) -> None:
    if refusal is not None:
        raise refusal


def origin_of(session: SessionId, transfer: TransferId) -> str:
    return f"{session}/{transfer}"


def intersect_ranges(token_range: TokenRange, within: TokenRange) -> tuple[TokenRange, ...]:
    """What of a range is in another: one piece, or two where they meet at both ends, or none."""
    if within.covers(token_range):
        return (token_range,)
    if token_range.covers(within):
        return (within,)
    pieces = [
        TokenRange(max(one.start, other.start), min(one.end, other.end))
        for one in token_range.unwrapped()
        for other in within.unwrapped()
        if max(one.start, other.start) < min(one.end, other.end)
    ]
    return tuple(sorted(pieces))


def chunks_of(items: Sequence[Item], bytes_max: int) -> Iterator[Sequence[Item]]:
    """One after another, none over the bound but an item that is so by itself."""
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
