"""The checks of failover on the leader: when they run, whose opinions count, and what automatic failover requires."""

import uuid
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from tests.unit.control.operations.operation_rig import Leader, OperationRig, exclude, host, include, prepared

from ebla.control.liveness.failure_detector import PeerLiveness, PeerState
from ebla.control.operations.failover import Failover, FailoverDeps
from ebla.control.operations.runner import OperationHandle
from ebla.group0.failover import RecoveryFacts
from ebla.group0.operations import EndedOperation, Operation, OperationCode, OperationFailed
from ebla.model.errors import DeadlineExceeded, Unreachable
from ebla.model.identity import HostId, RequestId, SessionId, TableId, TopologyVersion
from ebla.model.opinions import Opinion, OpinionState
from ebla.settings_store.registry import AutoFailoverSettings
from ebla.topology.commands import (
    AdvanceNode,
    AlterKeyspace,
    CreateKeyspace,
    CreateTable,
    ExcludeHosts,
    StartNodeRequest,
    SubmitNodeRequest,
)
from ebla.topology.snapshot import Exclusion, Keyspace, NodeRequest, Replication, Table
from ebla.topology.states import NodeRequestKind, Strategy
from ebla.wire.failover_messages import OpinionsAnswer
from ebla.wire.feed_messages import NodeBarrierAnswer, NodeBarrierRequest

SILENCE_MS = 3_000
HEALTHY = RecoveryFacts(is_up=True, behind_entries=0, is_leased=True)


class Voters:
    """`Peers`: hosts 2 and 3, each with its opinions of host 3."""

    def __init__(self) -> None:
        self.down: set[HostId] = {host(2)}
        self.silent: set[HostId] = {host(3)}
        self.installed = TopologyVersion(0)
        """By the shard of host 3."""

    async def call(
        self, voter: HostId, _verb: object, request: object, *_deadline: object
    ) -> OpinionsAnswer | NodeBarrierAnswer:
        if voter in self.silent:
            raise Unreachable(f"host {voter}")
        if isinstance(request, NodeBarrierRequest):
            if self.installed < request.version:
                raise DeadlineExceeded(f"shard-0 has version {self.installed}")
            return NodeBarrierAnswer(self.installed)
        state = OpinionState.DOWN if voter in self.down else OpinionState.UP
        return OpinionsAnswer((Opinion(voter=voter, host=host(3), state=state, for_ms=9_000),))


class FailoverRig:
    """Host 1 leads, and its own detector holds host 3 to be down."""

    def __init__(self, rig: OperationRig) -> None:
        self.rig = rig
        self.voters = Voters()
        self.leader: Leader = rig.leader(1)
        self.boot_ms = 100_000
        self.settings = AutoFailoverSettings(enabled=True, after_ms=5_000, max_count=1)
        group0 = SimpleNamespace(
            running=SimpleNamespace(store=rig.machine.store, leader_host=lambda: host(1)), is_running=True, leads=True
        )
        topology = SimpleNamespace(
            group0=group0, topology=rig, clock=SimpleNamespace(boot_ms=lambda: self.boot_ms), rng=rig.rng
        )
        self.operations = SimpleNamespace(checks={})
        self.failover = Failover(
            cast(
                "FailoverDeps",
                SimpleNamespace(
                    topology=topology,
                    operations=self.operations,
                    peers=self.voters,
                    own=host(1),
                    liveness=self._liveness,
                    silence_ms=SILENCE_MS,
                    settings=lambda: self.settings,
                ),
            )
        )

    def _liveness(self) -> tuple[PeerLiveness, ...]:
        members = {number: self.rig.machine.store.members[f"members/{host(number)}"] for number in (2, 3, 4)}
        return tuple(
            PeerLiveness(
                peer=members[number].address,
                state=PeerState.DOWN if number == 3 else PeerState.UP,
                since_ms=self.boot_ms - 10_000,
                host=host(number),
                heard_ms=self.boot_ms - 10_000,
            )
            for number in (2, 3, 4)
        )

    async def run(self, operation: Operation) -> OperationFailed | None:
        check = self.operations.checks[operation.kind]
        try:
            await self.leader.runner.run(operation, check)
        except OperationFailed as error:
            return error
        return None


