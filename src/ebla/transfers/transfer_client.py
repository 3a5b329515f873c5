"""The steps of a transfer as calls: sessions, checkpoints, staging, the seal, adoption.

Every call is idempotent, so each is retried after a transient error: the caller draws the ids of sessions and
transfers, and a repeated call finds what the first one left. A repeated checkpoint is a new one; the one whose answer
was lost is removed with its session.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from ebla.aio.bounded_gather import gather_bounded
from ebla.aio.retry import Backoff, retry
from ebla.model.errors import EblaError, Refused, Stale, Unavailable
from ebla.model.identity import (
    AttemptId,
    CheckpointId,
    HostId,
    JobId,
    Replica,
    SessionId,
    TableId,
    TopologyVersion,
    TransferId,
)
from ebla.model.token import TokenRange
from ebla.model.transfers import StagedFile, StagingKind, TransferSource, TransferTarget
from ebla.observe.event_reporter import EventReporter, discard_event
from ebla.ports.rng import Rng
from ebla.transfers.cluster_client import ClusterClient
from ebla.transfers.deadline import Deadline
from ebla.wire.transfer_messages import (
    AdoptAnswer,
    AdoptRequest,
    BulkStatusRequest,
    CloseSessionAnswer,
    CloseSessionRequest,
    OpenSessionAnswer,
    OpenSessionRequest,
    OpenStagingAnswer,
    OpenStagingRequest,
    ReleaseRequest,
    SealAnswer,
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

NO_FENCE = TopologyVersion(0)
INCARNATIONS_MAX = 4
"""How many incarnations of one stack a job opens staging for."""

OPEN_SESSION_PATIENCE_MS = 60_000
"""A caller with a longer deadline learns after this time why the session cannot be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCallLimits:
    open_session_ms: int = 15_000
    close_session_ms: int = 60_000
    """A close waits until every node is done with the session or is considered down."""
    staging_ms: int = 30_000
    checkpoint_ms: int = 120_000
    seal_ms: int = 3_900_000
    """Longer than building a layer of staged rows may take."""
    adopt_ms: int = 300_000
    release_ms: int = 10_000
    status_ms: int = 2_000
    patience_ms: int = 60_000
    """How long a call is retried. A process that restarts is back by then. 0: the caller retries (`fan_out`)."""
    pause_first_ms: int = 200
    pause_max_ms: int = 3_000
    at_once_max: int = 16
    """Concurrent calls of one job. Calls that wait for the same disk share its syncs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferScope:
    """What all calls of a run have in common."""

    job: JobId
    session: SessionId
    table: TableId
    version: TopologyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingSpec:
    """Staging for data of `range` on its way into one stack. The same transfer id again: the same staging."""

    replica: Replica
    range: TokenRange
    kind: StagingKind
    transfer: TransferId
    size_bytes: int = 0
    """The expected size, so that a disk without room refuses at once."""


@dataclass(frozen=True, slots=True)
class SealedAttempt:
    """An attempt to be sealed, with the files that it has staged."""

    attempt: AttemptId
    files: tuple[StagedFile, ...]


class TransferClient:
    """With a `deadline` a call ends by then; without one it has the time of the limits."""

    def __init__(
        self, cluster: ClusterClient, rng: Rng, limits: TransferCallLimits, report: EventReporter = discard_event
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._limits = limits
        self._report = report
        self._backoff = Backoff(first_s=limits.pause_first_ms / 1000, max_s=limits.pause_max_ms / 1000)

    # ---- sessions

    async def open_session(
        self, scope: TransferScope, life_ms: int, known_version: TopologyVersion, deadline: Deadline | None = None
    ) -> OpenSessionAnswer:
        request = OpenSessionRequest(
            session=scope.session, table=scope.table, job=scope.job, life_ms=life_ms, known_version=known_version
        )
        patience_ms = self._limits.patience_ms if deadline is None else min(OPEN_SESSION_PATIENCE_MS, deadline.left_ms)
        opening = retry(
            lambda: self._cluster.control(OPEN_SESSION, request, self._limits.open_session_ms),
            self._backoff,
            timeout_s=patience_ms / 1000,
            rng=self._rng,
        )
        return await _within(opening, deadline, "the session of the job was not opened in time")

    async def close_session(self, session: SessionId, deadline: Deadline | None = None) -> CloseSessionAnswer:
        """After it nothing has an effect under this session. Without a deadline it retries until it is closed: nothing
        may go on before that."""
        request = CloseSessionRequest(session)
        reported = ""

        def report(error: EblaError) -> None:
            nonlocal reported
            if error.message != reported:  # once, not every few seconds
                reported = error.message
                self._report("session.not_closed", {"session": str(session), "cause": str(error)})

        closing = retry(
            lambda: self._cluster.control(CLOSE_SESSION, request, self._limits.close_session_ms),
            self._backoff,
            timeout_s=None,
            rng=self._rng,
            is_retryable=lambda _: True,
            on_error=report,
        )
        return await _within(closing, deadline, f"session {session} was not closed in time")

    # ---- the target

    def new_transfer(self) -> TransferId:
        return TransferId(self._rng.uuid())

    async def open_staging(
        self, scope: TransferScope, staging: StagingSpec, deadline: Deadline | None = None
    ) -> TransferTarget:
        return (await self._open_staging(staging, _open_request(scope, staging), deadline)).target

    async def reopen_staging(self, scope: TransferScope, staging: StagingSpec) -> OpenStagingAnswer:
        """Of a transfer that an earlier run may have brought, wholly or in part. Its id follows from what is
        transferred."""
        return await self._open_staging(
            staging, msgspec.structs.replace(_open_request(scope, staging), is_repeatable=True), None
        )

    async def _open_staging(
        self, staging: StagingSpec, request: OpenStagingRequest, deadline: Deadline | None
    ) -> OpenStagingAnswer:
        within_ms = _at_most(self._limits.staging_ms, deadline)
        return await self._retry(partial(self._cluster.bulk, staging.replica.host, OPEN_STAGING, request, within_ms))

    async def open_staging_of_incarnation(
        self,
        scope: TransferScope,
        stagings: Callable[[int], StagingSpec],
        first: int,
        deadline: Deadline | None = None,
    ) -> TransferTarget:
        """Staging belongs to one incarnation of a stack. The stack may have been replaced since the staging was first
        opened: then the node refuses the transfer id, and the id of the next number is tried."""
        for number in range(first, first + INCARNATIONS_MAX - 1):
            try:
                return await self.open_staging(scope, stagings(number), deadline)
            except Stale:
                raise
            except Refused:
                continue
        return await self.open_staging(scope, stagings(first + INCARNATIONS_MAX - 1), deadline)

    async def seal(
        self,
        target: TransferTarget,
        attempts: Sequence[SealedAttempt],
        layers: tuple[TokenRange, ...] = (),
        deadline: Deadline | None = None,
    ) -> SealAnswer:
        """Only these attempts count from now on. Of files there is one attempt, and `layers` is the range to take of
        each layer; of rows there may be several, each with one sorted run."""
        first, *others = attempts
        request = SealRequest(
            session=target.session,
            transfer=target.transfer,
            attempt=first.attempt,
            files=first.files,
            layers=layers,
            more=tuple((other.attempt, other.files[0]) for other in others),
        )
        within_ms = _at_most(self._limits.seal_ms, deadline)
        return await self._retry(partial(self._cluster.bulk, target.host, SEAL, request, within_ms))

    async def adopt(
        self, table: TableId, target: TransferTarget, version: TopologyVersion | None = None
    ) -> AdoptAnswer:
        """Makes sealed staging part of the stack. `version`: the data is a new write routed by this version, and is
        fenced like one. None: the data is a copy of what other replicas have; it is older than the session, and so is
        any write that could still overtake it, so no fence is needed."""
        request = AdoptRequest(
            session=target.session,
            transfer=target.transfer,
            table=table,
            range=target.range,
            fence=NO_FENCE,
            version=version,
        )
        replica = Replica(target.host, target.shard)
        return await self._retry(partial(self._cluster.shard, replica, ADOPT, request, self._limits.adopt_ms))

    async def stagings(self, host: HostId, session: SessionId) -> tuple[StagingStatus, ...]:
        """For progress reports only: an unreachable node reports nothing."""
        try:
            answer = await self._cluster.bulk(host, BULK_STATUS, BulkStatusRequest(session), self._limits.status_ms)
        except EblaError:
            return ()
        return answer.stagings

    # ---- the source

    async def take_checkpoint(
        self, scope: TransferScope, host: HostId, part: TokenRange, of_shard: Replica | None = None
    ) -> TransferSource:
        """Of all shards of the host, or of one."""
        request = TakeCheckpointRequest(
            session=scope.session,
            table=scope.table,
            range=part,
            version=scope.version,
            shard=None if of_shard is None else of_shard.shard,
        )
        call = partial(self._cluster.bulk, host, TAKE_CHECKPOINT, request, self._limits.checkpoint_ms)
        return (await self._retry(call)).source

    # ---- both

    async def release(
        self, session: SessionId, sources: Sequence[TransferSource], targets: Sequence[TransferTarget]
    ) -> None:
        """Frees disk space early. What cannot be released now is removed after the session is closed."""
        checkpoints: dict[HostId, list[CheckpointId]] = {}
        transfers: dict[HostId, list[TransferId]] = {}
        for source in sources:
            checkpoints.setdefault(source.host, []).append(source.checkpoint)
        for target in targets:
            transfers.setdefault(target.host, []).append(target.transfer)

        async def release_at(host: HostId) -> None:
            request = ReleaseRequest(session, tuple(checkpoints.get(host, ())), tuple(transfers.get(host, ())))
            try:
                await self._cluster.bulk(host, RELEASE, request, self._limits.release_ms)
            except EblaError:
                pass

        await self.all([partial(release_at, host) for host in dict.fromkeys([*checkpoints, *transfers])])

    async def all(self, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Runs them concurrently, within the limit, and returns the results in order. The first error cancels the
        others and is raised unwrapped."""
        return await gather_bounded(calls, self._limits.at_once_max)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(call, self._backoff, timeout_s=self._limits.patience_ms / 1000, rng=self._rng)


def _open_request(scope: TransferScope, staging: StagingSpec) -> OpenStagingRequest:
    return OpenStagingRequest(
        session=scope.session,
        transfer=staging.transfer,
        table=scope.table,
        shard=staging.replica.shard,
        range=staging.range,
        version=scope.version,
        kind=staging.kind,
        size_bytes=staging.size_bytes,
    )


def _at_most(limit_ms: int, deadline: Deadline | None) -> int:
    return limit_ms if deadline is None else deadline.at_most_ms(limit_ms)


async def _within(work: Awaitable[T], deadline: Deadline | None, message: str) -> T:
    try:
        async with asyncio.timeout(None if deadline is None else deadline.left_ms / 1000):
            return await work
    except TimeoutError:
        raise Unavailable(message, advice="try again: that is safe") from None
