"""Four nodes that are stopped and started all the time, one or all at once, while rows are written and tablets move.
One node at a time gets an older copy of its folder or of a part of it, loses a store, a commit log or layers, or has a
second process started on a copy. What must not run does not serve; the rest serves again without an operator."""

import asyncio
from dataclasses import replace

import msgspec

from ebla.model.errors import Refused
from ebla.model.identity import ClusterId
from ebla.node.control_process import ControlProcess
from ebla.node.group0_config import group0_config
from ebla.ports.environment import Environment
from ebla.sim.checkers.starts import StartsLedger
from ebla.sim.clusters.nodes import SimChildren, SimCluster, SimNode
from ebla.sim.disk import SimDisk
from ebla.sim.faults.harsh import heal
from ebla.sim.scenario import Scenario
from ebla.sim.scenarios.rows import check_replicas, start_nodes, start_row_clients, stop_load
from ebla.sim.workloads.rows_client import RowsLoad
from ebla.sim.world import Unit, World
from ebla.storage.manifest import read_manifest

NODES = 4
CLIENTS, WORKERS = 2, 3
DRIVER_NODE = 0
PAUSE_S = 1.0
SAMPLE_S = 0.1
SERVES_S = 40.0
"""From a start until the node serves. Group 0 may have to elect a leader first."""
REFUSED_S = 15.0
"""From a start that must fail until its control process has ended."""
RECORDED_S, RECORDED_STEP_S = 3.0, 0.001
"""A short step: between the commit of a start and the node's own notice of it are a few milliseconds."""
TWINS_S = 5.0
"""For two processes of one identity to find each other. One that group 0 does not hear waits for its confirmation."""


async def run(world: World) -> None:
    starts = StartsLedger(world)
    cluster = starts.cluster = SimCluster(world=world, id=ClusterId(world.rng.uuid()), barriers=starts)
    for _ in range(NODES):
        cluster.add_node()
    load = RowsLoad(cluster=cluster)
    driver = await start_nodes(load, cluster.nodes[DRIVER_NODE])
    start_row_clients(load, CLIENTS, WORKERS)
    restarts = _Restarts(load, starts)
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(_observe(starts))
        ends_at = world.now() + world.seconds
        while world.now() < ends_at:
            await asyncio.sleep(world.rng.exponential(PAUSE_S))
            await restarts.strike()
        heal(world, [*cluster.units(), driver])
        await stop_load(load)
        await check_replicas(load)
        looking.cancel()
    acknowledged = load.ledger.acknowledged
    world.check(acknowledged > world.seconds, f"only {acknowledged} writes were acknowledged")
    world.log("scenario", f"{restarts.strikes}; {len(starts.confirmed)} starts, {acknowledged} writes acknowledged")


async def _observe(starts: StartsLedger) -> None:
    while True:
        await starts.observe()
        await asyncio.sleep(SAMPLE_S)


