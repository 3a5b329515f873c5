"""One shard as a process, with a control whose topology the test writes: fences, waits for versions, guards, silence,
starts and stops, all over the wire."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.async_tests import runs_in
from tests.unit.control.feed_rig import FeedStore
from tests.unit.replica.shard_rig import OWN, read_of, tablet_of, write_of
from tests.unit.storage.small_table import SMALL
from tests.unit.storage.store_rig import STORE, plain
from tests.unit.topology.small_cluster import network, node, replica

from ebla.control.topology.committed_topology import CommittedTopology
from ebla.control.topology.feed_service import FeedConfig, TopologyFeedService
from ebla.feed.topology_view import View
from ebla.journal.segmented_log import SegmentedLog
from ebla.model.errors import ConnectionLost, EblaError, Stale, Unavailable, Unreachable
from ebla.model.identity import Address, ClusterId, SessionId, ShardNumber, TopologyVersion
from ebla.model.schema import encode_schema
from ebla.model.transaction import Change, DeleteKey, PutKey, Revision
from ebla.node.context import NodeContext
from ebla.node.shard_process import ShardDeps, ShardProcess, ShardServiceContext
from ebla.options import NodeLimits, NodeOptions
from ebla.ports.environment import Environment
from ebla.sim.disk import DiskFault
from ebla.sim.world import World
from ebla.storage.compaction.compaction_plan import CompactionJob, CompactionResult
from ebla.storage.compaction.compactor import run_compaction
from ebla.storage.layers.memory_engine import MemoryEngine
from ebla.storage.manifest import load_manifest, save_manifest
from ebla.storage.store_identity import create_store, log_folder
from ebla.storage.store_limits import StoreLimits
from ebla.topology import keys
from ebla.topology.snapshot import Keyspace, Session, Table
from ebla.topology.snapshot import TopologyState as StateRow
from ebla.topology.states import SessionKind
from ebla.topology.tablet_map import TabletChunk, TabletMap, tablet_map
from ebla.wire.feed_messages import NodeBarrierRequest
from ebla.wire.frames import Introduction
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.row_messages import Item, RowWrite, StreamRowsRequest, WriteRowsAnswer, WriteRowsRequest
from ebla.wire.server import IncomingCall, Server
from ebla.wire.verbs import (
    CHILD_BEAT,
    NODE_BARRIER,
    READ_ROWS,
    STREAM_ROWS,
    WRITE_ROWS,
    ChildBeatAnswer,
    ChildBeatRequest,
)

SOCKET = Address("/data/run/control.sock")
PORT, CONTROL_PORT = 7010, 7000
BOTH = tablet_map(SMALL.id, [(OWN,), (OWN,)])
FIRST_ONLY = tablet_map(SMALL.id, [(OWN,), (replica(2),)])
ITEMS = [plain(number, 0, 5) for number in range(30)]
IN_FIRST = [item for item in ITEMS if tablet_of(BOTH, item) == 0]
IN_SECOND = [item for item in ITEMS if tablet_of(BOTH, item) == 1]
SESSION = SessionId(uuid.UUID(int=77))
CLUSTER = ClusterId(uuid.UUID(int=3))


class MemoryCompactor:
    """Compacts on the disk of the shard."""

    def __init__(self, engine: MemoryEngine) -> None:
        self.engine = engine
        self.compactions = 0

    async def compact(self, job: CompactionJob) -> CompactionResult:
        self.compactions += 1
        return await run_compaction(self.engine, self.engine.disk, job)


class Probe:
    """A service that records its calls."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.closed = False

    def on_view_installed(self, view: View) -> None:
        self.versions.append(view.version)

    def close(self) -> None:
        self.closed = True


