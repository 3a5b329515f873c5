"""A Raft group of three to seven peers under every fault, while its members, leaders and snapshots change constantly.

Each peer is the real server with its log on the simulated disk and its messages over the real wire. What must hold is
checked after every step of every core; what clients saw is judged at the end.
"""

import asyncio
import functools
from collections.abc import Mapping

from ebla.control.raft_server import RaftSetup
from ebla.journal.recovery import LogLimits
from ebla.journal.segments import LogFailed
from ebla.model.identity import Address, ClusterId, HistoryId, HostId
from ebla.raft.membership import LEAVE_JOINT
from ebla.raft.messages import Membership, PeerId
from ebla.raft.options import Options
from ebla.sim.chance import SimChance
from ebla.sim.checkers.linearizability import find_violation
from ebla.sim.checkers.models import Add, Read, RegisterModel
from ebla.sim.checkers.raft_safety import RaftSafety
from ebla.sim.faults.harsh import harsh
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.raft_client import (
    COUNTER,
    REGISTERS,
    RaftClient,
    RaftLoad,
    RaftOperator,
    client_process,
    everybody_votes,
    make_peers,
    operator_process,
)
from ebla.sim.workloads.raft_node import FOLDER, Group, raft_process
from ebla.sim.world import MAY_END, Unit, World
from ebla.wire.report import Report

PORT = 7000
CLIENTS = 6
CALM_S = 40.0
"""From the last fault until everything must be well again."""
TICK_MS = 20


async def run(world: World) -> None:
    await run_group(world)


async def run_group(world: World) -> RaftSafety:
    """The checker comes back, so that a test can see how much a run went through."""
    chance = world.chance.fork("raft")
    safety = RaftSafety()
    group, units = _build(world, chance, safety)
    load = RaftLoad(group)
    for number in range(1, CLIENTS + 1):
        name = f"c{number}"
        world.unit(name, functools.partial(client_process, name=name, load=load))
    world.unit("operator", functools.partial(operator_process, load=load))
    for unit in world.units.values():
        unit.start()
    await harsh(world, list(units.values()), world.seconds)
    await _judge(world, safety, load)
    return safety


# ---- building


def _build(world: World, chance: SimChance, safety: RaftSafety) -> tuple[Group, dict[PeerId, Unit]]:
    peers = [PeerId(number) for number in range(1, chance.randrange(3, 8) + 1)]
    hosts = {peer: HostId(chance.uuid()) for peer in peers}
    addresses: dict[PeerId, Address] = {}
    first = Membership(voters=tuple(peers[: chance.randrange(1, len(peers) + 1)]))
    group = Group(
        ClusterId(chance.uuid()),
        HistoryId(chance.uuid()),
        hosts,
        addresses,
        first,
        _draw_setup(chance),
        safety,
    )
    world.tell("scenario", f"{len(peers)} peers, {first.voters} vote first")
    units: dict[PeerId, Unit] = {}
    for peer in peers:
        name = f"p{peer}"
        main = functools.partial(raft_process, group=group, peer=peer, report=_report(world, name))
        unit = units[peer] = world.unit(name, main, host_id=hosts[peer])
        unit.may_end = (*MAY_END, LogFailed)
        addresses[peer] = unit.address(PORT)
    return group, units


def _draw_setup(chance: SimChance) -> "functools.partial[RaftSetup]":
    """Bounds so small that a run meets them all the time."""
    snapshot_entries = chance.choice((4, 12, 40))
    bounds = {
        "message_bytes_max": chance.choice((80, 400, 1 << 20)),
        "inflight_messages_max": chance.choice((1, 4, 256)),
        "inflight_bytes_max": chance.choice((200, 1000, 1 << 24)),
        "apply_bytes_max": chance.choice((60, 500, 1 << 23)),
        "uncommitted_bytes_max": chance.choice((300, 1 << 26)),
        "waiting_reads_max": chance.choice((2, 4096)),
    }
    segment_bytes = chance.choice((1024, 8192))
    kept_entries = chance.choice((0, 3, 20))
    return functools.partial(_setup, bounds, (snapshot_entries, kept_entries, segment_bytes))


