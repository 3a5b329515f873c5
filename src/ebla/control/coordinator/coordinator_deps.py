"""What the coordinator needs, and how it commits: under its activity, conditional on what it read."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from ebla.control.coordinator.stream_orders import StreamOrders
from ebla.control.coordinator.wait_causes import WaitCauses
from ebla.control.fault_points import FaultPoint
from ebla.control.group0.voter_assignment import RunsOperations
from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.topology.barrier_client import DownHosts
from ebla.control.topology.bulk_sessions import BulkSessionService
from ebla.control.topology.committed_topology import CommittedTopology
from ebla.control.topology.deps import TopologyDeps
from ebla.group0.operations import UNFINISHED_OPERATION_KEY, Operation, OperationKind, read_record
from ebla.model.errors import EblaError, Fault, Outcome
from ebla.model.identity import HostId, RequestId, TopologyVersion
from ebla.model.transaction import KeyMissing, KeyUnchanged
from ebla.settings_store.registry import TopologySettings
from ebla.topology.commands import Command
from ebla.topology.snapshot import Snapshot
from ebla.wire.peers import Peers, PeersContext
from ebla.wire.topology_messages import StreamProgress

COMMIT_MS = 5_000
NO_FENCE = TopologyVersion(0)


class CommitConflict(EblaError):
    """Something else was committed first, or the outcome is unknown: read again, and decide again."""

    outcome = Outcome.UNKNOWN
    fault = Fault.US
    is_transient = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorDeps:
    topology: TopologyDeps
    committed: CommittedTopology
    operations: RunsOperations
    leadership: LeadershipNode
    sessions: BulkSessionService
    streams: StreamOrders
    peers: Peers
    context: PeersContext
    silent: DownHosts
    """The hosts that do not answer. Unlike those that are down, an excluded host may answer."""
    control_port: int
    """The same on every node."""
    settings: Callable[[], TopologySettings]
    reach: Callable[[FaultPoint], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRun:
    """One run of the activity."""

    deps: CoordinatorDeps
    handle: RunningHandle
    causes: WaitCauses
    tasks: asyncio.TaskGroup
    progress: dict[RequestId, StreamProgress] = field(default_factory=dict)
    """Of the streams of each request, as last reported."""

    @property
    def snapshot(self) -> Snapshot:
        return self.deps.committed.snapshot

    async def commit(self, commands: Sequence[Command], snapshot: Snapshot | None = None) -> Snapshot:
        """On the condition that the topology is still this one (by default what this node knows now), and that no
        operation on members has begun or ended since. Raises `CommitConflict`."""
        topology = self.deps.topology
        found = read_record(topology.group0.running.store)
        key = UNFINISHED_OPERATION_KEY
        unchanged = KeyMissing(key) if found is None else KeyUnchanged(key, found.revision)
        self.handle.check_effect()
        try:
            done = await topology.commit(
                snapshot or self.snapshot, commands, COMMIT_MS, (unchanged,), self.handle.check_effect
            )
        except EblaError as error:
            if error.outcome is Outcome.UNKNOWN:
                raise CommitConflict(error.message) from error
            raise
        names = ", ".join(type(command).__name__ for command in commands)
        if done is None:
            raise CommitConflict(f"{names}: another change was committed first")
        topology.report("topology.committed", {"commands": names, "version": done.version})
        return done

    async def remove(self, host: HostId, reason: str, fence: TopologyVersion = NO_FENCE) -> None:
        """From group 0, with what that means for its row. As an operation it goes on if this call is cancelled."""
        operation = Operation(
            id=self.deps.topology.rng.uuid(), kind=OperationKind.REMOVE, hosts=(host,), reason=reason, fence=fence
        )
        await self.deps.operations.run_here(operation)
