"""The promises of node operations, checked on every committed state and by samples of the coordinator.

- INV-NODE-1 to INV-NODE-19 on every version, INV-NODE-22 and INV-ATOM-4 whenever no atomic change is unfinished;
- INV-NODE-23: an excluded node that gains ranges without their rows is marked as incomplete;
- INV-NODE-21: no node runs a Raft server before it is accepted;
- an operation that makes no progress has a cause, which the coordinator names;
- a request is cancelled only after its objection has stood for the whole grace period, or because its node goes;
- a queue with a request that can run moves;
- the outcome of a request agrees with the rows (`request_outcomes.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ebla.control.coordinator.coordinator import Coordinator
from ebla.group0.change_feed import ChangeSet
from ebla.group0.store import Group0Store
from ebla.model.identity import HostId, RequestId, SessionId, TopologyVersion
from ebla.model.token import merge_ranges, subtract_ranges
from ebla.model.transaction import MEMBERS_PREFIX
from ebla.node.control_process import ControlProcess
from ebla.settings_store.registry import TopologySettings
from ebla.sim.checkers.operations import early_server_problem, settled_problem
from ebla.sim.checkers.request_outcomes import is_ended_by_other, outcome_problem
from ebla.sim.world import World
from ebla.topology.invariants import violations, violations_between
from ebla.topology.request_queue import LivenessView, QueueChoice, StartRequest, choose_request, pending_requests
from ebla.topology.routing.replica_sets import ReplicaSets, VnodeReplicas
from ebla.topology.snapshot import NodeRequest, Snapshot
from ebla.topology.states import RequestOutcome, SessionKind, TransitionState

SAMPLE_S = 0.2
SILENT_S = 12.0
"""An operation may work for this long without progress that can be seen, and without a cause: an addition to group 0
takes several round trips under faults."""
STREAM_S = 60.0
"""The same while the engine runs tasks: it gives up on those that hang."""
UNKNOWN_SERVER_S = 5.0
"""For how long the newest store of a live node may lag behind what is committed."""
SLACK_S = 1.5
"""Between the coordinator's look at the queue and the samples."""
CANCELLED = "cancelled: "


