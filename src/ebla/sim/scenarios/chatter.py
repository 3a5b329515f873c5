"""Three nodes that keep sending each other frames: the smallest scenario, and the load of the simulator's benchmark."""

import asyncio
import functools
from collections.abc import Sequence

from ebla.model.errors import Unreachable
from ebla.model.identity import Address
from ebla.ports.environment import Environment
from ebla.ports.transport import Link
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.world import Unit, World

NODES = 3
PORT = 7000
CONNECT_S = 2.0
MESSAGES_PER_S = 10.0
"""To each peer: 60 a second by three nodes together."""


class FrameCounter:
    """One end of a link. Counts the frames it receives."""

    def __init__(self, heard: list[int], number: int) -> None:
        self._heard = heard
        self._number = number
        self.open = True

    def frame_received(self, frame: bytes) -> None:  # noqa: ARG002  # frames are counted, not decoded
        self._heard[self._number] += 1

    def link_closed(self, cause: str) -> None:  # noqa: ARG002  # the cause does not matter here
        self.open = False


async def node(environment: Environment, addresses: Sequence[Address], number: int, heard: list[int]) -> None:
    def on_open(_: Link) -> FrameCounter:
        return FrameCounter(heard, number)

    await environment.transport.listen(addresses[number], on_open)
    async with asyncio.TaskGroup() as talks:
        for peer, address in enumerate(addresses):
            if peer != number:
                talks.create_task(_talk(environment, address, FrameCounter(heard, number)))


async def _talk(environment: Environment, address: Address, ear: FrameCounter) -> None:
    """Keeps one link to one peer, and reopens it as long as the node runs."""
    while True:
        ear.open = True
        try:
            async with asyncio.timeout(CONNECT_S):
                link = await environment.transport.connect(address, lambda _: ear)
        except (Unreachable, TimeoutError):
            await asyncio.sleep(environment.rng.random())
            continue
        while ear.open:
            link.send(environment.rng.bytes(100))
            await asyncio.sleep((0.5 + environment.rng.random()) / MESSAGES_PER_S)


def start(world: World, heard: list[int]) -> list[Unit]:
    addresses: list[Address] = []
    units = [
        world.unit(f"n{number}", functools.partial(node, addresses=addresses, number=number, heard=heard))
        for number in range(NODES)
    ]
    addresses.extend(unit.address(PORT) for unit in units)
    for unit in units:
        unit.start()
    return units


async def run(world: World) -> None:
    heard = [0] * NODES
    units = start(world, heard)
    await harsh(world, units, world.seconds)
    before = list(heard)
    await asyncio.sleep(30.0)
    for unit, then, now in zip(units, before, heard):
        world.check(now > then, f"{unit.name} receives nothing after all was healed")
    world.log("scenario", f"heard {heard}")


SCENARIO = Scenario(name="chatter", summary="three nodes that keep talking, under every fault", seconds=60.0, run=run)
