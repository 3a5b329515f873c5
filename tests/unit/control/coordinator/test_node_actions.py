"""What the coordinator must not do for a node that joins."""

import uuid
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.topology.world import World, host

from ebla.control.coordinator.coordinator_deps import CoordinatorRun
from ebla.control.coordinator.node_actions import NodeActions, SilentHosts
from ebla.group0.join_admission import learner_of
from ebla.group0.operations import UNFINISHED_OPERATION_KEY, OperationKind, UnfinishedOperation
from ebla.model.errors import Stale
from ebla.model.identity import HistoryId, RequestId
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.model.transaction import Revision
from ebla.topology.commands import AdvanceNode, Command
from ebla.topology.node_states import node_row
from ebla.topology.states import NodeState, TransitionState

NEW = 4


class Run:
    """A run of the coordinator whose group 0 has an unfinished operation on this host."""

    def __init__(self, operated: int) -> None:
        world = World()
        self.node = world.node(NEW)
        record = UnfinishedOperation(
            kind=OperationKind.ADD_LEARNER,
            members=(learner_of(world.node(operated), 7000, RequestId(uuid.UUID(int=9))),),
            lock=b"lock",
        )
        entry = SimpleNamespace(
            value=encode_stored(StoredValue(record)), revision=Revision(HistoryId(uuid.UUID(int=1)), 7)
        )
        store = SimpleNamespace(get=lambda key: entry if key == UNFINISHED_OPERATION_KEY else None)
        group0 = SimpleNamespace(running=SimpleNamespace(store=store))
        self.deps = SimpleNamespace(topology=SimpleNamespace(group0=group0))
        self.committed: list[Command] = []

    async def commit(self, commands: tuple[Command, ...]) -> None:
        self.committed.extend(commands)


ADVANCE = AdvanceNode(host=host(NEW), leaving=TransitionState.WRITE_BOTH_READ_NEW, now_ms=1)


async def test_nothing_advances_a_host_whose_addition_is_unfinished() -> None:
    run = Run(operated=NEW)
    with pytest.raises(Stale, match="add_learner"):
        await NodeActions(cast("CoordinatorRun", run), SilentHosts())._commit_for(run.node, ADVANCE)
    assert run.committed == []


async def test_an_operation_on_another_host_stops_nothing() -> None:
    run = Run(operated=2)
    await NodeActions(cast("CoordinatorRun", run), SilentHosts())._commit_for(run.node, ADVANCE)
    assert run.committed == [ADVANCE]


def test_a_host_is_lost_once_it_was_silent_for_the_whole_time() -> None:
    silent = SilentHosts()
    silent.observe((host(1), host(2)), 1_000)
    silent.observe((host(1),), 3_000)
    silent.observe((host(1), host(2)), 5_000)
    assert silent.lost(4_000, 5_000) == {host(1)}


@pytest.mark.parametrize(
    ("state", "done"), [(NodeState.REPLACING, ["waits", "advances"]), (NodeState.REMOVING, ["advances"])]
)
async def test_a_replacing_node_becomes_a_pending_replica_once_its_shards_run(
    state: NodeState, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the natural replicas is dead, so QUORUM writes need the new one at once."""
    seen: list[str] = []

    def note(what: str) -> Callable[..., Awaitable[None]]:
        async def act(*_: object) -> None:
            seen.append(what)

        return act

    monkeypatch.setattr(NodeActions, "wait_version", note("waits"))
    monkeypatch.setattr(NodeActions, "_advance", note("advances"))
    run = SimpleNamespace(deps=None, snapshot=SimpleNamespace(version=7))
    row = node_row(state, TransitionState.TABLET_DRAINING)
    assert row is not None
    await NodeActions(cast("CoordinatorRun", run), SilentHosts())._pass(World().node(NEW, state=state), row)
    assert seen == done
