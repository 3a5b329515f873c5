"""The promises of write jobs, compared with what they did. The ledger of rows checks whether their rows are visible.

INV-BULKW-1  a job acknowledged as done is on enough replicas of every row's tablet at its level, all adopted by
             one version
INV-BULKW-2  all runs of one job have one timestamp
INV-BULKW-3  a job that is done is never written again, by any other run of it
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel as Level
from ebla.model.consistency import is_met
from ebla.model.identity import Replica, SessionId, TableId, TopologyVersion
from ebla.replica.replica_server import ReplicaServer
from ebla.topology.routing.sharder import sharder_for
from ebla.wire.transfer_messages import AdoptAnswer, AdoptRequest

DATACENTER = "dc1"
JobBatch = tuple[str, int | None]
"""A job, or one batch of a stream."""


@dataclass(slots=True, kw_only=True)
class WriteJobsLedger:
    fail: Callable[[str], None]
    now: Callable[[], float]
    views: dict[TopologyVersion, View] = field(default_factory=dict)
    done: int = 0
    given_up: int = 0
    lacking: int = 0
    """Copies for replicas that were added later."""
    _timestamps: dict[JobBatch, int] = field(default_factory=dict)
    _jobs: dict[SessionId, JobBatch] = field(default_factory=dict)
    _done: dict[JobBatch, tuple[SessionId, float]] = field(default_factory=dict)
    _adopted: dict[SessionId, dict[TopologyVersion, dict[Replica, None]]] = field(default_factory=dict)

    def saw(self, view: View) -> None:
        self.views.setdefault(view.version, view)

    def opened(self, batch: JobBatch, session: SessionId, timestamp_us: int) -> None:
        """A run got its plan."""
        self._jobs[session] = batch
        known = self._timestamps.setdefault(batch, timestamp_us)
        if known != timestamp_us:
            self.fail(f"INV-BULKW-2: {batch} has timestamp {timestamp_us}, and had {known}")
        self._check_open(batch)

    def begins(self, batch: JobBatch, session: SessionId) -> None:
        """Before a run sends its first request."""
        self._jobs[session] = batch

    def is_done(self, batch: JobBatch) -> bool:
        return batch in self._done

    def _check_open(self, batch: JobBatch) -> None:
        if batch in self._done:
            self.fail(f"INV-BULKW-3: {batch} is opened again though it is done")

    def adopts(self, own: Replica, session: SessionId, began: float) -> None:
        """A shard is about to adopt something of the session. `began`: when it was requested."""
        batch = self._jobs.get(session)
        ended = None if batch is None else self._done.get(batch)
        if ended is not None and ended[0] != session and began > ended[1]:
            self.fail(f"INV-BULKW-3: {own} adopts data of {batch} under {session}, but {ended[0]} has completed it")

    def adopted(self, own: Replica, request: AdoptRequest) -> None:
        assert request.version is not None, "what a job brings is a write"
        by_version = self._adopted.setdefault(request.session, {})
        by_version.setdefault(request.version, {})[own] = None

    def acknowledged(self, session: SessionId, table: TableId, level: Level, tokens: Iterable[int]) -> bool:
        """A commit succeeded. Returns whether this run completed the job: a run that commits after another one
        completed it gets the same answer, and its own rows need not be there."""
        batch = self._jobs[session]
        if batch in self._done and self._done[batch][0] != session:
            return False
        for token in sorted(set(tokens)):
            if not any(
                self._is_enough(version, replicas, (table, token, level))
                for version, replicas in self._adopted.get(session, {}).items()
            ):
                found = {version: len(them) for version, them in self._adopted.get(session, {}).items()}
                self.fail(f"INV-BULKW-1: {batch} is done at {level.name}, and token {token} was adopted by {found}")
                return False
        self.done += batch not in self._done
        self._done.setdefault(batch, (session, self.now()))
        return True

    def _is_enough(
        self, version: TopologyVersion, adopted: dict[Replica, None], what: tuple[TableId, int, Level]
    ) -> bool:
        table, token, level = what
        view = self.views[version]
        writing = view.sets.of(table).writing(token)
        hosts = [
            each.host
            for each in (*writing.natural, *writing.pending)
            if all(
                Replica(each.host, shard) in adopted
                for shard in sharder_for(view.snapshot, table, each.host).shards_for_writes(token)
            )
        ]
        needed = view.sets.required_write_replies(table, token, level, DATACENTER)
        return is_met(needed, [view.snapshot.node(host).datacenter for host in hosts])


def watch_adoptions(ledger: WriteJobsLedger, own: Replica, replica: ReplicaServer) -> None:
    """Taps on one incarnation of a shard."""
    adoptions = replica.adoptions
    adopt = adoptions.adopt

    async def watched(request: AdoptRequest, deadline_ms: int) -> AdoptAnswer:
        began = ledger.now()
        answer = await adopt(request, deadline_ms)
        if request.version is not None:
            ledger.adopts(own, request.session, began)
            ledger.adopted(own, request)
        return answer

    adoptions.adopt = watched  # type: ignore[method-assign]  # records, and does the same
