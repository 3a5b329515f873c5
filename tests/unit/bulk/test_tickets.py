"""Tickets: what they open, and everything they do not."""

import uuid

import pytest

from ebla.bulk.tickets import KEY_BYTES, TICKET_BYTES_MAX, Grant, GrantKind, TicketRefused, TicketSigner
from ebla.model.identity import SessionId, TableId

TICKETS = TicketSigner(bytes(range(KEY_BYTES)))
GRANT = Grant(
    kind=GrantKind.PUT,
    session=SessionId(uuid.UUID(int=1)),
    subject=uuid.UUID(int=2),
    table=TableId(uuid.UUID(int=3)),
    expires_ms=10_000,
)


def test_a_ticket_says_what_was_signed() -> None:
    assert TICKETS.read(TICKETS.sign(GRANT), GrantKind.PUT, 9_999) == GRANT


def test_a_ticket_is_over_when_its_time_is() -> None:
    with pytest.raises(TicketRefused, match="expired 2 s ago"):
        TICKETS.read(TICKETS.sign(GRANT), GrantKind.PUT, 12_500)
    with pytest.raises(TicketRefused, match="expired"):
        TICKETS.read(TICKETS.sign(GRANT), GrantKind.PUT, 10_000)


def test_a_ticket_is_for_one_thing() -> None:
    with pytest.raises(TicketRefused, match="for a put, not for a get"):
        TICKETS.read(TICKETS.sign(GRANT), GrantKind.GET, 0)


def test_a_ticket_of_another_node_opens_nothing() -> None:
    with pytest.raises(TicketRefused, match="not signed by this node"):
        TicketSigner(bytes(KEY_BYTES)).read(TICKETS.sign(GRANT), GrantKind.PUT, 0)


def test_a_ticket_of_which_any_bit_was_changed_opens_nothing() -> None:
    ticket = TICKETS.sign(GRANT)
    for place in range(len(ticket) * 8):
        forged = bytearray(ticket)
        forged[place // 8] ^= 1 << place % 8
        with pytest.raises(TicketRefused):
            TICKETS.read(bytes(forged), GrantKind.PUT, 0)


@pytest.mark.parametrize("ticket", [b"", b"x", TICKETS.sign(GRANT)[:33], b"\x01" + bytes(TICKET_BYTES_MAX)])
def test_what_is_no_ticket_is_told_so(ticket: bytes) -> None:
    with pytest.raises(TicketRefused, match="not a ticket"):
        TICKETS.read(ticket, GrantKind.PUT, 0)