def by_hand(number: int, operation_id: int) -> Operation:
    plain = exclude(number, operation_id)
    return Operation(id=plain.id, kind=plain.kind, hosts=plain.hosts)


async def test_the_record_has_the_opinions_and_the_leader() -> None:
    rig = FailoverRig(await prepared())
    assert await rig.run(by_hand(3, 4)) is None
    (exclusion,) = rig.rig.snapshot.state.exclusions
    assert exclusion.by == host(1)
    assert [(one.voter, one.state) for one in exclusion.opinions] == [(host(1), "down"), (host(2), "down")]


async def test_only_opinions_asked_under_this_quorum_count() -> None:
    """What host 2 said before proves nothing: it may have seen host 3 since."""
    rig = FailoverRig(await prepared())
    rig.voters.down.clear()
    assert await rig.run(by_hand(3, 4)) is not None
    rig.voters.down.add(host(2))
    rig.boot_ms += 500
    await rig.failover._ask(host(2), rig.failover._answers)
    rig.boot_ms += 500
    rig.voters.silent.add(host(2))
    error = await rig.run(by_hand(3, 5))
    assert error is not None
    assert error.code is OperationCode.REFUSED
    assert rig.rig.snapshot.excluded_hosts == ()


async def test_what_an_evaluation_forgets_counts_in_a_check() -> None:
    """On a node that does not lead, evaluations forget all answers each second, and a dead voter takes two."""
    rig = FailoverRig(await prepared())
    judge = rig.failover._facts

    def forgetting(*arguments: Any) -> Any:
        rig.failover._answers.clear()
        return judge(*arguments)

    rig.failover._facts = forgetting  # type: ignore[method-assign, assignment]  # at the last moment
    assert await rig.run(by_hand(3, 4)) is None


async def test_the_opinion_of_the_leader_alone_excludes_nobody() -> None:
    """INV-FAIL-1."""
    rig = FailoverRig(await prepared())
    rig.voters.down.clear()
    error = await rig.run(by_hand(3, 4))
    assert error is not None
    assert "down for 1 of 3 voters" in error.message


async def test_automatic_failover_is_checked_again_under_its_quorum() -> None:
    """INV-FAIL-2. It may have waited for long."""
    rig = FailoverRig(await prepared())
    await rig.leader.runner.run(exclude(2, 92))
    await rig.leader.runner.run(include(2, 93))
    for due, settings in (
        ((), AutoFailoverSettings(enabled=True, max_count=2)),
        ((host(3),), AutoFailoverSettings(enabled=False, max_count=2)),
        ((host(3),), AutoFailoverSettings(enabled=True, max_count=1)),
    ):
        rig.failover.auto.due, rig.settings = due, settings
        error = await rig.run(exclude(3))
        assert error is not None
        assert error.code is OperationCode.REFUSED
    rig.failover.auto.due, rig.settings = (host(3),), AutoFailoverSettings(enabled=True, max_count=2)
    assert await rig.run(exclude(3)) is None
    assert rig.rig.snapshot.state.failover_count == 2


async def test_a_node_whose_shard_has_an_old_version_is_not_recovered() -> None:
    """INV-FAIL-3. No barrier waited for it, and it would serve by that version."""
    rig = FailoverRig(await prepared())
    assert await rig.run(by_hand(3, 4)) is None
    rig.failover._recovery_facts = lambda host: HEALTHY  # type: ignore[method-assign]  # control has recovered
    rig.voters.silent.clear()
    rig.voters.installed = TopologyVersion(rig.rig.snapshot.version - 1)
    error = await rig.run(include(3, 5))
    assert error is not None
    assert error.code is OperationCode.REFUSED
    assert f"shard-0 has version {rig.voters.installed}" in error.message
    assert rig.rig.snapshot.excluded_hosts == (host(3),)
    rig.voters.installed = rig.rig.snapshot.version
    assert await rig.run(include(3, 6)) is None
    assert rig.rig.snapshot.exclusion_of(host(3)) is None


