"""What write jobs of tables promise, held against what they did. Whether rows are seen, the ledger of rows tells.

INV-BULKW-1  a job acknowledged as done is on enough replicas of every row's tablet at its level, all of them asked by
             one version
INV-BULKW-2  all runs of one job have one timestamp
INV-BULKW-3  a job that is done is never written again: not by another run of it, whatever that was doing
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
    """Copies that replicas needed which came later."""
    _timestamps: dict[JobBatch, int] = field(default_factory=dict)
    _jobs: dict[SessionId, JobBatch] = field(default_factory=dict)
    _done: dict[JobBatch, tuple[SessionId, float]] = field(default_factory=dict)
    _adopted: dict[SessionId, dict[TopologyVersion, dict[Replica, None]]] = field(default_factory=dict)

    def saw(self, view: View) -> None:
        self.views.setdefault(view.version, view)

    def opened(self, batch: JobBatch, session: SessionId, timestamp_us: int) -> None:
        """A run was given its plan."""
        self._jobs[session] = batch
        known = self._timestamps.setdefault(batch, timestamp_us)
        if known != timestamp_us:
            self.fail(f"INV-BULKW-2: {batch} has timestamp {timestamp_us}, and had {known}")
        self._told_open(batch)

    def begins(self, batch: JobBatch, session: SessionId) -> None:
        """Before a run asks for anything."""
        self._jobs[session] = batch

    def is_done(self, batch: JobBatch) -> bool:
        return batch in self._done

    def _told_open(self, batch: JobBatch) -> None:
        if batch in self._done:
            self.fail(f"INV-BULKW-3: {batch} is opened again though it is done")

    def adopts(self, own: Replica, session: SessionId, began: float) -> None:
        """A shard is about to make something of it part of a stack, as it was asked to at that time."""
        batch = self._jobs.get(session)
        ended = None if batch is None else self._done.get(batch)
        if ended is not None and ended[0] != session and began > ended[1]:
            self.fail(f"INV-BULKW-3: {own} adopts of {batch} by session {session}, and {ended[0]} has ended it")

    def adopted(self, own: Replica, request: AdoptRequest) -> None:
        assert request.version is not None, "what a job brings is a write"
        by_version = self._adopted.setdefault(request.session, {})
        by_version.setdefault(request.version, {})[own] = None

    def acknowledged(self, session: SessionId, table: TableId, level: Level, tokens: Iterable[int]) -> bool:
        """A commit was answered well. Whether it is this run that has ended the job: one that comes when another has is
        told so too, and its own rows need not be there."""
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
    """Taps on one life of a shard. They reach inside, as those of transfers do."""
    adoptions = replica._adoptions  # noqa: SLF001  # see above
    adopt = adoptions.adopt

    async def watched(request: AdoptRequest, deadline_ms: int) -> AdoptAnswer:
        began = ledger.now()
        answer = await adopt(request, deadline_ms)
        if request.version is not None:
            ledger.adopts(own, request.session, began)
            ledger.adopted(own, request)
        return answer

    adoptions.adopt = watched  # type: ignore[method-assign]  # notes, and does the same
