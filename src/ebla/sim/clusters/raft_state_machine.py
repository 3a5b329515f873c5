"""A small state machine for a simulated Raft group: numbers under keys, each command applied once, and the membership.

It keeps a digest of everything it applied, so that two peers at the same index can be compared, however they got there:
entry by entry, or by a snapshot.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from ebla.raft.membership import MembershipChange, MembershipRefused, apply_change
from ebla.raft.messages import Entry, EntryKind, Membership
from ebla.sim.checkers.models import RegisterCall, result_of

CHUNK_BYTES = 100
"""Small, so that even a small state is sent in several chunks."""


class RegisterCommand(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A client's call. It is applied once, however often it is proposed: `serial` grows with each call of the
    client."""

    client: str
    serial: int
    key: str
    call: RegisterCall


class LastResult(msgspec.Struct, frozen=True, array_like=True):
    """The last applied call of a client and its result."""

    serial: int
    result: int


class RegisterContent(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    index: int
    digest: bytes
    membership: Membership
    values: dict[str, int]
    given: dict[str, LastResult]


OnApplied = Callable[[RegisterContent, Entry | None], None]
"""Called after each entry, and with None after a snapshot."""

_encoder = msgspec.msgpack.Encoder(order="sorted")
_command = msgspec.msgpack.Decoder(RegisterCommand)
_content = msgspec.msgpack.Decoder(RegisterContent)

encode_command = _encoder.encode


def first_content(index: int, membership: Membership) -> RegisterContent:
    return RegisterContent(index=index, digest=b"", membership=membership, values={}, given={})


def chunks_of(content: RegisterContent) -> Iterator[bytes]:
    data = _encoder.encode(content)
    return (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))


class ContentReceiver:
    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def add(self, data: bytes) -> None:
        self._chunks.append(data)

    def finish(self) -> RegisterContent:
        return _content.decode(b"".join(self._chunks))


class RegisterMachine:
    """`control.raft.driver.StateMachine` over `RegisterContent`, and the queries of its peer."""

    def __init__(self, seen: OnApplied) -> None:
        self._seen = seen
        self.content = first_content(0, Membership())
        self._moved = asyncio.Event()
        """Replaced at each change of the content."""

    # ---- what the Raft server calls

    def apply(self, entry: Entry) -> None:
        content = self.content
        values, given = content.values, content.given
        if entry.data:
            command = _command.decode(entry.data)
            before = given.get(command.client)
            if before is None or command.serial > before.serial:
                result = result_of(command.call, values.get(command.key, 0))
                values = {**values, command.key: result}
                given = {**given, command.client: LastResult(command.serial, result)}
        self._move(entry, replace(content, values=values, given=given))

    def apply_membership(self, entry: Entry, change: MembershipChange) -> bool:
        """An illegal change is ignored, on every peer in the same way."""
        try:
            membership = apply_change(self.content.membership, change)
        except MembershipRefused:
            self._move(entry, self.content)
            return False
        self._move(entry, replace(self.content, membership=membership))
        return True

    def freeze(self) -> Iterator[bytes]:
        return chunks_of(self.content)

    def receiver(self) -> ContentReceiver:
        return ContentReceiver()

    def install(self, content: RegisterContent) -> None:
        assert content.index >= self.content.index, "a snapshot never goes back"
        self.content = content
        self._notify(None)

    def _move(self, entry: Entry, content: RegisterContent) -> None:
        assert entry.index == self.content.index + 1, f"entry {entry.index} after {self.content.index}"
        assert entry.kind is not EntryKind.COMMAND or content.membership == self.content.membership
        position = f"{entry.index} {entry.term} {entry.kind.value} ".encode()
        digest = hashlib.blake2b(self.content.digest + position + entry.data, digest_size=12).digest()
        self.content = replace(content, index=entry.index, digest=digest)
        self._notify(entry)

    def _notify(self, entry: Entry | None) -> None:
        self._seen(self.content, entry)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # ---- what the node asks

    def answer_of(self, client: str, serial: int) -> int | None:
        given = self.content.given.get(client)
        return given.result if given is not None and given.serial == serial else None

    async def wait_answer(self, client: str, serial: int) -> int:
        """Once the call is applied. The caller sets the timeout."""
        while (known := self.answer_of(client, serial)) is None:
            await self._moved.wait()
        return known

    async def wait_applied(self, index: int) -> None:
        """The caller sets the timeout."""
        while self.content.index < index:
            await self._moved.wait()
