"""A Raft peer with its driver, log and a counting state machine, in a simulated world."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from ebla.control.raft.config import RaftConfig
from ebla.control.raft.driver import RaftDriver
from ebla.ports.environment import Environment
from ebla.raft.effects import LogWrite
from ebla.raft.events import RaftEvent
from ebla.raft.messages import (
    NO_PEER,
    Entry,
    HardState,
    InstallSnapshot,
    Membership,
    Message,
    PeerId,
    SnapshotMeta,
)
from ebla.raft.options import RaftOptions
from ebla.sim.checkers.models import RegisterAdd
from ebla.sim.clusters.raft_state_machine import (
    RegisterCommand,
    RegisterContent,
    RegisterMachine,
    chunks_of,
    encode_command,
    first_content,
)
from ebla.sim.world import World

ALONE = Membership(voters=(PeerId(1),))

THREE = Membership(voters=(PeerId(1), PeerId(2), PeerId(3)))

LEADER = PeerId(2)

CLIENT = "a client with a name"


class Post:
    """A wire that keeps what it is given."""

    def __init__(self) -> None:
        self.sendings: list[tuple[PeerId, tuple[Message, ...]]] = []
        self.is_up = True

    def send(self, peer: PeerId, messages: Sequence[Message]) -> bool:
        self.sendings.append((peer, tuple(messages)))
        return self.is_up

    def name_of(self, peer: PeerId) -> str:
        return f"peer {peer}"

    async def send_snapshot(self, message: InstallSnapshot, chunks: AsyncIterator[bytes]) -> None:
        assert [chunk async for chunk in chunks]

    def sent(self, kind: type[Message]) -> list[Message]:
        return [message for _, messages in self.sendings for message in messages if isinstance(message, kind)]


class Peer:
    """One server on a simulated disk, as peer 1."""

    def __init__(self, world: World, name: str = "p1", **changes: int) -> None:
        self.world = world
        self.environment: Environment = world.scenario_environment(f"{name} {world.loop.next_number()}")
        self.disk = list(world._machines.values())[-1].disk
        self.events: list[str] = []
        self.changes = changes
        self.on_applied: Callable[[Entry | None], None] = lambda _entry: None
        self.restart()

    def restart(self) -> None:
        """A new life on the same disk; the old one must have ended."""
        self.wire = Post()
        self.machine = RegisterMachine(lambda _content, entry: self.on_applied(entry))
        options = RaftOptions(
            peer=PeerId(1), tick_ms=20, message_bytes_max=self.changes.get("message_bytes_max", 1 << 20)
        )
        setup = RaftConfig(
            folder="/data/raft",
            options=options,
            report=lambda event, _details: self.events.append(event),
            snapshot_entries_max=self.changes.get("snapshot_entries_max", 1000),
            kept_entries=0,
            disk_full_retry_ms=50,
            read_wait_max_ms=300,
            log_segment_bytes=4096,
        )
        self.server: RaftDriver[RegisterContent] = RaftDriver(self.environment, setup, self.machine, self.wire)

    async def open(self, membership: Membership) -> None:
        meta = SnapshotMeta(1, 1, membership)
        write = LogWrite(hard_state=HardState(1, NO_PEER, 1), entries=(), snapshot=meta, must_sync=True, answers=())
        await self.server.begin(meta, chunks_of(first_content(1, membership)), write)
        await self.server.open()

    async def hear(self, *messages: RaftEvent) -> None:
        self.server.post_all(messages)
        await asyncio.sleep(0)

    async def lead(self) -> None:
        """Of a group of one."""
        async with asyncio.timeout(10):
            while not self.server.is_leader:
                await self.server.wait_status_changed()


def simulate(scenario: Callable[[World], Awaitable[None]]) -> None:
    World(seed=1, seconds=60.0).run(scenario)


async def running(peer: Peer, membership: Membership, work: Callable[[], Awaitable[None]]) -> None:
    await peer.open(membership)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(peer.server.run())
        await asyncio.sleep(0)
        await work()
        run.cancel()
    await peer.server.close()


def add_one(serial: int) -> bytes:
    return encode_command(RegisterCommand(client=CLIENT, serial=serial, key="counter", call=RegisterAdd(1)))
