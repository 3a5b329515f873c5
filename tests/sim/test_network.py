"""The simulated network: its promises and its faults."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.async_tests import runs_in

from ebla.model.errors import InvalidRequest, Unreachable
from ebla.model.identity import Address, HostId
from ebla.ports.environment import Environment
from ebla.ports.transport import Link
from ebla.sim.network import LOW_WATER_BYTES, NetworkConditions
from ebla.sim.rng import SimRng
from ebla.sim.world import World

PORT = 7000


class Ear:
    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed: list[str] = []
        self.links: list[Link] = []

    def open(self, link: Link) -> "Ear":
        self.links.append(link)
        return self

    def frame_received(self, frame: bytes) -> None:
        assert not self.closed
        self.frames.append(frame)

    def link_closed(self, cause: str) -> None:
        self.closed.append(cause)


class Pair:
    """A server unit and the scenario's own end of a link to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = Ear()
        self.client = Ear()
        self.unit = world.unit("server", self._serve, host_id=HostId(SimRng("h").uuid()))
        self.address = self.unit.address(PORT)
        self.environment = world.scenario_environment("client")

    async def _serve(self, environment: Environment) -> None:
        await environment.transport.listen(self.address, self.server.open)
        await asyncio.Event().wait()

    async def connect(self) -> Link:
        if self.unit.down:
            self.unit.start()
            await asyncio.sleep(0.01)
        return await self.environment.transport.connect(self.address, self.client.open)


def world_run(work: Callable[[World, Pair], Awaitable[None]], seed: int = 1) -> World:
    world = World(seed, 60.0)

    async def scenario(world: World) -> None:
        await work(world, Pair(world))

    world.run(scenario)
    return world


pytestmark = runs_in(world_run)


def frames(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


async def test_calm_links_keep_order_and_lose_nothing(world: World, pair: Pair, /) -> None:
    link = await pair.connect()
    for frame in frames(200):
        link.send(frame)
        await asyncio.sleep(0.0005)
    await asyncio.sleep(1.0)
    assert pair.server.frames == frames(200)
    pair.server.links[0].send(b"back")
    await asyncio.sleep(1.0)
    assert pair.client.frames == [b"back"]
    assert link.peer_address == pair.address
    assert link.peer_host == HostId(SimRng("h").uuid())
    assert pair.server.links[0].peer_host is None
    assert link.queued_bytes == 0


async def test_loss_duplication_and_reordering(world: World, pair: Pair, /) -> None:
    link = await pair.connect()
    world.network.conditions = NetworkConditions(loss=0.1, duplicate=0.1, reorder=0.2)
    for frame in frames(500):
        link.send(frame)
        await asyncio.sleep(0.001)
    await asyncio.sleep(1.0)
    got = pair.server.frames
    kinds = set(got)
    assert 400 < len(kinds) < 490
    assert len(got) > len(kinds)
    numbers = [int(frame) for frame in dict.fromkeys(got)]
    assert numbers != sorted(numbers)


async def test_a_cut_has_a_direction_and_is_silent(world: World, pair: Pair, /) -> None:
    link = await pair.connect()
    await asyncio.sleep(0.1)
    world.network.cut("client", "server")
    link.send(b"lost")
    pair.server.links[0].send(b"heard")
    await asyncio.sleep(5.0)
    assert (pair.server.frames, pair.client.frames) == ([], [b"heard"])
    assert not pair.client.closed
    world.network.uncut("client", "server")
    link.send(b"again")
    await asyncio.sleep(1.0)
    assert pair.server.frames == [b"again"]


async def test_overlapping_cuts_are_counted(world: World, pair: Pair, /) -> None:
    link = await pair.connect()
    for _ in range(2):
        world.network.cut("client", "server")
    world.network.uncut("client", "server")
    link.send(b"still cut")
    await asyncio.sleep(1.0)
    world.network.heal()
    world.network.uncut("client", "server")
    link.send(b"open")
    await asyncio.sleep(1.0)
    assert pair.server.frames == [b"open"]


async def test_a_clogged_path_queues_and_back_pressure_is_felt(world: World, pair: Pair, /) -> None:
    link = await pair.connect()
    world.network.clog("client", "server")
    big = bytes(LOW_WATER_BYTES + 1)
    link.send(big)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10.0):
            await link.wait_drained()
    assert link.queued_bytes == len(big)
    world.network.unclog("client", "server")
    await link.wait_drained()
    assert link.queued_bytes == 0
    await asyncio.sleep(1.0)
    assert pair.server.frames == [big]