async def test_the_check_runs_under_the_quorum_and_after_a_read_barrier() -> None:
    """Before them, a former leader could decide by what it saw before it was cut off."""
    rig = await prepared()
    leader = rig.leader(1)
    steps: list[str] = []
    run_activity, read_barrier = leader._run_activity, leader.read_barrier

    async def under_quorum(
        name: str, body: Callable[[OperationHandle], Awaitable[EndedOperation | None]]
    ) -> EndedOperation | None:
        steps.append("quorum")
        return await run_activity(name, body)

    async def barrier(within_ms: int) -> Any:
        steps.append("barrier")
        return await read_barrier(within_ms)

    async def check(asked: Operation, *_seen: object) -> Operation:
        steps.append("check")
        return asked

    async def switch(_quorum: object, _wait_ms: int) -> None:
        steps.append("quorum of the new voters")

    leader.switch_quorum = switch  # type: ignore[method-assign, assignment]  # to see when it is called
    leader.read_barrier = barrier  # type: ignore[method-assign, assignment]  # to see when it is called
    leader.runner._deps = SimpleNamespace(  # type: ignore[assignment]  # to see when it is called
        **{name: getattr(leader.runner._deps, name) for name in leader.runner._deps.__slots__}
        | {"run_activity": under_quorum}
    )
    await leader.runner.run(by_hand(3, 4), check)
    assert steps == ["quorum", "barrier", "check", "quorum of the new voters", "barrier", "check"]


async def test_an_incomplete_node_is_not_recovered_and_the_refusal_says_how_to_go_on() -> None:
    """INV-NODE-23."""
    rig = FailoverRig(await prepared())
    rig.failover._recovery_facts = lambda host: HEALTHY  # type: ignore[method-assign]  # it has caught up
    lacking = Exclusion(host=host(3), since_ms=1, by=host(1))
    one, three = (_on_vnodes(factor) for factor in (1, 3))
    rig.rig.commit(CreateKeyspace(one))
    rig.rig.commit(CreateTable(Table(id=TableId(uuid.UUID(int=5)), keyspace=one.name, name="t")))
    rig.rig.commit(ExcludeHosts((lacking,)))
    rig.rig.commit(AlterKeyspace(three))
    assert rig.rig.snapshot.node(host(3)).is_incomplete
    error = await rig.run(include(3, 5))
    assert error is not None
    assert error.code is OperationCode.REFUSED
    for part in ("incomplete", f"ebla removenode {host(3)}", f"ebla add-node --replace {host(3)}"):
        assert part in error.message
    assert rig.rig.snapshot.excluded_hosts == (host(3),)
    assert rig.rig.record is None


async def test_nobody_is_recovered_while_a_node_operation_runs() -> None:
    rig = FailoverRig(await prepared())
    rig.failover._recovery_facts = lambda host: HEALTHY  # type: ignore[method-assign]  # it has caught up
    rig.rig.commit(ExcludeHosts((Exclusion(host=host(3), since_ms=1, by=host(1)),)))
    request = NodeRequest(
        id=RequestId(uuid.UUID(int=6)), kind=NodeRequestKind.REBUILD, host=host(4), initiator=host(4), start_ms=1
    )
    rig.rig.commit(SubmitNodeRequest(request))
    rig.rig.commit(StartNodeRequest(request.id, SessionId(uuid.UUID(int=7))))
    error = await rig.run(include(3, 5))
    assert error is not None
    assert error.code is OperationCode.REFUSED
    assert f"rebuild (request {request.id})" in error.message
    assert f"ebla topology abort {request.id}" in error.message
    assert rig.rig.snapshot.excluded_hosts == (host(3),)
    rig.rig.commit(AdvanceNode(host=host(4), leaving=None, now_ms=2))
    rig.voters.silent.clear()
    rig.voters.installed = rig.rig.snapshot.version
    assert await rig.run(include(3, 6)) is None
    assert host(3) not in rig.rig.snapshot.excluded_hosts


def _on_vnodes(factor: int) -> Keyspace:
    replication = Replication(Strategy.NETWORK_TOPOLOGY, (("dc1", factor),))
    return Keyspace(name="v", replication=replication, on_tablets=False)