def _setup(bounds: Mapping[str, int], sizes: tuple[int, int, int], peer: PeerId, report: Report) -> RaftSetup:
    snapshot_entries, kept_entries, segment_bytes = sizes
    return RaftSetup(
        FOLDER,
        Options(peer, tick_ms=TICK_MS, **bounds),  # type: ignore[arg-type]  # only numbers are drawn
        report,
        snapshot_entries_max=snapshot_entries,
        kept_entries=kept_entries,
        read_wait_max_ms=2_000,
        log_limits=LogLimits(segment_bytes=segment_bytes),
    )


def _report(world: World, name: str) -> Report:
    def tell(event: str, details: object) -> None:
        world.tell(name, f"{event} {details}")

    return tell


# ---- judging


async def _judge(world: World, safety: RaftSafety, load: RaftLoad) -> None:
    """With all faults gone: every call is answered, everybody can be made a voter and comes to the same state, and
    some order explains every answer."""
    unanswered = await load.stop(CALM_S)
    world.check(unanswered == 0, f"{unanswered} calls are still unanswered {CALM_S:.0f} s after all was healed")
    around = world.outside("judge")
    async with asyncio.TaskGroup() as tasks:
        peers = make_peers(tasks, around, load.group)
        operator = RaftOperator(around, load, peers)
        client = RaftClient(around, "judge", load, peers)
        try:
            async with asyncio.timeout(CALM_S):
                await _gather(safety, operator, sorted(load.group.hosts))
                await client.call(COUNTER, Add(1))
                for key in (COUNTER, *REGISTERS):
                    await client.call(key, Read())
                await _settle(safety)
        except TimeoutError:
            world.fail(f"no progress within {CALM_S:.0f} s after all was healed: {_standings(safety)}")
        peers.close("judged")
    _check_history(world, load)
    world.tell(
        "scenario",
        f"{safety.steps} steps, {safety.restarts} restarts, {safety.snapshots_installed} snapshots installed,"
        f" {len(safety.memberships)} memberships, {max(safety.history.leaders, default=0)} terms,"
        f" {safety.history.committed_to} entries",
    )


async def _gather(safety: RaftSafety, operator: RaftOperator, peers: list[PeerId]) -> None:
    """Until all peers vote, as all of them know."""
    while not all(machine.content.membership == Membership(tuple(peers)) for machine in safety.machines.values()):
        await operator.change(LEAVE_JOINT)
        await asyncio.sleep(0.3)
        await operator.change(everybody_votes(peers))
        await asyncio.sleep(1.0)


async def _settle(safety: RaftSafety) -> None:
    """Until all have applied the same entries."""
    while True:
        if len({machine.content.index for machine in safety.machines.values()}) == 1:
            return
        await asyncio.sleep(0.2)


def _standings(safety: RaftSafety) -> str:
    return "; ".join(
        f"p{peer} {type(server.core.role).__name__} term {server.core.term} leader {server.core.leader}"
        f" commit {server.core.commit_index} of {server.core.first_index}-{server.core.last_index}"
        f" applied {safety.machines[peer].content.index} {server.core.membership}"
        for peer, server in sorted(safety.servers.items())
    )


def _check_history(world: World, load: RaftLoad) -> None:
    operations = load.history.operations()
    violation = find_violation(operations, RegisterModel())
    world.check(violation is None, str(violation))
    known = sum(operation.returned is not None for operation in operations)
    world.tell("scenario", f"{known} answered calls of {len(operations)} are linearizable")


SCENARIO = Scenario(
    "raft", "a Raft group keeps every promise under faults and changes of members", seconds=25.0, run=run
)
