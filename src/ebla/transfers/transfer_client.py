"""The verbs of a transfer as its runner asks them: each bounded, and asked again where that is safe and may help.

All of them may be asked twice: a session and a transfer have ids that whoever asks has drawn, and the same question
finds what the first one left. A checkpoint is taken anew, and one whose answer was lost goes with its session.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ebla.aio.bounded_gather import gather_bounded
from ebla.aio.retry import Backoff, retry
from ebla.model.errors import EblaError
from ebla.model.identity import CheckpointId, HostId, JobId, Replica, SessionId, TableId, TopologyVersion, TransferId
from ebla.model.token import TokenRange
from ebla.model.transfers import MoveResult, StagingKind, TransferSource, TransferTarget
from ebla.observe.event_reporter import EventReporter, discard_event
from ebla.ports.rng import Rng
from ebla.transfers.cluster_client import ClusterClient
from ebla.wire.transfer_messages import (
    AdoptAnswer,
    AdoptRequest,
    BulkStatusRequest,
    CloseSessionAnswer,
    CloseSessionRequest,
    OpenSessionAnswer,
    OpenSessionRequest,
    OpenStagingRequest,
    ReleaseRequest,
    SealRequest,
    StagingStatus,
    TakeCheckpointRequest,
)
from ebla.wire.verbs import (
    ADOPT,
    BULK_STATUS,
    CLOSE_SESSION,
    OPEN_SESSION,
    OPEN_STAGING,
    RELEASE,
    SEAL,
    TAKE_CHECKPOINT,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCallLimits:
    open_session_ms: int = 15_000
    close_session_ms: int = 60_000
    """A close waits until every node is done with the session, or is held to be down."""
    staging_ms: int = 30_000
    checkpoint_ms: int = 120_000
    seal_ms: int = 3_900_000
    """Longer than a layer of staged rows may be built."""
    adopt_ms: int = 300_000
    release_ms: int = 10_000
    status_ms: int = 2_000
    patience_ms: int = 60_000
    """How long a verb that fails in passing is asked again: a process of a node is back by then, or will not be."""
    pause_first_ms: int = 200
    pause_max_ms: int = 3_000
    at_once_max: int = 16
    """Questions of one job under way at the same time: those that wait for the same disk share its syncs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferScope:
    """What a run's questions have in common."""

    job: JobId
    session: SessionId
    table: TableId
    version: TopologyVersion