async def test_a_slow_path_has_a_pace(world: World, pair: Pair, /) -> None:
    link = await pair.connect()
    world.network.path("client", "server").bytes_per_s = 1000.0
    for _ in range(10):
        link.send(bytes(500))
    await asyncio.sleep(2.2)
    assert 4 <= len(pair.server.frames) <= 6
    await asyncio.sleep(5.0)
    assert len(pair.server.frames) == 10


async def test_a_reset_breaks_both_ends_once(world: World, pair: Pair, /) -> None:
    link = await pair.connect()
    await asyncio.sleep(0.1)
    link.send(b"under way")
    assert world.network.reset("client", "server") == 1
    await asyncio.sleep(1.0)
    assert pair.server.frames == []
    assert pair.client.closed == pair.server.closed == ["reset by the network"]
    link.send(b"dropped")
    link.close("again")
    await link.wait_drained()
    await asyncio.sleep(1.0)
    assert len(pair.client.closed) == 1


async def test_close_delivers_what_was_sent_before(world: World, pair: Pair, /) -> None:
    link = await pair.connect()
    for frame in frames(20):
        link.send(frame)
    link.close("done")
    await asyncio.sleep(1.0)
    assert pair.server.frames == frames(20)
    assert pair.server.closed == ["closed by client: done"]
    assert pair.client.closed == ["done"]


async def test_a_killed_process_is_noticed_a_machine_without_power_is_not(world: World, pair: Pair, /) -> None:
    await pair.connect()
    pair.unit.kill()
    await asyncio.sleep(1.0)
    assert pair.client.closed == ["server died"]
    pair.client = Ear()
    link = await pair.connect()
    pair.unit.crash()
    link.send(b"into the dark")
    await asyncio.sleep(10.0)
    assert not pair.client.closed
    pair.unit.start()
    link.send(b"a kernel that knows nothing of this link")
    await asyncio.sleep(1.0)
    assert pair.client.closed == ["server does not know this link"]


async def test_connect_to_nobody_and_through_a_cut(world: World, pair: Pair, /) -> None:
    with pytest.raises(Unreachable):
        await pair.environment.transport.connect(pair.address, pair.client.open)
    pair.unit.start()
    await asyncio.sleep(0.1)
    for direction in (("client", "server"), ("server", "client")):
        world.network.cut(*direction)
        began = world.now()
        with pytest.raises(Unreachable, match="did not answer"):
            await pair.environment.transport.connect(pair.address, pair.client.open)
        assert world.now() - began > 2.9
        world.network.heal()
    await pair.connect()
    assert len(pair.client.links) == 1


async def test_listening_is_exclusive_and_only_at_home(world: World, pair: Pair, /) -> None:
    listening = await pair.environment.transport.listen(Address(world.machine("client").host, 1), pair.server.open)
    with pytest.raises(InvalidRequest, match="in use by client"):
        await pair.environment.transport.listen(listening.address, pair.server.open)
    with pytest.raises(InvalidRequest, match="not an address of client"):
        await pair.environment.transport.listen(pair.address, pair.server.open)
    await listening.close()
    await pair.environment.transport.listen(listening.address, pair.server.open)


async def test_local_sockets_belong_to_a_machine(world: World, pair: Pair, /) -> None:
    socket = Address("/run/control.sock")
    await pair.environment.transport.listen(socket, pair.server.open)
    await pair.environment.transport.connect(socket, pair.client.open)
    assert len(pair.client.links) == 1
    with pytest.raises(Unreachable):
        await world.scenario_environment("elsewhere").transport.connect(socket, pair.client.open)


async def test_frames_wait_for_a_paused_unit(world: World, pair: Pair, /) -> None:
    link = await pair.connect()
    await asyncio.sleep(0.1)
    pair.unit.pause()
    link.send(b"one")
    link.send(b"two")
    await asyncio.sleep(5.0)
    assert pair.server.frames == []
    pair.unit.resume()
    await asyncio.sleep(0.1)
    assert pair.server.frames == [b"one", b"two"]
