"""Faults of the network: directed cuts, partitions, slow, clogged and broken links."""

import asyncio
from collections.abc import Sequence

from ebla.sim.network import PathFault
from ebla.sim.world import Unit, World

Pair = tuple[str, str]


# ---- for chosen paths and a chosen time


async def cut(world: World, pairs: Sequence[Pair], lasts_s: float) -> None:
    world.log("faults", f"cut: {', '.join(f'{source} -> {target}' for source, target in pairs)}")
    for source, target in pairs:
        world.network.cut(source, target)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        for source, target in pairs:
            world.network.uncut(source, target)


async def clog(world: World, pair: Pair, lasts_s: float) -> None:
    """Nothing passes and nothing is lost: all frames arrive later at once, out of date."""
    world.log("faults", f"{pair[0]} -> {pair[1]} is clogged")
    world.network.clog(*pair)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        world.network.unclog(*pair)


async def strain(world: World, pair: Pair, fault: PathFault, lasts_s: float) -> None:
    effect = f"loses {fault.extra_loss:.0%}" if fault.extra_loss else f"is slower by {fault.extra_latency_ms:.0f} ms"
    world.log("faults", f"{pair[0]} -> {pair[1]} {effect}")
    with world.network.path(*pair).inject(fault):
        await asyncio.sleep(lasts_s)


# ---- for random paths


async def cut_one_way(world: World, units: Sequence[Unit]) -> None:
    """One direction of one path: the peer receives but cannot send. Symmetric partitions never show this."""
    await cut(world, [_draw_pair(world, units)], _draw_s(world))


async def isolate(world: World, units: Sequence[Unit]) -> None:
    one = world.rng.choice(units)
    await cut(world, _between(world, [one.name], units), _draw_s(world))


async def partition(world: World, units: Sequence[Unit]) -> None:
    """Two sides that cannot reach each other. Clients outside `units` are assigned to a side, too."""
    side = world.rng.sample(units, world.rng.randrange(1, max(2, len(units))))
    await cut(world, _between(world, [unit.name for unit in side], units), _draw_s(world))


async def slow(world: World, units: Sequence[Unit]) -> None:
    fault = PathFault(extra_latency_ms=world.rng.exponential(300.0), bytes_per_s=world.rng.choice((None, 100_000.0)))
    await strain(world, _draw_pair(world, units), fault, _draw_s(world))


async def clog_one_way(world: World, units: Sequence[Unit]) -> None:
    await clog(world, _draw_pair(world, units), _draw_s(world))


async def lossy(world: World, units: Sequence[Unit]) -> None:
    fault = PathFault(extra_loss=world.rng.between(0.2, 0.7))
    await strain(world, _draw_pair(world, units), fault, _draw_s(world))


async def reset(world: World, units: Sequence[Unit]) -> None:
    one, other = _draw_pair(world, units)
    broken = world.network.reset(one, other)
    if broken:
        world.log("faults", f"{broken} links between {one} and {other} are reset")


def _draw_s(world: World) -> float:
    return world.rng.exponential(2.0)


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
