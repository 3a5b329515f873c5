"""What a node must not do before group 0 has confirmed its start, checked from outside.

INV-START-1  no row is written or routed, no barrier returns and no other command is committed before this start is
             confirmed
INV-START-2  the committed incarnations of a host strictly grow
INV-START-3  a shard serves only the store and the log that mark, manifest and group 0 name
INV-START-4  a majority of voters, none of them an older copy, restarted in any order serves again without an operator
"""

import uuid
from itertools import pairwise

from ebla.control.group0.join_state import JoinStateFile
from ebla.control.group0.node import Group0Node, RunningGroup0
from ebla.group0.commands import Group0Command, decode_command
from ebla.group0.start_record import START_PREFIX, StartRecord, start_key
from ebla.group0.store import Group0Store
from ebla.journal.manifest import load_manifest as load_log_manifest
from ebla.model.identity import HostId, Replica, ShardNumber, StartId, StoreId, TopologyVersion
from ebla.model.stored_value import decode_stored
from ebla.model.transaction import Transaction
from ebla.raft.membership import change_of
from ebla.raft.messages import EntryKind
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster, SimNode, SimShard
from ebla.sim.world import Unit, World
from ebla.storage.manifest import read_manifest
from ebla.topology.snapshot import Snapshot

ControlLife = tuple[HostId, int]
"""A host and the number of its control process's incarnation."""
ANSWER_S = 0.5


