"""Tickets: signed by this node's bulk process, they say what their holder may do, and until when. Pure.

A task has no certificate of the cluster; a ticket is its permission. It names one checkpoint to read or one transfer to
write, and opens nothing else. The session is checked besides: a ticket cannot be revoked, a session can be closed. A
ticket to read a table has no session: until it expires its holder reads the table, from the checkpoint that is kept for
the read or from a new one.
"""

import enum
import hashlib
import hmac
import uuid

import msgspec

from ebla.model.errors import Refused
from ebla.model.identity import SessionId, TableId

TICKET_FORMAT = b"\x01"
KEY_BYTES = 32
TICKET_BYTES_MAX = 1 << 18
_HEAD_BYTES = len(TICKET_FORMAT) + hashlib.sha256().digest_size


class TicketRefused(Refused):
    """The ticket opens nothing here; a retry with the same one is useless."""


class GrantKind(enum.StrEnum):
    GET = "get"
    PUT = "put"
    READ = "read"


class Grant(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    kind: GrantKind
    session: SessionId | None
    """None: of a read of a table."""
    subject: uuid.UUID
    """The checkpoint to read, the transfer to write, or the read of the table."""
    table: TableId
    expires_ms: int
    """Wall time."""
    incarnations: bytes = b""
    """Of a read: the replicas it was issued for (`SnapshotCoverage.incarnations`)."""

    @property
    def of_session(self) -> SessionId:
        """Of a ticket that has one."""
        assert self.session is not None
        return self.session


def for_run(grant: Grant, run: str) -> Grant:
    """The same permission for one run of the job: it has a read, and so a snapshot, of its own. Spark keeps one plan
    for a DataFrame; a later run would else see the table as it was at the first."""
    return msgspec.structs.replace(grant, subject=uuid.uuid5(grant.subject, run)) if run else grant


def is_read_ticket(ticket: bytes) -> bool:
    """What the ticket claims, unverified: only to choose how it is verified."""
    try:
        return msgspec.msgpack.decode(ticket[_HEAD_BYTES:], type=Grant).kind is GrantKind.READ
    except msgspec.MsgspecError:
        return False


class TicketSigner:
    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        self._key = key

    def sign(self, grant: Grant) -> bytes:
        assert (grant.session is None) is (grant.kind is GrantKind.READ)
        body = msgspec.msgpack.encode(grant)
        assert _HEAD_BYTES + len(body) <= TICKET_BYTES_MAX
        return TICKET_FORMAT + self._mac(body) + body

    def read(self, ticket: bytes, kind: GrantKind, now_ms: int) -> Grant:
        """Raises `TicketRefused`."""
        if not _HEAD_BYTES < len(ticket) <= TICKET_BYTES_MAX or not ticket.startswith(TICKET_FORMAT):
            raise TicketRefused("this is not a ticket of a bulk process", advice="request one from the node")
        mac, body = ticket[len(TICKET_FORMAT) : _HEAD_BYTES], ticket[_HEAD_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body)):
            raise TicketRefused("the ticket is not signed by this node", advice="use it at the node that issued it")
        grant = msgspec.msgpack.decode(body, type=Grant)
        if now_ms >= grant.expires_ms:
            raise TicketRefused(
                f"the ticket expired {(now_ms - grant.expires_ms) // 1000} s ago", advice="start the job again"
            )
        if grant.kind is not kind:
            raise TicketRefused(f"the ticket is for a {grant.kind}, not for a {kind}")
        return grant

    def _mac(self, body: bytes) -> bytes:
        # The format is signed too, or a ticket could be read as one of another format.
        return hmac.digest(self._key, TICKET_FORMAT + body, "sha256")
