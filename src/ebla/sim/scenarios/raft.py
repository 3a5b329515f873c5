"""A Raft group of three to seven peers under every fault, while its members, leaders and snapshots change constantly.

Each peer is the real driver with its log on the simulated disk and its messages over the real wire. The invariants are
checked after every step of every core; what clients saw is judged at the end.
"""

import asyncio
import functools
from collections.abc import Callable

from ebla.control.raft.config import RaftConfig
from ebla.journal.segmented_log import LogFailed
from ebla.model.identity import Address, ClusterId, HistoryId, HostId
from ebla.observe.event_reporter import EventReporter
from ebla.raft.membership import LEAVE_JOINT
from ebla.raft.messages import Membership, PeerId
from ebla.raft.options import RaftOptions
from ebla.sim.checkers.linearizability import find_violation
from ebla.sim.checkers.models import RegisterAdd, RegisterModel, RegisterRead
from ebla.sim.checkers.raft_safety import RaftSafetyChecker
from ebla.sim.clusters.raft import FOLDER, RaftGroup, raft_process
from ebla.sim.faults.harsh import harsh
from ebla.sim.rng import SimRng
from ebla.sim.scenario import Scenario
from ebla.sim.workloads.raft_client import (
    COUNTER,
    REGISTERS,
    RaftClient,
    RaftLoad,
    RaftOperator,
    client_process,
    make_all_voters,
    make_peers,
    operator_process,
)
from ebla.sim.world import EXPECTED_ERRORS, Unit, World

PORT = 7000
CLIENTS = 6
CALM_S = 40.0
"""From the last fault until everything must work again."""
TICK_MS = 20


async def run(world: World) -> None:
    await run_group(world)


async def run_group(world: World) -> RaftSafetyChecker:
    """Returns the checker, so that a test can see what the run covered."""
    rng = world.rng.fork("raft")
    safety = RaftSafetyChecker()
    group, units = _build(world, rng, safety)
    load = RaftLoad(group=group)
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


def _build(world: World, rng: SimRng, safety: RaftSafetyChecker) -> tuple[RaftGroup, dict[PeerId, Unit]]:
    peers = [PeerId(number) for number in range(1, rng.randrange(3, 8) + 1)]
    hosts = {peer: HostId(rng.uuid()) for peer in peers}
    addresses: dict[PeerId, Address] = {}
    first = Membership(voters=tuple(peers[: rng.randrange(1, len(peers) + 1)]))
    group = RaftGroup(
        cluster=ClusterId(rng.uuid()),
        history=HistoryId(rng.uuid()),
        hosts=hosts,
        addresses=addresses,
        first=first,
        setup=_draw_setup(rng),
        watch=safety,
    )
    world.log("scenario", f"{len(peers)} peers, {first.voters} vote first")
    units: dict[PeerId, Unit] = {}
    for peer in peers:
        name = f"p{peer}"
        main = functools.partial(raft_process, group=group, peer=peer, report=world.reporter(name))
        unit = units[peer] = world.unit(name, main, host_id=hosts[peer])
        unit.expected_errors = (*EXPECTED_ERRORS, LogFailed)
        addresses[peer] = unit.address(PORT)
    return group, units


def _draw_setup(rng: SimRng) -> Callable[[PeerId, EventReporter], RaftConfig]:
    """Bounds so small that a run reaches them all the time."""
    snapshot_entries = rng.choice((4, 12, 40))
    bounds = {
        "message_bytes_max": rng.choice((80, 400, 1 << 20)),
        "inflight_messages_max": rng.choice((1, 4, 256)),
        "inflight_bytes_max": rng.choice((200, 1000, 1 << 24)),
        "apply_bytes_max": rng.choice((60, 500, 1 << 23)),
        "uncommitted_bytes_max": rng.choice((300, 1 << 26)),
        "waiting_reads_max": rng.choice((2, 4096)),
    }
    segment_bytes = rng.choice((1024, 8192))
    kept_entries = rng.choice((0, 3, 20))

    def setup(peer: PeerId, report: EventReporter) -> RaftConfig:
        return RaftConfig(
            folder=FOLDER,
            options=RaftOptions(peer=peer, tick_ms=TICK_MS, **bounds),  # type: ignore[arg-type]  # only numbers
            report=report,
            snapshot_entries_max=snapshot_entries,
            kept_entries=kept_entries,
            read_wait_max_ms=2_000,
            log_segment_bytes=segment_bytes,
        )

    return setup


# ---- judging


async def _judge(world: World, safety: RaftSafetyChecker, load: RaftLoad) -> None:
    """Without faults every call is answered, all peers can become voters and reach the same state, and some order
    explains every answer."""
    await load.stop(world, CALM_S)
    environment = world.scenario_environment("judge")
    async with asyncio.TaskGroup() as tasks:
        peers = make_peers(tasks, environment, load.group)
        operator = RaftOperator(environment, load, peers)
        client = RaftClient(environment, "judge", load, peers)
        try:
            async with asyncio.timeout(CALM_S):
                await _gather(safety, operator, sorted(load.group.hosts))
                await client.call(COUNTER, RegisterAdd(1))
                for key in (COUNTER, *REGISTERS):
                    await client.call(key, RegisterRead())
                await world.wait_for(lambda: _is_settled(safety), CALM_S)
        except TimeoutError:
            world.fail(f"no progress within {CALM_S:.0f} s after all was healed: {_standings(safety)}")
        peers.close("judged")
    _check_history(world, load)
    world.log(
        "scenario",
        f"{safety.steps} steps, {safety.restarts} restarts, {safety.snapshots_installed} snapshots installed,"
        f" {len(safety.memberships)} memberships, {max(safety.history.leaders, default=0)} terms,"
        f" {safety.history.committed_to} entries",
    )


async def _gather(safety: RaftSafetyChecker, operator: RaftOperator, peers: list[PeerId]) -> None:
    """Until all peers are voters and know it."""
    while not all(
        machine.content.membership == Membership(voters=tuple(peers)) for machine in safety.machines.values()
    ):
        await operator.change(LEAVE_JOINT)
        await asyncio.sleep(0.3)
        await operator.change(make_all_voters(peers))
        await asyncio.sleep(1.0)


def _is_settled(safety: RaftSafetyChecker) -> bool:
    """All have applied the same entries."""
    return len({machine.content.index for machine in safety.machines.values()}) == 1


def _standings(safety: RaftSafetyChecker) -> str:
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
    world.log("scenario", f"{known} answered calls of {len(operations)} are linearizable")


SCENARIO = Scenario(
    name="raft", summary="a Raft group keeps every promise under faults and changes of members", seconds=25.0, run=run
)
