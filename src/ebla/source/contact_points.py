"""A CQL client with failover: it tries the contact points in turn until one of them answers.

Every call of `wire/table_calls.py` is idempotent and may be sent to another node, whatever its outcome was. A statement
may only where the caller says that it is idempotent, or where the error says that nothing happened.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

import msgspec

from ebla.model.consistency import ConsistencyLevel
from ebla.model.errors import (
    BadSyntax,
    DeadlineExceeded,
    EblaError,
    InternalError,
    InvalidRequest,
    Outcome,
    Refused,
    Stale,
    Unreachable,
)
from ebla.model.identity import Address
from ebla.source.cql_client import BoundStatement, CqlConnection, CqlRows, CqlSecurity, PageRequest, connect
from ebla.wire.errors import error_from_frame
from ebla.wire.frames import encode
from ebla.wire.table_calls import CallAnswer, CallRequest, TableCall

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")

CQL_PORT = 9042
ROUNDS_MAX = 3
"""How often each contact point is tried."""
PAUSE_S = 0.5
"""Before the second round, and twice as long before the third."""

_answers = msgspec.msgpack.Decoder(CallAnswer)


@dataclass(frozen=True, slots=True)
class ContactPoints:
    """Plain data: Spark sends it to other processes."""

    addresses: tuple[Address, ...]
    security: CqlSecurity = field(default_factory=CqlSecurity)
    connect_s: float = 5.0

    def __post_init__(self) -> None:
        assert self.addresses


def parse_contacts(text: str) -> tuple[Address, ...]:
    """`host`, `host:port`, `[v6]:port`, several of them with commas between. Raises `InvalidRequest`."""
    found = tuple(_parse_contact(part.strip()) for part in text.split(",") if part.strip())
    if not found:
        raise InvalidRequest("`contact` names no address", advice="such as 10.0.0.1:9042,10.0.0.2:9042")
    return found


def _parse_contact(text: str) -> Address:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise InvalidRequest(f"{port!r} in the contact {text!r} is no port", advice="such as 10.0.0.1:9042")
    if not host:
        raise InvalidRequest(f"the contact {text!r} has no host", advice="such as 10.0.0.1:9042")
    return Address(host, int(port or CQL_PORT))


class CqlClient:
    """Connects on first use, and stays with the node that answered last. For one thread."""

    def __init__(self, settings: ContactPoints) -> None:
        self._settings = settings
        self._place = 0
        self._connection: CqlConnection | None = None

    def __enter__(self) -> "CqlClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Twice is no error; the next call connects again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(self, call: TableCall[Q, A], request: Q, timeout_s: float) -> A:
        """Raises what the node raised. The timeout is for all nodes together."""
        body = encode(request)

        def ask(connection: CqlConnection, left_s: float) -> A:
            # The node's deadline is a little earlier than ours, so that its own error arrives.
            whole = encode(CallRequest(max(1, int(left_s * 900)), body))
            statement = BoundStatement(f"CALL ebla.{call.name}(?)", (whole,))
            try:
                found = connection.query(statement, ConsistencyLevel.ONE, left_s, None)
            except BadSyntax as error:
                raise Refused(
                    f"the node does not know `CALL ebla.{call.name}`: {error}", advice="it runs an older release"
                ) from None
            return _decode(call, found)

        return self._with_failover(ask, timeout_s, is_idempotent=True)

    def query(
        self,
        statement: BoundStatement,
        timeout_s: float,
        *,
        level: ConsistencyLevel = ConsistencyLevel.ONE,
        is_idempotent: bool,
        page: PageRequest | None = None,
    ) -> CqlRows:
        """`is_idempotent`: it may be sent again although it may have been applied."""
        return self._with_failover(
            lambda connection, left_s: connection.query(statement, level, left_s, page),
            timeout_s,
            is_idempotent=is_idempotent,
        )

    def batch(
        self, statements: Sequence[BoundStatement], level: ConsistencyLevel, timeout_s: float, timestamp_us: int
    ) -> None:
        """Idempotent: it has a timestamp of its own."""
        self._with_failover(
            lambda connection, left_s: connection.batch(statements, level, left_s, timestamp_us),
            timeout_s,
            is_idempotent=True,
        )

    # ---- failover

    def _with_failover(self, ask: Callable[[CqlConnection, float], T], timeout_s: float, *, is_idempotent: bool) -> T:
        deadline = time.monotonic() + timeout_s
        count = len(self._settings.addresses)
        failures: dict[Address, EblaError] = {}
        for turn in range(ROUNDS_MAX * count):
            if turn and turn % count == 0:
                time.sleep(min(PAUSE_S * 2 ** (turn // count - 1), max(0.0, deadline - time.monotonic())))
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            address = self._settings.addresses[self._place]
            # A node that hangs must not use up the time of the others.
            share_s = left_s if turn == ROUNDS_MAX * count - 1 else left_s / 2
            try:
                return ask(self._connected(address, left_s), share_s)
            except EblaError as error:
                if not error.is_transient and not isinstance(error, Stale):
                    raise
                failures[address] = error
                if error.outcome is Outcome.UNKNOWN and not is_idempotent:
                    raise
                self.close()
                self._place = (self._place + 1) % count
        raise all_nodes_failed(failures, timeout_s)

    def _connected(self, address: Address, left_s: float) -> CqlConnection:
        if self._connection is None or not self._connection.is_open:
            self._connection = connect(address, self._settings.security, min(self._settings.connect_s, left_s))
        return self._connection


def all_nodes_failed(failures: dict[Address, EblaError], timeout_s: float) -> EblaError:
    """One error for all nodes that were tried, each with its address."""
    if not failures:
        return DeadlineExceeded(f"no node was tried: {timeout_s:g} s were over before")
    causes = "; ".join(
        error.message if str(address) in error.message else f"{address}: {error.message}"
        for address, error in failures.items()
    )
    if all(isinstance(error, Unreachable) for error in failures.values()):
        return Unreachable(
            f"no node answers ({causes})",
            advice="check that the cluster is up (`ebla status`), that `contact` names CQL addresses of its nodes, and "
            "that this machine may connect to them",
        )
    last = next(error for error in reversed(failures.values()) if not isinstance(error, Unreachable))
    if len(failures) == 1:
        return last
    return type(last)(f"no node could answer ({causes})", advice=last.advice)


def _decode(call: TableCall[Q, A], found: CqlRows) -> A:
    if len(found.rows) != 1 or len(found.rows[0]) != 1:
        raise InternalError(f"ebla.{call.name} answered {len(found.rows)} rows instead of one value")
    try:
        answer = _answers.decode(found.rows[0][0] or b"")
        if answer.failure is not None:
            raise error_from_frame(answer.failure)
        return msgspec.msgpack.decode(answer.answer, type=call.answer)
    except msgspec.MsgspecError as error:
        raise InternalError(
            f"ebla.{call.name} sent an answer that this release does not understand: {error}",
            advice="the job and the nodes should run the same release",
        ) from None
