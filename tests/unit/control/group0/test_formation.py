"""The durable steps of formation, on the simulated disk."""

import asyncio
import uuid

import msgspec
import pytest
from tests.unit.topology.world import World as TopologyWorld

from ebla.control.group0.formation import Formation, Group0Config
from ebla.control.group0.join_state import JoinStage, JoinState, JoinStateFile
from ebla.group0.discovery import FreshNode
from ebla.group0.join_handshake import NotAdmitted
from ebla.group0.members import Member, MemberRole
from ebla.model.identity import Address, ClusterId, HistoryId, HostId
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.sim.scenario import Scenario, run_scenario
from ebla.sim.world import World
from ebla.wire.frames import Introduction
from ebla.wire.group0_messages import DiscoverRequest
from ebla.wire.peers import PeersContext

HOST = HostId(uuid.UUID(int=1))
CLUSTER = ClusterId(uuid.UUID(int=5))
ASKER = Address("10.9.9.9", 7000)
NOWHERE = Address("10.9.9.8", 7000)


def formation(environment: Environment, marks: JoinStateFile, replaced: str = "") -> Formation:
    introduction = Introduction(host=HOST, cluster=CLUSTER, cluster_name="test")
    context = PeersContext(
        transport=environment.transport,
        rng=environment.rng,
        introduction=introduction,
        report=discard_event,
    )
    member = Member(host=HOST, role=MemberRole.LEARNER, address=Address("10.0.0.1", 7000))
    return Formation(
        context,
        marks,
        Group0Config(
            member=member,
            node=msgspec.structs.replace(TopologyWorld().node(1), host=HOST),
            cluster=CLUSTER,
            cluster_name="test",
            contacts=() if replaced else (NOWHERE,),
            replaced=replaced,
            folder="/data/group0",
        ),
    )


async def never_begin(_history: HistoryId) -> int:
    raise AssertionError("a node that waits for an answer must not create")


def test_whom_a_fresh_node_answers_it_still_knows_after_a_power_cut() -> None:
    """INV-FORM-1 rests on this: its answer may have promised to wait for them."""

    async def life(environment: Environment) -> None:
        marks = JoinStateFile(environment.disk, "/data/mark")
        await marks.load()
        forming = formation(environment, marks)
        async with asyncio.TaskGroup() as tasks:
            settling = tasks.create_task(forming.join_or_create(never_begin))
            await asyncio.sleep(0.1)
            reply = await forming.answer(DiscoverRequest(ASKER, ()))
            assert isinstance(reply, FreshNode)
            assert ASKER in reply.known
            settling.cancel()

    async def run(world: World) -> None:
        unit = world.unit("node", life)
        unit.start()
        await asyncio.sleep(2)
        unit.crash()
        marks = JoinStateFile(world.machine("node").disk.of(world._incarnation), "/data/mark")
        world.check(ASKER in (await marks.load()).known, "the asker is forgotten")

    outcome = run_scenario(Scenario(name="formation-mark", summary="", seconds=5.0, run=run), 1)
    assert outcome.failure is None, outcome.report


def test_a_mark_survives_and_refuses_nothing_it_wrote() -> None:
    async def run(world: World) -> None:
        disk = world.machine("node").disk.of(world._incarnation)
        marks = JoinStateFile(disk, "/data/mark")
        world.check(await marks.load() == JoinState(), "a missing mark is a fresh node's")
        mark = JoinState(
            stage=JoinStage.MEMBER,
            incarnation=3,
            known=(ASKER,),
            history=HistoryId(uuid.UUID(int=9)),
            join_id=uuid.UUID(int=4),
            log_id=77,
        )
        await marks.save(**msgspec.structs.asdict(mark))
        world.check(await JoinStateFile(disk, "/data/mark").load() == mark, "it reads back")
        newer = msgspec.structs.replace(mark, incarnation=4)
        await marks.save(incarnation=4)
        world.check(await JoinStateFile(disk, "/data/mark").load() == newer, "it is replaced whole")

    outcome = run_scenario(Scenario(name="mark", summary="", seconds=5.0, run=run), 1)
    assert outcome.failure is None, outcome.report


def test_a_node_that_replaces_another_never_creates_a_cluster() -> None:
    """Its contacts may all be fresh, or its list of them empty."""

    async def run(world: World) -> None:
        marks = JoinStateFile(world.machine("node").disk.of(world._incarnation), "/data/mark")
        await marks.load()
        forming = formation(world.scenario_environment("node"), marks, replaced="10.0.0.9")
        with pytest.raises(NotAdmitted, match="cannot be replaced there"):
            await forming.join_or_create(never_begin)
        world.check(marks.mark.stage is JoinStage.FRESH, "it has not decided anything")

    outcome = run_scenario(Scenario(name="formation-replace", summary="", seconds=5.0, run=run), 1)
    assert outcome.failure is None, outcome.report
