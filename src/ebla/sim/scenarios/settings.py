"""Control processes only: clients change settings on all of them while rounds purge what was deleted, wall clocks are
hours apart, nodes join and are removed, and some lack a feature at first. Whatever happens in any step of a round, the
nodes become equal (INV-SET-1), nothing that was purged returns (INV-SET-2), a crash loses nothing that was
acknowledged (INV-SET-3), removed hosts have no effect (INV-SET-4), and stamps only grow (INV-SET-5)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from uuid import UUID

from ebla.control.fault_points import PURGE_POINTS, FaultPoint
from ebla.control.settings.settings_node import SettingsNode
from ebla.group0.members import peer_number
from ebla.group0.operations import Operation, OperationKind
from ebla.model.errors import EblaError
from ebla.model.identity import ClusterId, HostId
from ebla.ports.environment import Environment
from ebla.raft.events import TransferLeadership
from ebla.raft.messages import PeerId
from ebla.settings_store.node_store import SettingsStore
from ebla.sim.checkers.rows_barriers import BarrierLedger
from ebla.sim.checkers.settings import SettingsLedger, find_difference, is_removed
from ebla.sim.clients import NodeConnection, start_clients
from ebla.sim.clock import EPOCH_US
from ebla.sim.clusters.nodes import SimCluster, SimNode
from ebla.sim.disk import FolderCopy
from ebla.sim.faults.harsh import harsh
from ebla.sim.faults.links import cut
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.settings_client import SettingsClient, SettingsLoad, purge_change
from ebla.sim.world import Unit, World
from ebla.version import Feature
from ebla.wire.fault_messages import FaultKind
from ebla.wire.operation_messages import OperateRequest
from ebla.wire.settings_messages import SettingChange, SettingsWriteRequest
from ebla.wire.verbs import OPERATE, SETTINGS_WRITE

CLIENTS = ("c1", "c2", "c3")
NODES_MIN, NODES_MAX = 3, 5
SKEW_US = 3 * 3_600_000_000
STORM_S = 4.0
STORM_PAUSE_S = 1.0
ROUND_S = 8.0
"""How long to wait for a round to reach a step."""
SHORT_LEASES = SettingChange("leases", '{"period_ms": 6000, "grace_ms": 2000, "activity_stop_ms": 1000}')
"""After a crash of the leader no round starts until its leases have run out."""
COMMIT_MS = 3_000
CALM_S = 240.0
"""A node pulls from one peer at least every 60 s."""


@dataclass(slots=True, kw_only=True)
class PurgingCluster(SimCluster):
    ledger: SettingsLedger
    removed: dict[HostId, None] = field(default_factory=dict)

    def watch_settings(
        self,
        node: SimNode,  # noqa: ARG002  # the settings know their host
        settings: SettingsNode,
        environment: Environment,
    ) -> None:
        self.ledger.watch(settings, environment.rng)

    def present(self) -> list[SimNode]:
        """All but those that a running node knows as removed."""
        groups = [node.settings.cluster.group0 for node in self.nodes if node.settings is not None]
        stores = [group0.running.store for group0 in groups if group0.is_running]
        self.removed |= {node.host: None for node in self.nodes for store in stores if is_removed(store, node.host)}
        return [node for node in self.nodes if node.host not in self.removed]

    def present_units(self) -> list[Unit]:
        return [node.control for node in self.present()]

    def running(self) -> dict[str, SettingsNode]:
        """The settings of the nodes that are in the cluster and run, by the name of the unit."""
        found = {node.control.name: node.settings for node in self.present()}
        return {
            name: settings
            for name, settings in found.items()
            if settings is not None and settings.cluster.group0.is_running
        }

    def leader(self) -> SimNode | None:
        leading = [name for name, settings in self.running().items() if settings.cluster.leads]
        return next((node for node in self.present() if node.control.name in leading), None)


async def run(world: World) -> None:
    cluster = PurgingCluster(
        world=world,
        id=ClusterId(world.rng.uuid()),
        barriers=BarrierLedger(world.fail),
        ledger=SettingsLedger(world.fail),
    )
    lacks_feature = world.rng.happens(0.3)
    for _ in range(world.rng.randrange(NODES_MIN, NODES_MAX)):
        _add_node(cluster, lacks_feature=lacks_feature)
    world.network.conditions = replace(world.network.conditions, loss=0.01, duplicate=0.03, reorder=0.08, tail=0.03)
    _set_clocks(cluster)
    for node in cluster.nodes:
        node.control.start()
    await cluster.wait_all_normal()
    load = SettingsLoad(cluster=cluster)
    await _purge_often(world, cluster)
    start_clients(world, CLIENTS, lambda environment, name: SettingsClient(environment, name, load))
    strikes = _Strikes(cluster)
    ends_at = world.now() + world.seconds
    while world.now() < ends_at:
        if world.rng.happens(0.4):
            await harsh(world, cluster.present_units(), STORM_S, pause_s=STORM_PAUSE_S)
        if world.rng.happens(0.7):
            _set_clocks(cluster)
        await strikes.strike()
    await strikes.upgrade()
    await _judge(world, cluster, load)
    world.log("scenario", f"{load.answered} changes; {strikes.describe()}; {cluster.ledger.describe()}")


def _add_node(cluster: PurgingCluster, *, lacks_feature: bool) -> SimNode:
    node = cluster.add_node(has_children=False)
    if lacks_feature:
        node.hidden_features = (Feature.SETTINGS_PURGE,)
    return node


def _set_clocks(cluster: PurgingCluster) -> None:
    """Later than the last purge. One may be hours away. If most were, no leader would choose a time to purge up to."""
    world = cluster.world
    purged_us = max((settings.store.header.tentative_us for settings in cluster.running().values()), default=0)
    right_us = max(EPOCH_US + int(world.now() * 1e6), purged_us + 2_000_000)
    wrong = world.rng.choice(cluster.present()) if world.rng.happens(0.4) else None
    for node in cluster.present():
        away_us = SKEW_US if node is wrong else 1_000_000
        wanted_us = right_us + int((2 * world.rng.random() - 1) * away_us)
        clock = node.control.machine.clock
        clock.jump(wanted_us - clock.wall_us())


async def _purge_often(world: World, cluster: PurgingCluster) -> None:
    connection = cluster.connection(world.scenario_environment("operator"), "operator")
    request = SettingsWriteRequest(changes=(purge_change(interval_ms=1_000), SHORT_LEASES))

    ends_at = world.now() + CALM_S
    while True:
        try:
            await connection.call(SETTINGS_WRITE, request, COMMIT_MS)
            break
        except EblaError as error:  # its settings may still be in reset
            world.check(world.now() < ends_at, f"no node takes the first setting: {error}")
            await asyncio.sleep(0.5)
    connection.leave()


# ---- faults at the steps of a round


@dataclass(frozen=True, slots=True)
class _Backup:
    folder: FolderCopy
    actor: UUID


class _Strikes:
    """Stops a round after one of its steps and does something there."""

    def __init__(self, cluster: PurgingCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = self._world.rng.fork("strikes")
        self._backups: dict[HostId, _Backup] = {}
        self.counts: dict[str, int] = {}

    def describe(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))

    async def strike(self) -> None:
        point = self._rng.choice(PURGE_POINTS)
        self._back_up()
        self._set_points(point, is_set=True)
        caught = await self._world.wait_for(lambda: self._is_waiting(point), ROUND_S)
        action = self._choose()
        name = action.__name__.strip("_")
        self._world.log("scenario", f"{name} {f'after {point}' if caught else 'between rounds'}")
        count = f"{name}/{point.removeprefix('purge.') if caught else '-'}"
        self.counts[count] = self.counts.get(count, 0) + 1
        await action()
        if not caught:
            await self._transfer()  # the clock of the leader may be the wrong one
        await asyncio.sleep(self._rng.exponential(0.3))
        self._set_points(point, is_set=False)
        await asyncio.sleep(self._rng.exponential(1.0))

    def _choose(self) -> Callable[[], Awaitable[None]]:
        present = len(self._cluster.present())
        actions: list[Callable[[], Awaitable[None]]] = [self._transfer, self._crash, self._restore, self._restore]
        actions.append(self._lose)
        if present < NODES_MAX:
            actions.append(self._join)
        if present > NODES_MIN:
            actions.append(self._remove)
        if self._hidden() and self._rng.happens(0.6):
            return self.upgrade
        return self._rng.choice(actions)

    def _set_points(self, point: FaultPoint, *, is_set: bool) -> None:
        for node in self._cluster.present():
            process = node.live_control
            if process is not None and is_set:
                process.fault_points.set(point, FaultKind.PAUSE, once=True)
            elif process is not None:
                process.fault_points.release(point)

    def _is_waiting(self, point: FaultPoint) -> bool:
        processes = [node.live_control for node in self._cluster.present()]
        views = [view for process in processes if process is not None for view in process.fault_points.points()]
        return any(view.name == point and view.waiting for view in views)

    # ---- processes and members

    async def _transfer(self) -> None:
        leader = self._cluster.leader()
        if leader is None or leader.settings is None:
            return
        raft = leader.settings.cluster.group0.running.raft
        others = [peer for peer in raft.core.membership.voters if peer != peer_number(leader.host)]
        if others:
            raft.post(TransferLeadership(PeerId(self._rng.choice(others))))

    async def _crash(self) -> None:
        leader = self._cluster.leader()
        node = leader if leader is not None and self._rng.happens(0.6) else self._rng.choice(self._cluster.present())
        await self._restart(node, lambda: None)

    async def _restart(self, node: SimNode, meanwhile: Callable[[], None]) -> None:
        if not node.control.down:
            node.control.crash()
        meanwhile()
        await asyncio.sleep(self._rng.exponential(0.2))
        if node.control.down:
            node.control.start()

    async def _join(self) -> None:
        _add_node(self._cluster, lacks_feature=len(self._hidden()) > 1).control.start()

    async def _remove(self) -> None:
        """The host may hear nothing of its removal for a while, and go on sending."""
        leader = self._cluster.leader()
        node = self._rng.choice(self._cluster.present())
        if leader is None or leader is node:
            return
        name = f"remove-{node.control.name}-{self._world.loop.next_number()}"
        own = self._cluster.context(leader, name, 1)
        removal = Operation(id=self._rng.uuid(), kind=OperationKind.REMOVE, hosts=(node.host,))
        request = OperateRequest(removal, forward=True)

        async def operate(environment: Environment) -> None:
            connection = NodeConnection(own.peers_context(environment, name), [own.control_socket])
            try:
                await connection.call(OPERATE, request, COMMIT_MS)
            except EblaError as error:
                self._world.log(name, str(error))
            connection.leave()

        self._cluster.start_beside(leader, name, operate)
        others = [(unit.name, node.control.name) for unit in self._cluster.present_units() if unit is not node.control]
        await cut(self._world, others, self._rng.exponential(2.0))

    # ---- settings folders

    def _back_up(self) -> None:
        node = self._rng.choice(self._cluster.present())
        settings = node.settings
        if settings is not None and not settings.reset.in_progress:
            folder = node.control.machine.disk.copy_folder(self._folder(node))
            self._backups[node.host] = _Backup(folder, settings.store.header.actor)

    async def _restore(self) -> None:
        """An older copy of a settings folder."""
        nodes = [node for node in self._cluster.present() if node.host in self._backups]
        if not nodes or not self._all_are_complete():
            return
        node = self._rng.choice(nodes)
        backup = self._backups[node.host]

        def restore() -> None:
            self._world.log("scenario", f"{node.control.name} gets an older copy of its settings")
            node.control.machine.disk.put_folder(self._folder(node), backup.folder)
            self._cluster.ledger.folder_restored(node.host, backup.actor)

        if self._rng.happens(0.5):
            await self._restart(node, restore)
            return
        # Alone and with a slow clock: it may know nothing of the round that it has taken part in.
        node.control.machine.clock.jump(-int(self._rng.random() * SKEW_US))
        names = [unit.name for unit in self._cluster.present_units() if unit is not node.control]
        pairs = [pair for name in names for pair in ((name, node.control.name), (node.control.name, name))]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cut(self._world, pairs, 1.0 + self._rng.exponential(1.0)))
            await self._restart(node, restore)

    async def _lose(self) -> None:
        if not self._all_are_complete():
            return
        node = self._rng.choice(self._cluster.present())

        def lose() -> None:
            self._world.log("scenario", f"{node.control.name} loses its settings")
            node.control.machine.disk.put_folder(self._folder(node), None)
            self._cluster.ledger.folder_lost(node.host)

        await self._restart(node, lose)

    def _folder(self, node: SimNode) -> str:
        return f"{node.folder}/settings"

    def _all_are_complete(self) -> bool:
        """If every node were an older copy, no complete one would be left."""
        stores = [settings.store.header for settings in self._cluster.running().values()]
        newest_us = max((header.effective_us for header in stores), default=0)
        return len(stores) == len(self._cluster.present()) and all(
            not header.in_reset and header.effective_us == newest_us for header in stores
        )

    # ---- features

    def _hidden(self) -> list[SimNode]:
        return [node for node in self._cluster.present() if node.hidden_features]

    async def upgrade(self) -> None:
        """One after another. Until the last one has the feature, nothing is purged."""
        for node in self._hidden():
            await asyncio.sleep(self._rng.exponential(1.0))
            for settings in self._cluster.running().values():
                header = settings.store.header
                self._world.check(not header.tentative_us, f"{header} knows a purge before every node can")
            node.hidden_features = ()
            await self._restart(node, lambda: None)


# ---- the end


async def _judge(world: World, cluster: PurgingCluster, load: SettingsLoad) -> None:
    for unit in cluster.present_units():
        if unit.down:
            unit.start()
    await load.stop(world, CALM_S)
    quiet = await world.wait_for(lambda: _why_not_quiet(cluster) is None, CALM_S)
    world.check(quiet, f"{_why_not_quiet(cluster)}")
    for name, store in _stores(cluster).items():
        problem = cluster.ledger.find_revived(name, store)
        world.check(problem is None, str(problem))
    world.check(load.answered > 0, "no change was ever answered")


def _stores(cluster: PurgingCluster) -> dict[str, SettingsStore]:
    return {name: settings.store for name, settings in cluster.running().items()}


def _why_not_quiet(cluster: PurgingCluster) -> str | None:
    running = cluster.running()
    if len(running) < len(cluster.present()):
        return f"only {', '.join(running)} run"
    for name, settings in running.items():
        state = settings.cluster.purge_state()
        if settings.reset.in_progress:
            return f"{name} is in reset"
        if state.is_unfinished:
            return f"a round is not finished: {state.state}"
        if settings.store.header.effective_us != state.state.effective_wall_us:
            return f"{name} has {settings.store.header}, group 0 has {state.state}"
    return find_difference(_stores(cluster))


SCENARIO = Scenario(
    name="settings", summary="settings become equal on all nodes, and purged ones do not return", seconds=60.0, run=run
)
