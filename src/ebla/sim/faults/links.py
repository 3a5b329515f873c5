"""Faults of the network: directed cuts, partitions, slow, clogged and broken links."""

import asyncio
from collections.abc import Sequence

from ebla.sim.network import PathFault
from ebla.sim.world import Unit, World

Pair = tuple[str, str]


async def cut_one_way(world: World, units: Sequence[Unit]) -> None:
    """One direction of one path: the peer receives but cannot send. Symmetric partitions never show this."""
    await _cut(world, [_draw_pair(world, units)])


async def isolate(world: World, units: Sequence[Unit]) -> None:
    one = world.rng.choice(units)
    await _cut(world, _between(world, [one.name], units))


async def partition(world: World, units: Sequence[Unit]) -> None:
    """Two sides that cannot reach each other. Clients outside `units` are assigned to a side, too."""
    side = world.rng.sample(units, world.rng.randrange(1, max(2, len(units))))
    await _cut(world, _between(world, [unit.name for unit in side], units))


async def slow(world: World, units: Sequence[Unit]) -> None:
    source, target = _draw_pair(world, units)
    path = world.network.path(source, target)
    extra_latency_ms = world.rng.exponential(300.0)
    world.log("faults", f"{source} -> {target} is slower by {extra_latency_ms:.0f} ms")
    pace = world.rng.choice((None, 100_000.0))
    with path.inject(PathFault(extra_latency_ms=extra_latency_ms, bytes_per_s=pace)):
        await _hold(world)


async def clog(world: World, units: Sequence[Unit]) -> None:
    """Nothing passes and nothing is lost: all frames arrive later at once, out of date."""
    source, target = _draw_pair(world, units)
    world.log("faults", f"{source} -> {target} is clogged")
    world.network.clog(source, target)
    try:
        await _hold(world)
    finally:
        world.network.unclog(source, target)


async def lossy(world: World, units: Sequence[Unit]) -> None:
    source, target = _draw_pair(world, units)
    path = world.network.path(source, target)
    loss = world.rng.between(0.2, 0.7)
    world.log("faults", f"{source} -> {target} loses {loss:.0%}")
    with path.inject(PathFault(extra_loss=loss)):
        await _hold(world)


async def reset(world: World, units: Sequence[Unit]) -> None:
    one, other = _draw_pair(world, units)
    broken = world.network.reset(one, other)
    if broken:
        world.log("faults", f"{broken} links between {one} and {other} are reset")


async def _cut(world: World, pairs: Sequence[Pair]) -> None:
    world.log("faults", f"cut: {', '.join(f'{source} -> {target}' for source, target in pairs)}")
    for source, target in pairs:
        world.network.cut(source, target)
    try:
        await _hold(world)
    finally:
        for source, target in pairs:
            world.network.uncut(source, target)


async def _hold(world: World) -> None:
    await asyncio.sleep(world.rng.exponential(2.0))


def _draw_pair(world: World, units: Sequence[Unit]) -> Pair:
    """One direction between two of the units, or between one of them and any other unit."""
    one = world.rng.choice(units)
    other = world.rng.choice([unit for unit in world.units.values() if unit is not one] or [one])
    return (one.name, other.name) if world.rng.happens(0.5) else (other.name, one.name)


def _between(world: World, side: Sequence[str], units: Sequence[Unit]) -> list[Pair]:
    others = [unit.name for unit in units if unit.name not in side]
    members = {unit.name for unit in units}
    others += [name for name in world.units if name not in members and world.rng.happens(0.5)]
    return [pair for one in side for other in others for pair in ((one, other), (other, one))]