class _Restarts:
    def __init__(self, load: RowsLoad, starts: StartsLedger) -> None:
        self._cluster = load.cluster
        self._world = load.cluster.world
        self._rng = self._world.rng.fork("restarts")
        self._starts = starts
        self._twins = 0
        self._twin: ControlProcess | None = None
        self.strikes: dict[str, int] = {}

    async def strike(self) -> None:
        one = self._rng.choice(
            (
                self._restart,
                self._restart_all,
                self._roll_back,
                self._roll_back_part,
                self._lose_store,
                self._lose_layers,
                self._swap_logs,
                self._start_twice,
            )
        )
        node = self._rng.choice(self._cluster.nodes)
        name = one.__name__.strip("_")
        self._world.log("scenario", f"{name} {node.control.name}")
        self.strikes[name] = self.strikes.get(name, 0) + 1
        await one(node)

    # ---- starts that must succeed

    async def _restart(self, node: SimNode) -> None:
        """It also crashes while it starts, at any step."""
        self._stop(node)
        for _ in range(self._rng.randrange(0, 4)):
            self._start(node)
            if self._rng.happens(0.5):
                await asyncio.sleep(self._rng.exponential(0.2))
            else:
                await self._wait_recorded(node)
            self._stop(node)
        await self._serve_again(node)

    async def _restart_all(self, _node: SimNode) -> None:
        """INV-START-4: in any order, and perhaps without one of them."""
        nodes = self._rng.sample(self._cluster.nodes, NODES)
        for node in nodes:
            self._stop(node)
        away = nodes[:1] if self._rng.happens(0.5) else []
        for node in nodes[len(away) :]:
            self._start(node)
            await asyncio.sleep(self._rng.exponential(0.5))
        await self._serve_again(*nodes[len(away) :])
        await self._serve_again(*away)

    # ---- starts that must fail

    async def _roll_back(self, node: SimNode) -> None:
        await self._put_back(node, node.folder)

    async def _roll_back_part(self, node: SimNode) -> None:
        shard = f"{node.folder}/shard-{self._rng.choice(node.shards).own.shard}"
        await self._put_back(node, self._rng.choice((shard, f"{shard}/log", f"{shard}/layers")))

    async def _put_back(self, node: SimNode, folder: str) -> None:
        """The folder ends before the last confirmed start."""
        self._stop(node)
        older = self._disk(node).copy_folder(folder)
        await self._serve_again(node)
        self._stop(node)
        newest = self._disk(node).copy_folder(node.folder)
        self._disk(node).put_folder(folder, older)
        await self._must_refuse(node, f"an older copy of {folder}")
        log_folder = f"{node.folder}/group0"
        log = self._disk(node).copy_folder(log_folder)
        self._disk(node).put_folder(node.folder, newest)
        if not await self._serves(node):
            # The copy has acknowledged entries of group 0 before it was stopped, and only its log has them.
            self._stop(node)
            self._disk(node).put_folder(log_folder, log)
            await self._serve_again(node)

    async def _lose_layers(self, node: SimNode) -> None:
        """Its shard starts and quarantines them. Control stays down, so that the node acknowledges nothing before the
        layers are back."""
        self._stop(node)
        disk, shard = self._disk(node), self._rng.choice(node.shards)
        folder = f"{node.folder}/shard-{shard.own.shard}"
        whole = disk.copy_folder(node.folder)
        manifest = await read_manifest(self._world.disk_of(node.control.machine), folder)
        assert manifest is not None, "the shard has served"
        lost = [one.incarnation for one in manifest.stacks if any(layer.has_files for layer in one.layers)]
        disk.put_folder(f"{folder}/layers", None)
        shard.unit.start()
        await asyncio.sleep(SAMPLE_S)  # as in `_serves`
        await self._world.wait_for(lambda: shard.taps is not None and shard.taps.replica is not None, SERVES_S)
        assert shard.taps is not None, "it opens its store without control"
        assert shard.taps.replica is not None, "it opens its store without control"
        stacks = shard.taps.replica.context.store.stacks
        used = [incarnation for incarnation in lost if not stacks[incarnation].damage]
        self._world.check(not used, f"{shard.unit.name} uses stacks {used}, whose layers are missing")
        self._stop(node)
        disk.put_folder(node.folder, whole)
        await self._serve_again(node)

    async def _lose_store(self, node: SimNode) -> None:
        shard = self._rng.choice(node.shards).own.shard
        await self._with_damage(node, self._rng.choice((f"shard-{shard}", f"shard-{shard}/log")), None)

    async def _swap_logs(self, node: SimNode) -> None:
        await self._with_damage(node, "shard-0/log", "shard-1/log")

    async def _with_damage(self, node: SimNode, lost: str, by: str | None) -> None:
        """A part of the folder is gone, or replaced by another one."""
        self._stop(node)
        disk = self._disk(node)
        whole = disk.copy_folder(node.folder)
        disk.put_folder(f"{node.folder}/{lost}", None if by is None else disk.copy_folder(f"{node.folder}/{by}"))
        await self._must_refuse(node, f"{by or 'nothing'} in place of {lost}")
        disk.put_folder(node.folder, whole)
        await self._serve_again(node)

    async def _start_twice(self, node: SimNode) -> None:
        """A second process on a copy of the folder, elsewhere. At most one of the two continues."""
        self._stop(node)
        twin = self._add_twin(node)
        twin.machine.disk.put_folder(node.folder, self._disk(node).copy_folder(node.folder))
        twin_first = self._rng.happens(0.5)
        if twin_first:
            twin.start()
            await asyncio.sleep(self._rng.exponential(0.5))
        self._start(node)
        if not twin_first:
            await asyncio.sleep(self._rng.exponential(0.5))
            twin.start()
        await asyncio.sleep(TWINS_S)
        twin_serves = not twin.down and self._twin is not None and self._twin.topology.revision is not None
        both = twin_serves and not node.control.down and self._starts.is_confirmed(node)
        self._world.check(not both, f"two processes serve as {node.control.name}")
        twin.kill()
        self._stop(node)
        # Both were one member of group 0 for a moment. The one that acknowledged less is an older copy from now on.
        if not await self._serves(node):
            self._stop(node)
            shards = [f"{node.folder}/shard-{shard.own.shard}" for shard in node.shards]
            stores = [self._disk(node).copy_folder(folder) for folder in shards]
            self._disk(node).put_folder(node.folder, twin.machine.disk.copy_folder(node.folder))
            for folder, store in zip(shards, stores, strict=True):
                self._disk(node).put_folder(folder, store)
            await self._serve_again(node)

    def _add_twin(self, node: SimNode) -> Unit:
        """The control process of the node on another machine."""
        self._twins += 1
        name = f"{node.control.name}-twin{self._twins}"
        self._world.machine(name).disk.lay_out(node.control.name)

        async def main(environment: Environment) -> None:
            context = self._cluster.context(node, name, 1)
            options = msgspec.structs.replace(context.options, address=self._world.machine(name).host)
            context = replace(context, options=options)
            stop = asyncio.Event()
            process = self._twin = ControlProcess(environment, context, group0_config(context), SimChildren(), stop)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(process.run())
                await stop.wait()
                raise Refused(process.gave_up or "asked to stop")

        twin = self._world.unit(name, main, host_id=node.host)
        twin.expected_errors = node.control.expected_errors
        return twin

    # ---- steps

    def _disk(self, node: SimNode) -> SimDisk:
        return node.control.machine.disk

    def _on_machine(self, node: SimNode) -> list[Unit]:
        return [unit for unit in self._world.units.values() if unit.machine is node.control.machine]

    def _stop(self, node: SimNode) -> None:
        """Control and everything that it started: killed, or without power."""
        if self._rng.happens(0.5):
            node.control.crash()
        for unit in self._on_machine(node):
            unit.kill()

    def _start(self, node: SimNode) -> None:
        for unit in self._on_machine(node):
            if unit.down:
                unit.start()

    async def _wait_recorded(self, node: SimNode) -> None:
        """Until group 0 has committed the start. The node itself may not know it yet."""
        await asyncio.sleep(SAMPLE_S)  # as in `_serves`
        await self._world.wait_for(lambda: self._starts.is_recorded(node), RECORDED_S, step_s=RECORDED_STEP_S)

    async def _serve_again(self, *nodes: SimNode) -> None:
        names = ", ".join(node.control.name for node in nodes)
        self._world.check(await self._serves(*nodes), f"INV-START-4: {names} does not serve after its start")

    async def _serves(self, *nodes: SimNode) -> bool:
        """Whether they all serve some time after their start."""
        for node in nodes:
            self._start(node)
        await asyncio.sleep(SAMPLE_S)  # until then the handles of a node show its last life

        def serve() -> bool:
            shards = [shard for node in nodes for shard in node.shards]
            return all(self._starts.is_confirmed(node) for node in nodes) and all(
                not shard.unit.down and shard.process is not None and shard.process.serves() for shard in shards
            )

        def has_ended() -> bool:
            return serve() or any(node.control.down for node in nodes)

        return await self._world.wait_for(has_ended, SERVES_S) and serve()

    async def _must_refuse(self, node: SimNode, folder: str) -> None:
        self._start(node)
        refused = await self._world.wait_for(lambda: node.control.down, REFUSED_S)
        self._world.check(refused, f"{node.control.name} runs with {folder}")
        self._stop(node)


SCENARIO = Scenario(
    name="restarts",
    summary="no node serves from a lost store or an old copy, and the others restart without an operator",
    seconds=30.0,
    run=run,
)
