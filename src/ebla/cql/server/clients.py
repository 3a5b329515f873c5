"""The clients connected to this shard, for the table system.clients."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


class ConnectionStage(enum.StrEnum):
    """The state of a connection, in the words of Cassandra."""

    ESTABLISHED = "ESTABLISHED"
    AUTHENTICATING = "AUTHENTICATING"
    READY = "READY"
    CLOSING = "CLOSING"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEndpoint:
    """The remote end of a connection, and its TLS parameters."""

    host: str
    port: int
    tls_protocol: str = ""
    """Empty without TLS."""
    tls_cipher: str = ""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedClient:
    peer: ClientEndpoint
    stage: ConnectionStage
    protocol_version: int
    user: str
    driver_name: str
    driver_version: str
    keyspace: str
    requests: int
    """Number of requests since it connected."""
    running: int


class ClientConnection(Protocol):
    def describe(self) -> ConnectedClient: ...


class ClientRegistry:
    def __init__(self) -> None:
        self._known: dict[int, ClientConnection] = {}
        self._serial = 0

    def add(self, client: ClientConnection) -> int:
        """Returns the number to remove it by."""
        self._serial += 1
        self._known[self._serial] = client
        return self._serial

    def forget(self, number: int) -> None:
        del self._known[number]

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[ConnectedClient]:
        """In the order of connection."""
        return (client.describe() for client in list(self._known.values()))
