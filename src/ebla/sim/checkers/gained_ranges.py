"""INV-NODE-20: a vnode range that a node gains starts empty.

Looked at in every stack and in the commit log of each shard, after it has prepared for the view by which its node gains
the range and before it installs it: nobody may have sent it a row of the range yet.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ebla.feed.topology_view import View
from ebla.model.identity import Replica, RequestId, TableId
from ebla.model.token import TokenRange, merge_ranges, subtract_ranges
from ebla.model.transaction import Revision
from ebla.node.shard_process import ShardProcess
from ebla.storage.codec.key_codec import decode_token, key_spans
from ebla.storage.commit_log import LogRecord
from ebla.storage.stack import Stack
from ebla.storage.store import ShardStore
from ebla.topology.routing.replica_sets import HeldRangesOfHost, VnodeReplicas


@dataclass(frozen=True, slots=True)
class _Held:
    at: Revision
    ranges: tuple[TokenRange, ...]
    operation: RequestId | None
    """By which some of them were pending."""


@dataclass(slots=True, kw_only=True)
class GainedRangesLedger:
    fail: Callable[[str], None]
    gains: int = 0
    """How often a shard had something of a table that it gained a range of."""
    _held: dict[tuple[Replica, TableId], _Held] = field(default_factory=dict)
    """What a shard has last prepared for, whatever became of its process."""

    def watch(self, process: ShardProcess, store: ShardStore) -> None:
        prepare = process.prepare

        async def watched(view: View, before: View | None) -> None:
            await prepare(view, before)
            for stack in store.stacks.values():
                table = stack.entry.table
                if table in view.snapshot.tables and isinstance(sets := view.sets.of(table), VnodeReplicas):
                    await self._check(process, store, stack, (view, sets.held_ranges_of(process.own.host)))

        process.prepare = watched  # type: ignore[method-assign]  # does the same, and looks

    async def _check(
        self, process: ShardProcess, store: ShardStore, stack: Stack, now: tuple[View, HeldRangesOfHost]
    ) -> None:
        view, of_host = now
        place = (process.own, stack.entry.table)
        known = self._held.get(place)
        if known is not None and known.at.history == view.revision.history and view.revision.index <= known.at.index:
            return  # a process that was started again, and catches up
        node = view.snapshot.node_in_transition()
        operation = node.request if node is not None and of_host.pending else None
        gained: tuple[TokenRange, ...] = ()
        if known is not None:
            of_operation = () if operation in (None, known.operation) else of_host.pending
            gained = merge_ranges((*subtract_ranges(of_host.ranges, known.ranges), *of_operation))
            operation = operation or known.operation
        if gained and not (stack.damage or stack.dropped):
            where = f"INV-NODE-20: {process.name} of {process.own.host} gains a range of {stack.schema.full_name} at "
            where += f"version {view.version}, and "
            opened = await store.open(stack)
            for span in (span for one in gained for span in key_spans(one)):
                for key, _ in opened.scan_merged(span):
                    self.fail(f"{where}key {key.hex()} is in its stack")
            await self._check_log(store, stack, gained, where)
            self.gains += bool(stack.entry.bases)
        self._held[place] = _Held(view.revision, of_host.ranges, operation)

    async def _check_log(self, store: ShardStore, stack: Stack, gained: tuple[TokenRange, ...], where: str) -> None:
        """A start would replay the records from the stack's position on."""
        await store.sync()
        log = store.log._log  # noqa: SLF001  # the log itself: the store reads it only at a start
        position = max(stack.entry.replay_from, log.first_sequence)
        async for batch in log.read(min(position, log.next_sequence)):
            for record in (msgspec.msgpack.decode(one, type=LogRecord) for one in batch.records):
                if record.incarnation == stack.incarnation:
                    keys = [key for key, _ in record.items if any(decode_token(key) in one for one in gained)]
                    if keys:
                        self.fail(f"{where}key {keys[0].hex()} is in records of its commit log that a start replays")