class ShardWorld:
    def __init__(self, world: World) -> None:
        self.world = world
        self.feed_store = FeedStore()
        self.introduction = Introduction(host=OWN.host, cluster=CLUSTER, cluster_name="sim")
        self.control = world.unit("n1", self._control, host_id=OWN.host)
        self.shard = world.unit("n1-shard", self._shard, machine="n1", host_id=OWN.host)
        self.process: ShardProcess | None = None
        self.service = Probe()
        self.compactions: MemoryCompactor | None = None
        self.stop = asyncio.Event()
        self.has_quorum = True
        self.beat_ms = 0
        """How long control takes to answer a heartbeat."""
        self.events: list[str] = []
        self.warnings: list[str] = []
        """Of each heartbeat."""
        self.store = StoreLimits(free_bytes_min=0, bases_max=2, live_bytes_max=1 << 20, upkeep_ms=50)

    # -- the two processes -------------------------------------------------------------------------------------------

    async def _control(self, environment: Environment) -> None:
        state = CommittedTopology(self._report)
        state.attach(self.feed_store.machine)
        feed = TopologyFeedService(
            state,
            FeedConfig(
                read_barrier=self._read_barrier, down=lambda: (), expected=lambda: ("shard-0",), serving=lambda: True
            ),
        )
        async with asyncio.TaskGroup() as tasks:
            server = Server(tasks, self.introduction, self._report)
            feed.serve_children(server)
            feed.serve_peers(server)
            server.serve(CHILD_BEAT, self._beat)
            await environment.transport.listen(SOCKET, server.accept)
            await environment.transport.listen(self.control.address(CONTROL_PORT), server.accept)
            await feed.run()

    async def _beat(self, request: ChildBeatRequest, _call: IncomingCall) -> ChildBeatAnswer:
        self.warnings.append(request.warning)
        await asyncio.sleep(self.beat_ms / 1000)
        return ChildBeatAnswer(serving=True)

    async def _read_barrier(self, deadline_ms: int) -> Revision:
        if not self.has_quorum:
            await asyncio.sleep(deadline_ms / 1000)
            raise Unavailable("no quorum")
        return self.feed_store.store.revision

    async def _shard(self, environment: Environment) -> None:
        own = NodeContext(
            options=NodeOptions(
                data="/data", address=self.shard.host, limits=NodeLimits(child_heartbeat_ms=200, feed_silence_ms=5_000)
            ),
            host=OWN.host,
            cluster=CLUSTER,
            cluster_name="sim",
            report=self._report,
            pid=1,
        )
        await create_store(environment.disk, environment.rng, "/data/shard-0", STORE)
        engine = MemoryEngine(environment.disk)
        self.compactions = MemoryCompactor(engine)
        self.service = Probe()
        self.process = ShardProcess(
            environment,
            own,
            ShardNumber(0),
            STORE,
            ShardDeps(engine=engine, store=self.store, services=self._services, compact=self.compactions.compact),
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.process.run())
            await self.stop.wait()
            running.cancel()

    def _services(self, _context: ShardServiceContext) -> list[Probe]:
        return [self.service]

    def _report(self, event: str, details: object) -> None:
        self.events.append(event)
        self.world.log("report", f"{event} {details}")

    # -- what the test does -------------------------------------------------------------------------------------------

    def commit(self, version: int, fence: int, *changes: Change) -> None:
        state = StateRow(version=TopologyVersion(version), fence=TopologyVersion(fence))
        self.feed_store.commit(PutKey(keys.STATE, keys.encode(state)), *changes)

    def found(self, tablets: TabletMap = BOTH) -> None:
        """Version 2: three nodes and a table on two tablets."""
        nodes = [PutKey(keys.node_key(node(one).host), keys.encode(node(one))) for one in (1, 2, 3)]
        keyspace = Keyspace(name="ks", replication=network(dc1=3), on_tablets=True)
        table = Table(id=SMALL.id, keyspace="ks", name="small", definition=encode_schema(SMALL))
        self.commit(
            2,
            1,
            *nodes,
            PutKey(keys.keyspace_key("ks"), keys.encode(keyspace)),
            PutKey(keys.table_key(SMALL.id), keys.encode(table)),
            PutKey(keys.map_key(SMALL.id), keys.encode(keys.map_row(tablets))),
            replicas_put(tablets),
        )

    async def start(self) -> None:
        self.found()
        self.control.start()
        self.shard.start()
        await self.serving()

    async def serving(self) -> None:
        for _ in range(400):
            await asyncio.sleep(0.05)
            if self.process is not None and self.process.serves():
                return
        raise AssertionError("the shard does not come to serve")

    async def on_view_installed(self, version: int) -> None:
        assert self.process is not None
        assert await self.process.view.wait_version(TopologyVersion(version), 5.0)