class StartsLedger(BarrierLedger):
    """Checks every effect, every routed request and every barrier of the cluster, besides their own invariants."""

    def __init__(self, world: World) -> None:
        super().__init__(world.fail)
        self.world = world
        self.cluster: SimCluster | None = None
        self.confirmed: dict[ControlLife, None] = {}
        self._seen_since: dict[ControlLife, float] = {}
        self._recorded: dict[str, dict[int, StartRecord]] = {}
        """By key, and then by the index of the commit."""
        self._checked_index = 0
        """Of group 0's log: its commands up to here were checked."""
        self._offered: set[tuple[uuid.UUID, int]] = set()
        """Hosts and incarnations whose confirmation is in the log up to there."""

    # ---- INV-START-1

    def effect(self, own: Replica, version: TopologyVersion) -> None:
        self._require_confirmed(own.host, "writes a row")
        super().effect(own, version)

    def sent(self, own: Replica, version: TopologyVersion, target: Replica) -> None:
        self._require_confirmed(own.host, "routes a request")
        super().sent(own, version, target)

    def returned(self, host: HostId, snapshot: Snapshot) -> None:
        node = self._node_of(host)
        since = self._seen_since.get((host, node.control_started))
        # An answer to the previous incarnation may still arrive.
        if since is not None and self.world.now() - since > ANSWER_S:
            self._require_confirmed(host, "returns from a barrier")
        super().returned(host, snapshot)

    def _check_commands(self, group0: RunningGroup0) -> None:
        """The first command of each start is the one that confirms it."""
        log = group0.raft.core.state.log
        for index in range(max(self._checked_index + 1, log.first_index), log.applied + 1):
            entry = log.entry_at(index)
            data = change_of(entry).context if entry.kind is EntryKind.MEMBERS else entry.data
            if data:
                self._check_command(index, decode_command(data))
            self._checked_index = index

    def _check_command(self, index: int, command: Group0Command) -> None:
        call, body = command.call, command.body
        key = start_key(HostId(call.client))
        if isinstance(body, Transaction) and any(change.key == key for change in body.changes):
            self._offered.add((call.client, call.incarnation))
        # A confirmation that was compacted away before anyone looked still shows as the record.
        recorded = (one.incarnation for at, one in self._recorded.get(key, {}).items() if at < index)
        if (call.client, call.incarnation) not in self._offered and call.incarnation not in recorded:
            self.fail(f"INV-START-1: start {call.incarnation} of {call.client} commits {body} before its confirmation")

    def _require_confirmed(self, host: HostId, what: str) -> None:
        node = self._node_of(host)
        if not self.is_confirmed(node):
            self.fail(f"INV-START-1: {node.control.name} {what}, and its start is not confirmed")

    def is_confirmed(self, node: SimNode) -> bool:
        """By the record in the node's own state: the answer to the node's call proves nothing."""
        life = (node.host, node.control_started)
        if life not in self.confirmed and _knows_start(node, of=node):
            self.confirmed[life] = None
        return life in self.confirmed

    def is_recorded(self, node: SimNode) -> bool:
        """In the state of any node."""
        assert self.cluster is not None
        return any(not one.control.down and _knows_start(one, of=node) for one in self.cluster.nodes)

    def _node_of(self, host: HostId) -> SimNode:
        assert self.cluster is not None
        return next(node for node in self.cluster.nodes if node.host == host)

    # ---- INV-START-2 and 3

    async def observe(self) -> None:
        """At every sample."""
        assert self.cluster is not None
        for node in self.cluster.nodes:
            store = None if node.control.down else _store_of(node)
            if store is None:
                continue
            self._seen_since.setdefault((node.host, node.control_started), self.world.now())
            for key in store.keys(START_PREFIX):
                entry = store.entries[key]
                self._note(key, entry.revision.index, decode_stored(StartRecord, entry.value).value)
            group0 = _group0_of(node)
            if group0 is not None and group0.is_running:
                self._check_commands(group0.running)
            for shard in node.shards:
                await self._check_store(node, shard)

    def _note(self, key: str, index: int, record: StartRecord) -> None:
        known = self._recorded.setdefault(key, {})
        known[index] = record
        grown = [one.incarnation for _, one in sorted(known.items())]
        if any(later <= earlier for earlier, later in pairwise(grown)):
            self.fail(f"INV-START-2: {key} was committed with incarnations {grown}")

    async def _check_store(self, node: SimNode, shard: SimShard) -> None:
        process, life = shard.process, shard.unit.start_count
        if shard.unit.down or process is None or not process.serves():
            return
        disk, number = self.world.disk_of(shard.unit.machine), shard.own.shard
        folder = f"{node.folder}/shard-{number}"
        mark = await JoinStateFile(disk, f"{node.folder}/group0-mark").load()
        manifest, log = await read_manifest(disk, folder), await load_log_manifest(disk, f"{folder}/log")
        if not _is_running(shard.unit, life):
            return  # it ended while its files were read
        named = {
            "the shard": process.store_id,
            "the mark": mark.stores[number].store,
            "the manifest": None if manifest is None else manifest.store,
            "group 0": self._recorded_store(node.host, number),
        }
        if len(set(named.values())) > 1:
            self.fail(f"INV-START-3: {shard.unit.name} serves, and its store is {named}")
        if manifest is None or log is None or log.log_id != manifest.log_id:
            self.fail(f"INV-START-3: {shard.unit.name} serves with a log that its manifest does not name")

    def _recorded_store(self, host: HostId, shard: ShardNumber) -> StoreId | None:
        known = self._recorded.get(start_key(host))
        stores = known[max(known)].stores if known else ()
        return stores[shard] if shard < len(stores) else None


def _is_running(unit: Unit, life: int) -> bool:
    return not unit.down and unit.start_count == life


def _group0_of(node: SimNode) -> Group0Node | None:
    process = node.control_process
    return None if process is None else process._group0  # noqa: SLF001  # a node that forgot to tell would hide it


def _store_of(node: SimNode) -> Group0Store | None:
    group0 = _group0_of(node)
    return group0.running.store if group0 is not None and group0.is_running else None


def _knows_start(node: SimNode, *, of: SimNode) -> bool:
    store = _store_of(node)
    entry = None if store is None else store.get(start_key(of.host))
    return entry is not None and decode_stored(StartRecord, entry.value).value.start == _start_of(of)


def _start_of(node: SimNode) -> StartId | None:
    group0 = _group0_of(node)
    return None if group0 is None else group0._start  # noqa: SLF001  # see above
