"""Distinct types for distinct identities, so that one cannot be passed for another."""

import uuid
from typing import NewType

import msgspec

HostId = NewType("HostId", uuid.UUID)
"""A member of the cluster. An id that left never comes back."""

ClusterId = NewType("ClusterId", uuid.UUID)
"""One cluster. Two clusters may share a name, never an id."""

HistoryId = NewType("HistoryId", uuid.UUID)
"""One history of group 0; a failover without quorum starts a new one."""

TableId = NewType("TableId", uuid.UUID)
SessionId = NewType("SessionId", uuid.UUID)
RequestId = NewType("RequestId", uuid.UUID)
JobId = NewType("JobId", uuid.UUID)
"""A job of the pipeline. It outlives sessions: a rerun has another session."""
TransferId = NewType("TransferId", uuid.UUID)
"""One movement of data into one stack. There may be several attempts; one of them wins."""
AttemptId = NewType("AttemptId", uuid.UUID)
"""Drawn at random by the task, so that no two attempts write to one folder, even after restarts."""
CheckpointId = NewType("CheckpointId", uuid.UUID)

StoreId = NewType("StoreId", uuid.UUID)
"""The store of one shard, drawn when the store is created. A shard that lost its store has none with this id."""
StartId = NewType("StartId", uuid.UUID)
"""One run of a node's control process, drawn at random when it starts."""

ShardNumber = NewType("ShardNumber", int)
TopologyVersion = NewType("TopologyVersion", int)


class Address(msgspec.Struct, frozen=True, order=True):
    """Where a process listens: a host and port, or the path of a Unix socket (port 0)."""

    host: str
    port: int = 0

    def __str__(self) -> str:
        return self.host if self.is_local_socket else f"{self.host}:{self.port}"

    @property
    def is_local_socket(self) -> bool:
        return self.host.startswith("/")


class Replica(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The location of one replica: a shard of a node."""

    host: HostId
    shard: ShardNumber