class TopologyLedger:
    def __init__(self, world: World) -> None:
        self._world = world
        self._first: dict[TopologyVersion, Snapshot] = {}
        self._seen: dict[int, Snapshot] = {}
        """By the index of group 0."""
        self._pairs: dict[tuple[int, int], None] = {}
        self._settled: dict[int, None] = {}
        self._opened: dict[SessionId, TopologyVersion] = {}
        self.states: dict[TransitionState, int] = {}
        """How often each was entered."""
        self.ended: dict[RequestId, NodeRequest] = {}
        self.ended_by_others: dict[RequestId, None] = {}
        """Because their nodes went."""

    # ---- every committed state

    def watch_state(self, name: str, process: ControlProcess) -> None:
        """Before the process is attached to group 0."""
        topology = process.topology
        rebuild, attach = topology._rebuild, topology.attach  # noqa: SLF001  # where each snapshot is made
        before: list[int] = []

        def watched(make: object) -> None:
            rebuild(make)  # type: ignore[arg-type]  # passed on
            revision = topology._revision  # noqa: SLF001  # of what was made
            store = topology._store  # noqa: SLF001  # of what was made
            if revision is None or store is None:
                return
            self._note(name, revision.index, topology._snapshot)  # noqa: SLF001  # what was made
            if before:
                self._follow(name, before.pop(), revision.index)
            before.append(revision.index)
            self._settle(name, store, topology._snapshot)  # noqa: SLF001  # what was made

        def watched_attach(machine: object) -> None:
            attach(machine)  # type: ignore[arg-type]  # passed on

            def follow(step: ChangeSet) -> None:
                if any(change.key.startswith(MEMBERS_PREFIX) for change in step.changes) and topology.store is not None:
                    self._settle(name, topology.store, topology.snapshot)

            machine.watch(follow)  # type: ignore[attr-defined]  # passed on

        topology._rebuild = watched  # type: ignore[method-assign]  # noqa: SLF001  # records, and does the same
        topology.attach = watched_attach  # type: ignore[method-assign]  # records, and does the same

    def _note(self, name: str, index: int, snapshot: Snapshot) -> None:
        if index in self._seen or not snapshot.nodes:
            return
        self._seen[index] = snapshot
        self._first.setdefault(snapshot.version, snapshot)
        for session in snapshot.sessions.values():
            if session.kind is SessionKind.REQUEST:
                self._opened.setdefault(session.id, snapshot.version)
        for request in snapshot.node_requests.values():
            if not request.is_open:
                self._note_end(request, snapshot)
        found = violations(snapshot)
        if found:
            self._world.fail(f"{name}: version {snapshot.version}: {found[0]}")

    def _note_end(self, request: NodeRequest, snapshot: Snapshot) -> None:
        if request.id not in self.ended and snapshot.version - request.end_version <= 1:
            problem = outcome_problem(request, snapshot)
            if problem is not None:
                self._world.fail(f"version {snapshot.version}: {problem}")
            if is_ended_by_other(request, snapshot):
                self.ended_by_others[request.id] = None
        known = self.ended.setdefault(request.id, request)
        if known != request:
            self._world.fail(f"request {request.id} ended as {known.outcome} ({known.error}), and then: {request}")
        if request.outcome is RequestOutcome.FAILED and not request.error:
            self._world.fail(f"request {request.id} failed without a reason")

    def _follow(self, name: str, before: int, after: int) -> None:
        if (before, after) in self._pairs or before not in self._seen or after not in self._seen or before >= after:
            return
        self._pairs[(before, after)] = None
        one, two = self._seen[before], self._seen[after]
        found = (*map(str, violations_between(one, two)), *gains_without_rows(one, two))
        if found:
            self._world.fail(f"{name}: versions {one.version} to {two.version}: {found[0]}")
        if two.transition is not None and two.transition is not one.transition:
            self.states[two.transition] = self.states.get(two.transition, 0) + 1

    def _settle(self, name: str, store: Group0Store, snapshot: Snapshot) -> None:
        if store.index not in self._settled:
            self._settled[store.index] = None
            problem = settled_problem(store, snapshot)
            if problem is not None:
                self._world.fail(f"{name}: version {snapshot.version}: {problem}")

    # ---- for other checkers

    def snapshot_of(self, version: TopologyVersion) -> Snapshot | None:
        """The first one of this version."""
        return self._first.get(version)

    def closed_by(self, snapshot: Snapshot) -> list[SessionId]:
        """The sessions of requests that were open before this version and are not listed in it."""
        return [
            session
            for session, opened in self._opened.items()
            if opened < snapshot.version and session not in snapshot.sessions
        ]


