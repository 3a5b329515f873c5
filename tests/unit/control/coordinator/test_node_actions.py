"""What the coordinator must not do for a node that joins, and what it says of one that is silent."""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.topology.world import Coordinator as Driver
from tests.unit.topology.world import World, cluster, host

from ebla.control.coordinator.coordinator_deps import CoordinatorRun
from ebla.control.coordinator.node_actions import NodeActions, SilentHosts
from ebla.control.coordinator.wait_causes import WaitCauses
from ebla.group0.join_admission import learner_of
from ebla.group0.operations import UNFINISHED_OPERATION_KEY, OperationKind, UnfinishedOperation
from ebla.model.errors import Stale
from ebla.model.identity import HistoryId, HostId, RequestId
from ebla.model.stored_value import StoredValue, encode_stored
from ebla.model.transaction import Revision
from ebla.settings_store.registry import TopologySettings
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


class Silence:
    """A join in this state, in which the new node and all others lack the version, and the new node is down."""

    def __init__(self, state: TransitionState) -> None:
        self.world, _ = cluster(3)
        node = self.world.node(NEW)
        request = self.world.ask_to_join(node)
        Driver(self.world).until(state)
        self.request = request.id
        self.now_ms = 1_000
        self.causes = WaitCauses(lambda: self.now_ms, lambda _event, _fields: None)
        self.silent = SilentHosts()
        topology = SimpleNamespace(
            barriers=SimpleNamespace(wait_all=self.wait_all), clock=SimpleNamespace(boot_ms=lambda: self.now_ms)
        )
        deps = SimpleNamespace(topology=topology, settings=lambda: TopologySettings(peer_timeout_ms=5_000))
        run = SimpleNamespace(deps=deps, causes=self.causes, snapshot=self.world.snapshot)
        self.actions = NodeActions(cast("CoordinatorRun", run), self.silent)
        self.seen = ""

    async def wait_all(
        self, _version: object, _awaited: object, on_missing: Callable[[Mapping[HostId, str]], None]
    ) -> None:
        on_missing({host(2): "no answer", host(NEW): "no answer"})
        found = self.causes.of(self.request)
        self.seen = "" if found is None else found.text

    async def barrier_after(self, silent_ms: int) -> str:
        self.silent.observe((host(2), host(NEW)), self.now_ms)
        self.now_ms += silent_ms
        await self.actions.barrier(self.request)
        return self.seen


async def test_a_join_says_that_its_node_is_silent_and_when_it_is_rolled_back() -> None:
    seen = await Silence(TransitionState.COMMIT_CDC_GENERATION).barrier_after(2_000)
    assert seen == "no reply from 127.0.0.4; rolled back in 3 s"


async def test_a_join_that_cannot_be_rolled_back_any_more_names_all_that_the_barrier_lacks() -> None:
    seen = await Silence(TransitionState.WRITE_BOTH_READ_NEW).barrier_after(2_000)
    assert seen.startswith("barrier of version ")
    assert "127.0.0.2: no answer" in seen
    assert "127.0.0.4: no answer" in seen


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
