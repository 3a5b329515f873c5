"""A client with a CQL driver that writes and reads at QUORUM while nodes join, and counts what fails."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ConsistencyLevel, ExecutionProfile
from cassandra.policies import (
    ConstantReconnectionPolicy,
    FallthroughRetryPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
)
from tests.cluster.background import Background

PAUSE_S = 0.02
TIMEOUT_S = 20.0
NOTICED_S = 5.0
"""For how long after a kill a request may still be sent to the killed node, by the driver or by another node."""


@dataclass(frozen=True, slots=True)
class FailedRequest:
    began_s: float
    ended_s: float
    error: str


class QuorumLoad(Background):
    """Overwrites its own keys of a table (`k int`, `v blob`) until the context ends, and reads them back. The driver
    does not repeat anything, so each failure counts."""

    KEYS = 60
    FIRST_KEY = 10_000_000
    _loads = itertools.count(1)

    def __init__(self, addresses: Sequence[str], table: str) -> None:
        super().__init__(4 * TIMEOUT_S)
        self._addresses = addresses
        self._table = table
        first = self.FIRST_KEY + next(self._loads) * 1_000_000
        self._keys = range(first, first + self.KEYS)
        self._tried = dict.fromkeys(self._keys, 0)
        self._acknowledged = dict.fromkeys(self._keys, 0)
        self._kills_s: list[float] = []
        self._failed: list[FailedRequest] = []
        self.lost: list[str] = []
        self.answered = 0

    # ---- what the test says and asks

    def note_kill(self) -> None:
        """A node dies now."""
        self._kills_s.append(time.monotonic())

    @property
    def failed(self) -> list[FailedRequest]:
        """Without those that were in flight at a killed node."""
        return [one for one in self._failed if not self._was_in_flight(one)]

    @property
    def failed_in_flight(self) -> int:
        return len(self._failed) - len(self.failed)

    def check(self) -> None:
        """Nothing failed, nothing acknowledged was missing at a later read, and some requests were made."""
        assert self.answered > 0
        assert not self.failed, (
            f"{len(self.failed)} failed: {self.failed[:3]} and {self.failed[-1]}; kills {self._kills_s}"
        )
        assert self.lost == []
        if not self._kills_s:
            assert self.failed_in_flight == 0

    def _was_in_flight(self, one: FailedRequest) -> bool:
        return any(one.began_s <= at_s + NOTICED_S and at_s <= one.ended_s for at_s in self._kills_s)

    # ---- the client

    def work(self) -> None:
        profile = ExecutionProfile(
            TokenAwarePolicy(RoundRobinPolicy()),
            consistency_level=ConsistencyLevel.QUORUM,
            retry_policy=FallthroughRetryPolicy(),
            request_timeout=TIMEOUT_S,
        )
        cluster: Any = Cluster(
            list(self._addresses),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            protocol_version=4,
            reconnection_policy=ConstantReconnectionPolicy(0.2, None),
        )
        try:
            self._make_requests(cluster.connect())
        finally:
            cluster.shutdown()

    def _make_requests(self, session: Any) -> None:
        write = session.prepare(f"INSERT INTO {self._table} (k, v) VALUES (?, ?) USING TIMESTAMP ?")
        read = session.prepare(f"SELECT v FROM {self._table} WHERE k = ?")
        for number, key in enumerate(itertools.cycle(self._keys), 1):
            if self.stopped.wait(PAUSE_S):
                break
            self._tried[key] = number
            if self._execute(session, write, (key, number.to_bytes(8), number)) is not None:
                self._acknowledged[key] = number
            self._check(key, self._execute(session, read, (key,)))
        for key in self._keys:
            self._check(key, self._execute(session, read, (key,)))

    def _check(self, key: int, rows: list[Any] | None) -> None:
        if rows is None:
            return
        found = int.from_bytes(rows[0].v) if rows else 0
        if not self._acknowledged[key] <= found <= self._tried[key]:
            self.lost.append(f"key {key}: {found}, and {self._acknowledged[key]} was acknowledged")

    def _execute(self, session: Any, statement: Any, values: tuple[object, ...]) -> list[Any] | None:
        """None: it failed."""
        began_s = time.monotonic()
        try:
            found = list(session.execute(statement, values))
        except Exception as error:  # the driver's errors have no common base class
            self._failed.append(FailedRequest(began_s, time.monotonic(), repr(error)))
            return None
        self.answered += 1
        return found
