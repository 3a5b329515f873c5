"""Members that come, go and change roles while leaders die at each step of an operation, are overtaken, or lose their
lock to an operator: keys and members agree, and nothing stays unfinished."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ebla.control.fault_points import FaultPoint
from ebla.group0.change_feed import ChangeSet
from ebla.group0.members import Member, MemberRole, peer_number
from ebla.group0.operations import Operation, OperationKind, OperationResult, ended_operations, read_record
from ebla.group0.store import Group0Store
from ebla.model.errors import EblaError
from ebla.model.identity import ClusterId
from ebla.model.transaction import MEMBERS_PREFIX
from ebla.node.control_process import ControlProcess
from ebla.raft.events import TransferLeadership
from ebla.raft.messages import PeerId
from ebla.settings_store.registry import JANITOR_DELAY_MS
from ebla.sim.checkers.operations import OperationSteps, settled_problem
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.world import Unit, World
from ebla.topology.states import NodeState
from ebla.wire.fault_messages import FaultKind
from ebla.wire.operation_messages import OperateRequest
from ebla.wire.settings_messages import SettingChange, SettingsWriteRequest
from ebla.wire.verbs import OPERATE, SETTINGS_WRITE

NODES_MIN, NODES_MAX = 3, 6
BOOT_RATE_MIN, BOOT_RATE_MAX = 0.9, 1.1
DELAY_MS = 2_000
STORM_S = 5.0
CALM_S = 240.0
CALL_MS = 20_000
LOCK_MS = 2_000
POINTS = tuple(point for point in FaultPoint if point.startswith("atomic."))


@dataclass(slots=True, kw_only=True)
class ChangingCluster(SimCluster):
    counts: dict[str, int] = field(default_factory=dict)
    done: list[Operation] = field(default_factory=list)
    """Whose callers got success."""
    takes_lock: SimNode | None = None
    """The node on which an operator takes the lock."""

    async def watch_operations(self, node: SimNode, process: ControlProcess) -> None:
        """Checks each entry that this process applies."""
        await process.ready.wait()
        leadership = process.leadership
        assert leadership is not None, "it is opened before the node listens"
        await leadership.group0.opened.wait()
        machine = leadership.group0.running.machine
        steps, seen = OperationSteps(machine.store), machine.store

        def follow(step: ChangeSet) -> None:
            nonlocal steps, seen
            if machine.store is not seen:  # a snapshot was installed: entries in between were not seen
                steps, seen = OperationSteps(machine.store), machine.store
                return
            changes_members = any(change.key.startswith(MEMBERS_PREFIX) for change in step.changes)
            self._note(node, steps.follow(machine.store, changes_members=changes_members))

        machine.watch(follow)
        while True:
            await asyncio.sleep(0.2)
            if self.takes_lock is node:
                self.takes_lock = None
                await self._take_lock(process)

    async def _take_lock(self, process: ControlProcess) -> None:
        """As `ebla group0 lock` does."""
        assert process.leadership is not None, "it was opened before"
        try:
            await process.leadership.group0.running.client.acquire_lock(self.world.rng, LOCK_MS)
        except EblaError:
            return
        self.count("lock")

    def _note(self, node: SimNode, problem: str | None) -> None:
        if problem is not None:
            self.world.fail(f"{node.control.name}: {problem}")

    def store_of(self, node: SimNode) -> Group0Store | None:
        process = node.live_control
        return None if process is None else process.topology.store

    def newest(self) -> Group0Store | None:
        stores = [store for node in self.nodes if (store := self.store_of(node)) is not None]
        return max(stores, key=lambda store: store.index, default=None)

    def lost(self) -> list[SimNode]:
        """Removed, or their addition was undone: they can never come back."""
        store = self.newest()
        if store is None:
            return []
        gone = {one.host for one in store.members.values() if not one.present}
        gone |= {host for one in ended_operations(store) if one.result is OperationResult.UNDONE for host in one.hosts}
        snapshots = self.snapshots().values()
        gone |= {node.host for each in snapshots for node in each.nodes.values() if node.state is NodeState.LEFT}
        return [node for node in self.nodes if node.host in gone]

    def present(self) -> list[SimNode]:
        lost = self.lost()
        return [node for node in self.nodes if node not in lost]

    def present_units(self) -> list[Unit]:
        return [node.control for node in self.present()]

    def leader(self) -> SimNode | None:
        for node in self.present():
            process = node.live_control
            if process is not None and process.leadership is not None and process.leadership.group0.leads:
                return node
        return None

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


async def run(world: World) -> None:
    cluster = ChangingCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=BarrierLedger(world.fail))
    cluster.accompany = cluster.watch_operations
    for _ in range(world.rng.randrange(NODES_MIN, NODES_MAX)):
        _add_node(cluster)
    for node in cluster.nodes:
        node.control.start()
    await cluster.wait_all_normal()
    await _set_delay(world, cluster)
    changes = Changes(cluster)
    async with asyncio.TaskGroup() as tasks:
        changing = tasks.create_task(changes.run(tasks))
        ends_at = world.now() + world.seconds
        while world.now() < ends_at:
            await harsh(world, cluster.present_units(), STORM_S, pause_s=2.0)
            await asyncio.sleep(world.rng.exponential(1.0))
        changing.cancel()
    changes.release()
    async with asyncio.TaskGroup() as tasks:
        recovering = tasks.create_task(changes.recover_all())
        await _judge(world, cluster)
        recovering.cancel()


def _add_node(cluster: ChangingCluster) -> SimNode:
    node = cluster.add_node(has_children=False)
    node.control.machine.clock.boot_rate = cluster.world.rng.between(BOOT_RATE_MIN, BOOT_RATE_MAX)
    return node


async def _set_delay(world: World, cluster: ChangingCluster) -> None:
    connection = cluster.connection(world.scenario_environment("operator"), "operator")
    change = SettingChange(JANITOR_DELAY_MS.name, str(DELAY_MS))
    for _ in range(100):
        try:
            await connection.call(SETTINGS_WRITE, SettingsWriteRequest(changes=(change,)), CALL_MS)
            break
        except EblaError:  # its settings may still be in reset
            await asyncio.sleep(0.5)
    connection.leave()


class Changes:
    """What operators do, and where leaders die or stop."""

    def __init__(self, cluster: ChangingCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = cluster.world.rng.fork("changes")
        self.actions: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (2.0, self._join),
            (2.0, self._remove),
            (3.0, self._change_roles),
            (1.5, self._exclude),
            (1.5, self._include),
            (1.5, self._lock),
            (1.5, self._transfer),
            (3.0, self._crash_at),
            (3.0, self._pause_at),
        ]
        """With their weights."""

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Actions overlap: an operator does not wait for another one."""
        weights, actions = [weight for weight, _ in self.actions], [action for _, action in self.actions]
        while True:
            await asyncio.sleep(self._rng.exponential(1.0))
            tasks.create_task(_coroutine(self._rng.weighted(actions, weights)))

    async def _join(self) -> None:
        if len(self._cluster.present()) < NODES_MAX and len(self._cluster.nodes) < 3 * NODES_MAX:
            self._cluster.count("join")
            _add_node(self._cluster).control.start()

    async def _remove(self) -> None:
        present = self._cluster.present()
        if len(present) > NODES_MIN:
            host = self._rng.choice(present).host
            await self._operate(Operation(id=self._rng.uuid(), kind=OperationKind.REMOVE, hosts=(host,)))

    async def _change_roles(self) -> None:
        store = self._cluster.newest()
        members = [] if store is None else list(store.present_members().members)
        if len(members) >= NODES_MIN:
            chosen = [self._rng.choice(members)]
            roles = tuple(_other_role(member) for member in chosen)
            hosts = tuple(member.host for member in chosen)
            operation = Operation(id=self._rng.uuid(), kind=OperationKind.CHANGE_ROLES, hosts=hosts, roles=roles)
            await self._operate(operation)

    async def _exclude(self) -> None:
        """With force, since the host may be alive."""
        host = self._rng.choice(self._cluster.present()).host
        await self._operate(Operation(id=self._rng.uuid(), kind=OperationKind.EXCLUDE, hosts=(host,), is_forced=True))

    async def _include(self) -> None:
        excluded = sorted({host for one in self._cluster.snapshots().values() for host in one.excluded_hosts})
        if excluded:
            host = self._rng.choice(excluded)
            await self._operate(Operation(id=self._rng.uuid(), kind=OperationKind.INCLUDE, hosts=(host,)))

    async def recover_all(self) -> None:
        """Until cancelled: while a node is excluded, others wait to join."""
        while True:
            await self._include()
            await asyncio.sleep(1.0)

    async def _operate(self, operation: Operation) -> None:
        name = f"operator{self._world.loop.next_number()}"
        connection = self._cluster.connection(self._world.scenario_environment(name), name)
        try:
            answer = await connection.call(OPERATE, OperateRequest(operation, forward=True), CALL_MS)
        except EblaError:
            return
        finally:
            connection.leave()
        self._cluster.count(f"{operation.kind}/{'done' if answer.code is None else answer.code}")
        if answer.code is None:
            self._cluster.done.append(operation)

    async def _lock(self) -> None:
        self._cluster.takes_lock = self._rng.choice(self._cluster.present())

    async def _transfer(self) -> None:
        leader = self._cluster.leader()
        process = None if leader is None else leader.live_control
        if leader is None or process is None or process.leadership is None:
            return
        raft = process.leadership.group0.running.raft
        others = [peer for peer in raft.core.membership.voters if peer != peer_number(leader.host)]
        if others:
            self._cluster.count("transfer")
            raft.post(TransferLeadership(PeerId(self._rng.choice(others))))

    async def _crash_at(self) -> None:
        leader = self._cluster.leader()
        process = None if leader is None else leader.live_control
        if process is not None:
            point = self._rng.choice(POINTS)
            self._cluster.count(f"crash {point}")
            process.fault_points.set(point, FaultKind.CRASH, once=True)

    async def _pause_at(self) -> None:
        """Longer than a lease, sometimes: another leader has taken over when it goes on."""
        leader = self._cluster.leader()
        process = None if leader is None else leader.live_control
        if process is not None:
            point = self._rng.choice(POINTS)
            self._cluster.count(f"pause {point}")
            process.fault_points.set(point, FaultKind.PAUSE, once=True)
            await asyncio.sleep(self._rng.choice((0.5, 5.0, 25.0)) * self._rng.random())
            process.fault_points.release(point)

    def release(self) -> None:
        for node in self._cluster.nodes:
            process = node.live_control
            if process is not None:
                for point in POINTS:
                    process.fault_points.release(point)