class TransferClient:
    def __init__(
        self, doors: ClusterClient, rng: Rng, limits: TransferCallLimits, report: EventReporter = discard_event
    ) -> None:
        self._doors = doors
        self._rng = rng
        self._limits = limits
        self._report = report
        self._backoff = Backoff(first_s=limits.pause_first_ms / 1000, max_s=limits.pause_max_ms / 1000)

    # ---- sessions

    async def open_session(
        self, scope: TransferScope, life_ms: int, known_version: TopologyVersion
    ) -> OpenSessionAnswer:
        request = OpenSessionRequest(
            session=scope.session, table=scope.table, job=scope.job, life_ms=life_ms, known_version=known_version
        )
        return await self._retry(lambda: self._doors.control(OPEN_SESSION, request, self._limits.open_session_ms))

    async def close_session(self, session: SessionId) -> CloseSessionAnswer:
        """Tries until it is closed: nothing may go on before. Whoever gives up waiting cancels."""
        request = CloseSessionRequest(session)
        reported = ""

        def report(error: EblaError) -> None:
            nonlocal reported
            if error.message != reported:  # once, not every few seconds
                reported = error.message
                self._report("session.not_closed", {"session": str(session), "cause": str(error)})

        return await retry(
            lambda: self._doors.control(CLOSE_SESSION, request, self._limits.close_session_ms),
            self._backoff,
            timeout_s=None,
            rng=self._rng,
            is_retryable=lambda _: True,
            on_error=report,
        )

    # ---- the target's side

    async def open_staging(
        self,
        scope: TransferScope,
        place: Replica,
        kind: StagingKind,
        part: TokenRange,
        again: tuple[TransferTarget, int] | None = None,
    ) -> TransferTarget:
        """`again`: one that is open, and what is to come, so that a disk without room says so now."""
        transfer, size_bytes = (TransferId(self._rng.uuid()), 0) if again is None else (again[0].transfer, again[1])
        request = OpenStagingRequest(
            session=scope.session,
            transfer=transfer,
            table=scope.table,
            shard=place.shard,
            range=part,
            version=scope.version,
            kind=kind,
            size_bytes=size_bytes,
        )
        answer = await self._retry(lambda: self._doors.bulk(place.host, OPEN_STAGING, request, self._limits.staging_ms))
        return answer.target

    async def seal(self, target: TransferTarget, attempt: MoveResult, layers: tuple[TokenRange, ...]) -> int:
        """`layers`: of files, what is to be taken of each layer of the source."""
        request = SealRequest(
            session=target.session,
            transfer=target.transfer,
            attempt=attempt.attempt,
            files=attempt.files,
            layers=layers,
        )
        answer = await self._retry(lambda: self._doors.bulk(target.host, SEAL, request, self._limits.seal_ms))
        return answer.size_bytes

    async def adopt(self, scope: TransferScope, target: TransferTarget) -> AdoptAnswer:
        """No fence is named: what is brought is older than the session, and so is whatever could still overtake it."""
        request = AdoptRequest(
            session=target.session,
            transfer=target.transfer,
            table=scope.table,
            range=target.range,
            fence=TopologyVersion(0),
        )
        place = Replica(target.host, target.shard)
        return await self._retry(lambda: self._doors.shard(place, ADOPT, request, self._limits.adopt_ms))

    async def stagings(self, host: HostId, session: SessionId) -> tuple[StagingStatus, ...]:
        """For progress only: what cannot be asked now is not known now."""
        try:
            answer = await self._doors.bulk(host, BULK_STATUS, BulkStatusRequest(session), self._limits.status_ms)
        except EblaError:
            return ()
        return answer.stagings

    # ---- the source's side

    async def take_checkpoint(
        self, scope: TransferScope, host: HostId, part: TokenRange, shard: Replica | None
    ) -> TransferSource:
        number = None if shard is None else shard.shard
        request = TakeCheckpointRequest(
            session=scope.session, table=scope.table, range=part, version=scope.version, shard=number
        )
        answer = await self._retry(lambda: self._doors.bulk(host, TAKE_CHECKPOINT, request, self._limits.checkpoint_ms))
        return answer.source

    # ---- both

    async def release(
        self, session: SessionId, sources: Sequence[TransferSource], targets: Sequence[TransferTarget]
    ) -> None:
        """Room that comes back early. What cannot be released now is swept once the session is closed."""
        checkpoints: dict[HostId, list[CheckpointId]] = {}
        transfers: dict[HostId, list[TransferId]] = {}
        for source in sources:
            checkpoints.setdefault(source.host, []).append(source.checkpoint)
        for target in targets:
            transfers.setdefault(target.host, []).append(target.transfer)

        async def one(host: HostId) -> None:
            request = ReleaseRequest(session, tuple(checkpoints.get(host, ())), tuple(transfers.get(host, ())))
            try:
                await self._doors.bulk(host, RELEASE, request, self._limits.release_ms)
            except EblaError:
                pass

        await self.all([partial(one, host) for host in dict.fromkeys([*checkpoints, *transfers])])

    async def all(self, steps: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Some at once, the results in their order. The first error ends the others and is raised by itself."""
        return await gather_bounded(steps, self._limits.at_once_max)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        limits = self._limits
        return await retry(call, self._backoff, timeout_s=limits.patience_ms / 1000, rng=self._rng)
