"""Clients with a CQL driver that write to tables, once or repeatedly while a transfer runs."""

import itertools
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ConsistencyLevel, ExecutionProfile
from cassandra.policies import ConstantReconnectionPolicy, RoundRobinPolicy, TokenAwarePolicy
from tests.cluster.background import Background
from tests.pipeline.clusters import Replicas, Written
from tests.pipeline.served_nodes import PATIENCE_S

PAUSE_S = 0.02
"""Pause between two writes of a load, so that it does not use the whole machine."""

__all__ = ["ConsistencyLevel", "DriverClient", "DriverLoad"]


class DriverClient:
    """A session of the driver, as a context manager."""

    def __init__(self, addresses: Sequence[str], level: int = ConsistencyLevel.ALL) -> None:
        policy = TokenAwarePolicy(RoundRobinPolicy())
        profile = ExecutionProfile(policy, consistency_level=level, request_timeout=20)
        self._cluster: Any = Cluster(
            list(addresses),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            protocol_version=4,
            reconnection_policy=ConstantReconnectionPolicy(0.2, None),
        )

    def __enter__(self) -> "DriverClient":
        self._session: Any = self._cluster.connect()
        self._prepared: dict[str, Any] = {}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._cluster.shutdown()

    def write(self, table: str, rows: Mapping[int, Written]) -> None:
        """Repeats each until acknowledged: with the same timestamp a write may be repeated."""
        for key, (timestamp_us, value) in rows.items():
            if value is None:
                self._acknowledged(f"DELETE FROM {table} USING TIMESTAMP ? WHERE k = ?", (timestamp_us, key))
            else:
                text = f"INSERT INTO {table} (k, v) VALUES (?, ?) USING TIMESTAMP ?"
                self._acknowledged(text, (key, value, timestamp_us))

    def _acknowledged(self, text: str, values: tuple[object, ...]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if text not in self._prepared:
                    self._prepared[text] = self._session.prepare(text)
                self._session.execute(self._prepared[text], values)
            except Exception:  # the driver's errors have no common base class
                if time.monotonic() > deadline:
                    raise
            else:
                return


class DriverLoad(Background):
    """Overwrites its own keys on all replicas of some tables until the context ends. Then every replica has the last
    value of each."""

    KEYS = 40
    _loads = itertools.count(1)

    def __init__(self, addresses: Sequence[str], *tables: Replicas) -> None:
        super().__init__(2 * PATIENCE_S)
        self._addresses = addresses
        self._tables = tables
        first = next(self._loads) * 1_000_000
        self._keys = range(first, first + self.KEYS)
        self.acknowledged = 0

    def work(self) -> None:
        with DriverClient(self._addresses) as client:
            for number, key in enumerate(itertools.cycle(self._keys)):
                if self.stopped.wait(PAUSE_S):
                    return
                rows: dict[int, Written] = {key: (1_000_000 + number, number.to_bytes(8))}
                for table in self._tables:
                    client.write(table.name, rows)
                    for replica in range(len(table.expected)):
                        table.note(replica, rows)
                self.acknowledged += 1