async def _coroutine(action: Callable[[], Awaitable[None]]) -> None:
    await action()


def _other_role(member: Member) -> MemberRole:
    return MemberRole.LEARNER if member.role is MemberRole.VOTER else MemberRole.VOTER


async def _judge(world: World, cluster: ChangingCluster) -> None:
    settled = await world.wait_for(lambda: not _restart_down(cluster) and _unsettled(cluster) is None, CALM_S)
    world.check(settled, f"operations do not come to their end: {_unsettled(cluster)}")
    for node in cluster.present():
        store, snapshot = cluster.store_of(node), node.snapshot
        if store is not None and snapshot is not None:
            problem = settled_problem(store, snapshot)
            world.check(problem is None, f"{node.control.name}: {problem}")
            for operation in cluster.done:
                if operation.kind is OperationKind.REMOVE:
                    gone = [one.host for one in store.members.values() if not one.present]
                    world.check(operation.hosts[0] in gone, f"the removal of {operation.hosts[0]} was lost")
    world.log("scenario", ", ".join(f"{name} {count}" for name, count in sorted(cluster.counts.items())))


def _restart_down(cluster: ChangingCluster) -> bool:
    down = [unit for unit in cluster.present_units() if unit.down]
    for unit in down:
        unit.start()
    return bool(down)