def replicas_put(tablets: TabletMap) -> PutKey:
    return PutKey(keys.chunk_key(SMALL.id, 0), keys.encode(keys.chunk_row(TabletChunk(tablets.chunks[0].replicas))))


class Client:
    def __init__(self, tasks: asyncio.TaskGroup, rig: ShardWorld) -> None:
        environment = rig.world.scenario_environment("client")
        ours = msgspec.structs.replace(rig.introduction, host=replica(9).host, process="client")
        context = PeersContext(
            transport=environment.transport,
            rng=environment.rng,
            introduction=ours,
            report=lambda _event, _details: None,
        )
        self.shard, self.control = Peers(tasks, context), Peers(tasks, context)
        self.shard.set_address(OWN.host, rig.shard.address(PORT))
        self.control.set_address(OWN.host, rig.control.address(CONTROL_PORT))

    async def write(self, *writes: RowWrite) -> WriteRowsAnswer:
        return await self.shard.call(OWN.host, WRITE_ROWS, WriteRowsRequest(writes), 8_000)

    async def rows(self, version: int) -> list[Item]:
        return list((await self.shard.call(OWN.host, READ_ROWS, read_of(version=version), 2_000)).items)

    async def stream(self, *items: Item) -> None:
        await self.shard.call(OWN.host, STREAM_ROWS, StreamRowsRequest(SESSION, SMALL.id, items), 4_000)

    async def barrier(self, version: int) -> None:
        request = NodeBarrierRequest(TopologyVersion(version))
        await self.control.call(OWN.host, NODE_BARRIER, request, 8_000)

    def close(self) -> None:
        self.shard.close("done")
        self.control.close("done")


def in_world(story: Callable[[ShardWorld, Client], Awaitable[None]], seed: int = 1) -> ShardWorld:
    found: list[ShardWorld] = []

    async def run(world: World) -> None:
        rig = ShardWorld(world)
        found.append(rig)
        async with asyncio.TaskGroup() as tasks:
            client = Client(tasks, rig)
            await rig.start()
            await story(rig, client)
            client.close()

    World(seed, 120.0).run(run)
    return found[0]


pytestmark = runs_in(in_world)


def failures_of(answer: WriteRowsAnswer) -> list[tuple[int, str, str]]:
    return [(one.index, one.error, one.outcome) for one in answer.failures]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_are_written_and_read_over_the_wire(seed: int) -> None:
    async def story(rig: ShardWorld, client: Client) -> None:
        assert failures_of(await client.write(*[write_of(item) for item in ITEMS])) == []
        assert await client.rows(2) == sorted(ITEMS)
        assert rig.service.versions

    in_world(story, seed)


async def test_a_version_that_is_newer_is_waited_for(rig: ShardWorld, client: Client, /) -> None:
    async with asyncio.TaskGroup() as tasks:
        early = tasks.create_task(client.write(write_of(ITEMS[0], version=3)))
        await asyncio.sleep(1)
        assert not early.done()
        rig.commit(3, 1)
    assert failures_of(early.result()) == []
    assert failures_of(await client.write(write_of(ITEMS[1], version=9))) == [(0, "stale", "not_applied")]