def gains_without_rows(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """INV-NODE-23: an excluded node that becomes a replica without having been a pending one lacks rows, and must be
    marked."""
    sets_before, sets_after = ReplicaSets(before), ReplicaSets(after)
    for host in after.excluded_hosts:
        if host not in before.excluded_hosts or after.nodes[host].is_incomplete:
            continue
        for table in after.tables:
            if table in before.tables and not after.on_tablets(table):
                known = sets_before.of(table)
                assert isinstance(known, VnodeReplicas), "a keyspace stays on vnodes"
                natural = merge_ranges(tuple(sets_after.of(table).ranges_of(host)))
                if subtract_ranges(natural, known.held_ranges_of(host).ranges):
                    yield f"INV-NODE-23: {host} is excluded, gains ranges of {table}, and counts as complete"


@dataclass(slots=True)
class _Progress:
    shown: object
    since: float


@dataclass(slots=True, kw_only=True)
class CoordinatorSamples:
    """What the coordinator decides and says, seen from outside every `SAMPLE_S`."""

    world: World
    ledger: TopologyLedger
    settings: TopologySettings
    causes: dict[str, int] = field(default_factory=dict)
    """How often each kind was seen."""
    _progress: dict[RequestId, _Progress] = field(default_factory=dict)
    _could_run: dict[RequestId, float] = field(default_factory=dict)
    """When each pending request was last seen to be viable, or something ran."""
    _runnable: _Progress | None = None
    """The request that could start now, of which coordinator, and since when."""
    _judged: dict[RequestId, None] = field(default_factory=dict)
    _early_since: float | None = None

    def sample(self, host: HostId | None, process: ControlProcess | None, down: tuple[HostId, ...]) -> None:
        """Of the node that coordinates; None: nobody does. `down` are the hosts that it sees as down."""
        if process is None or process.coordinator is None or process.coordinator.current is None:
            self._progress.clear()
            self._runnable = None
            return
        snapshot = process.topology.snapshot
        self._check_causes(host, process.coordinator, snapshot, process)
        choice = self._note_queue(snapshot, down)
        waits = process.coordinator.causes.of(None) is not None
        self._check_queue(host, choice.request.id if isinstance(choice, StartRequest) and not waits else None)

    def _check_causes(
        self, host: HostId | None, coordinator: Coordinator, snapshot: Snapshot, process: ControlProcess
    ) -> None:
        now = self.world.now()
        opened = [one for one in snapshot.node_requests.values() if one.is_open]
        result = process.streams.result
        for request in opened:
            found = coordinator.causes.of(request.id) or coordinator.causes.of(None)
            cause = "" if found is None else found.text
            moved = None if result is None else (result.progress, result.is_done)
            shown = (host, request.outcome, request.error, snapshot.state.transition_since, moved, cause)
            known = self._progress.get(request.id)
            if known is None or known.shown != shown:
                known = self._progress[request.id] = _Progress(shown, now)
            if cause:
                kind = cause.split(":")[0][:24]
                self.causes[kind] = self.causes.get(kind, 0) + 1
            elif now - known.since > (SILENT_S if result is None else STREAM_S):
                self.world.fail(f"request {request.id} makes no progress since {known.since:.0f} s and names no cause")
        for gone in [one for one in self._progress if all(one != each.id for each in opened)]:
            del self._progress[gone]

    def _note_queue(self, snapshot: Snapshot, down: tuple[HostId, ...]) -> QueueChoice | None:
        now = self.world.now()
        alive = frozenset(host for host in snapshot.nodes if host not in down)
        is_idle = snapshot.node_in_transition() is None and snapshot.transition is None
        choice = choose_request(snapshot, LivenessView(alive, 0)) if is_idle else None
        blocked = is_idle and choice is not None and not isinstance(choice, StartRequest)
        for request in pending_requests(snapshot):
            if not blocked or request.id not in self._could_run:
                self._could_run[request.id] = now
        return choice

    def _check_queue(self, host: HostId | None, runnable: RequestId | None) -> None:
        """None: no request can start, or the coordinator waits for something else and says so."""
        now, shown = self.world.now(), (host, runnable)
        if runnable is None:
            self._runnable = None
        elif self._runnable is None or self._runnable.shown != shown:
            self._runnable = _Progress(shown, now)
        elif now - self._runnable.since > SILENT_S:
            self.world.fail(f"request {runnable} can run since {self._runnable.since:.0f} s, and is not started")

    def check_cancellations(self) -> None:
        """Of requests that have ended since the last sample."""
        for request in self.ledger.ended.values():
            if request.id in self._judged:
                continue
            self._judged[request.id] = None
            viable_at = self._could_run.get(request.id, self.world.now())
            stood_s = self.world.now() - viable_at
            is_early = stood_s + SLACK_S < self.settings.request_grace_ms / 1000
            if request.id in self.ledger.ended_by_others:
                continue
            if request.error.startswith(CANCELLED) and is_early:
                self.world.fail(
                    f"request {request.id} was cancelled, and could run {stood_s:.1f} s ago: {request.error}"
                )

    def check_servers(self, store: Group0Store | None, running: list[HostId]) -> None:
        """INV-NODE-21."""
        problem = None if store is None else early_server_problem(store, running)
        if problem is None:
            self._early_since = None
        elif self._early_since is None:
            self._early_since = self.world.now()
        elif self.world.now() - self._early_since > UNKNOWN_SERVER_S:
            self.world.fail(problem)