def _unsettled(cluster: ChangingCluster) -> str | None:
    """What is not done yet. A removed node may run on: it may know no member that is left."""
    present = cluster.present()
    stores = [cluster.store_of(node) for node in present]
    known = [store for store in stores if store is not None]
    if len(known) < len(present) or len({store.index for store in known}) != 1:
        return f"the nodes differ: {[None if store is None else store.index for store in stores]}"
    if any(read_record(store) is not None for store in known):
        return "an operation is unfinished"
    members = {member.host for member in known[0].present_members().members}
    if members != {node.host for node in present}:
        return f"{len(members)} members, {len(present)} nodes"
    snapshot = present[0].snapshot
    if snapshot is not None and snapshot.state.exclusions:
        return f"{len(snapshot.state.exclusions)} nodes are excluded"
    states = [] if snapshot is None else [node.state for node in snapshot.members()]
    if any(state is not NodeState.NORMAL for state in states):
        return f"the rows are {states}"
    voters = sum(member.role is MemberRole.VOTER for member in known[0].members.values())
    wanted = min(5, len(present) if len(present) % 2 else len(present) - 1)
    return None if voters == wanted else f"{voters} voters, not {wanted}"


SCENARIO = Scenario(
    name="atomic_change",
    summary="members and keys change together, wherever a leader dies, and nothing stays unfinished",
    seconds=40.0,
    run=run,
)