async def test_a_fence_that_rises_during_a_slow_sync_is_noticed_and_the_barrier_waits(
    rig: ShardWorld, client: Client, /
) -> None:
    await client.write(write_of(ITEMS[0]), write_of(ITEMS[1]))
    strain = DiskFault(sync_ms=2_000.0)
    async with asyncio.TaskGroup() as tasks:
        with rig.shard.machine.disk.inject(strain):
            slow = tasks.create_task(client.write(write_of(ITEMS[2])))
            await asyncio.sleep(0.3)
            rig.commit(3, 3)
            await rig.on_view_installed(3)
            barrier = tasks.create_task(client.barrier(3))
            await asyncio.sleep(0.3)
            assert not slow.done()
            assert not barrier.done(), "a write of the version before still runs"
    assert failures_of(slow.result()) == [(0, "stale", "unknown")]
    assert failures_of(await client.write(write_of(ITEMS[3]))) == [(0, "stale", "not_applied")]
    with pytest.raises(Stale):
        await client.rows(2)
    assert ITEMS[3] not in await client.rows(3)


async def test_streams_need_an_open_session_by_a_barrier(rig: ShardWorld, client: Client, /) -> None:
    with pytest.raises(Stale, match="closed"):
        await client.stream(*ITEMS)
    session = Session(id=SESSION, kind=SessionKind.REQUEST)
    rig.commit(3, 1, PutKey(keys.session_key(SESSION), keys.encode(session)))
    await client.stream(*ITEMS[:10])
    rig.has_quorum = False
    with pytest.raises(EblaError):
        await client.stream(*ITEMS[10:])
    rig.has_quorum = True
    rig.commit(4, 1, DeleteKey(keys.session_key(SESSION)))
    with pytest.raises(Stale, match="closed"):
        await client.stream(*ITEMS[10:])
    assert await client.rows(4) == sorted(ITEMS[:10])


async def test_a_shard_whose_control_is_silent_stops_serving_and_comes_back(rig: ShardWorld, client: Client, /) -> None:
    rig.control.kill()
    await asyncio.sleep(4)
    assert failures_of(await client.write(write_of(ITEMS[0]))) == []
    await asyncio.sleep(3)
    with pytest.raises(Unavailable):
        await client.write(write_of(ITEMS[1]))
    rig.control.start()
    await rig.serving()
    assert await client.rows(2) == [ITEMS[0]]


async def test_a_right_that_is_lost_between_two_beats_is_told(rig: ShardWorld, client: Client, /) -> None:
    await client.write(write_of(ITEMS[0]))
    before = rig.events.count("shard.stopped_serving")
    async with asyncio.TaskGroup() as tasks:
        with rig.shard.machine.disk.inject(DiskFault(sync_ms=500.0)):
            slow = tasks.create_task(_refusal(client.write(write_of(ITEMS[1]))))
            await asyncio.sleep(0.1)
            rig.shard.pause()
            await asyncio.sleep(6)
            rig.shard.resume()
    assert "lost its right" in slow.result()
    assert rig.events.count("shard.stopped_serving") == before + 1
    await rig.serving()
    assert rig.events[-1] == "shard.serving"


async def _refusal(call: Awaitable[object]) -> str:
    try:
        await call
    except EblaError as error:
        return error.message
    return ""


async def test_a_control_that_answers_late_is_not_silent(rig: ShardWorld, client: Client, /) -> None:
    rig.beat_ms = 1_000
    await asyncio.sleep(12)
    assert "shard.stopped_serving" not in rig.events
    assert failures_of(await client.write(write_of(ITEMS[0]))) == []


async def test_what_was_acknowledged_is_there_after_a_crash_and_what_left_is_dropped_at_the_start(
    rig: ShardWorld, client: Client, /
) -> None:
    await client.write(*[write_of(item) for item in ITEMS])
    rig.shard.crash()
    rig.commit(3, 1, replicas_put(FIRST_ONLY))
    rig.control.start()
    rig.shard.start()
    await rig.serving()
    assert "replica.dropped" in rig.events
    answer = await reads(client, 3)
    assert answer == sorted(IN_FIRST)
    assert failures_of(await client.write(write_of(IN_SECOND[0], version=3))) == [(0, "stale", "not_applied")]


async def reads(client: Client, version: int) -> list[Item]:
    """Of the first tablet. The connection may have to be made again."""
    for _ in range(20):
        try:
            request = read_of((b"", b"\x80"), version=version)
            return list((await client.shard.call(OWN.host, READ_ROWS, request, 2_000)).items)
        except (Unreachable, ConnectionLost):
            await asyncio.sleep(0.1)
    raise AssertionError("the shard is not reached")


async def test_a_tablet_that_leaves_takes_its_folder_with_it(rig: ShardWorld, client: Client, /) -> None:
    await client.write(*[write_of(item) for item in ITEMS])
    assert rig.process is not None
    rig.commit(3, 1, replicas_put(FIRST_ONLY))
    await rig.on_view_installed(3)
    await asyncio.sleep(1)
    assert "replica.dropped" in rig.events
    disk = rig.world.machine("n1").disk.of(rig.shard.incarnation)
    assert len(disk.list_folder("/data/shard-0/layers")) <= 1


async def replace_log(environment: Environment) -> None:
    """By an empty one, which the manifest names."""
    disk, folder = environment.disk, "/data/shard-0"
    for name in disk.list_folder(log_folder(folder)):
        disk.unlink(f"{log_folder(folder)}/{name}")
    log = await SegmentedLog.open(disk, environment.rng, log_folder(folder))
    await log.close()
    manifest = await load_manifest(disk, folder)
    assert manifest is not None
    await save_manifest(disk, folder, msgspec.structs.replace(manifest, log_id=log.log_id))


async def test_an_orderly_stop_leaves_nothing_to_replay(rig: ShardWorld, client: Client, /) -> None:
    await client.write(*[write_of(item) for item in ITEMS])
    rig.stop.set()
    for _ in range(100):
        await asyncio.sleep(0.1)
        if rig.shard.down:
            break
    assert rig.shard.down
    assert rig.service.closed
    assert "shard.not_flushed" not in rig.events
    rig.world.machine("n1").disk.lose_power()
    await replace_log(rig.world.scenario_environment("n1"))
    rig.stop.clear()
    rig.shard.start()
    await rig.serving()
    assert await reads(client, 2) == sorted(IN_FIRST)


async def test_a_stack_that_grows_is_folded(rig: ShardWorld, client: Client, /) -> None:
    rig.store = StoreLimits(free_bytes_min=0, bases_max=2, live_bytes_max=200, upkeep_ms=50)
    rig.shard.kill()
    rig.shard.start()
    await rig.serving()
    for number in range(60):
        await tried(client, plain(number % 30, number % 7, number + 10))
        await asyncio.sleep(0.1)
    await asyncio.sleep(5)
    assert rig.compactions is not None
    assert rig.compactions.compactions > 0


async def test_a_full_disk_is_reported_when_it_begins_and_when_it_ends(rig: ShardWorld, client: Client, /) -> None:
    rig.store = StoreLimits(free_bytes_min=1 << 20, upkeep_ms=50)
    rig.shard.kill()
    rig.shard.start()
    await rig.serving()
    await tried(client, plain(1, 1, 10))
    assert (rig.warnings[-1], reserve_events(rig)) == ("", [])
    disk = rig.world.machine("n1").disk
    with disk.inject(DiskFault(capacity_bytes=disk.used_bytes() + 1000)):
        await asyncio.sleep(1)
        (failure,) = (await client.write(write_of(plain(1, 2, 11)))).failures
        assert "writes need 1 MiB" in failure.message
        assert rig.warnings[-1] == "less than 1 MiB are free: writes are refused, reads go on"
        assert reserve_events(rig) == ["disk.reserve_reached"]
        assert rig.process is not None
        assert rig.process.metrics.gauges["disk_reserve_reached"].series().value == 1
    await asyncio.sleep(1)
    await tried(client, plain(1, 2, 11))
    assert (rig.warnings[-1], reserve_events(rig)) == ("", ["disk.reserve_reached", "disk.reserve_left"])


def reserve_events(rig: ShardWorld) -> list[str]:
    return [event for event in rig.events if event.startswith("disk.")]


async def tried(client: Client, item: Item) -> None:
    for _ in range(20):
        try:
            if not (await client.write(write_of(item))).failures:
                return
        except (Unreachable, ConnectionLost):
            pass
        await asyncio.sleep(0.1)
    raise AssertionError("not written")
