"""A replicated register: a small but real subject. It tests the simulator itself and is the example to follow.

One primary at a time, chosen by an epoch that a majority has promised to follow. `RegisterReplica` is pure: messages
and ticks in, effects out. The shell makes `RegisterEffects.held` durable *before* it sends `RegisterEffects.sends`.

Why it is right. A change is answered once a majority has stored it. A new primary first gets promises from a majority,
each with the state that replica holds. The two majorities share a replica, so the newest state among the promises
contains every answered change, and a replica that promised accepts nothing from an older primary. A read is answered
only after a majority has confirmed, after the read arrived, that it follows this epoch: no other primary can have
answered a newer change.
"""

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import assert_never

import msgspec

from ebla.model.errors import Unreachable
from ebla.model.identity import Address
from ebla.ports.disk import Disk, File
from ebla.ports.environment import Environment
from ebla.ports.rng import Rng
from ebla.ports.transport import Link
from ebla.sim.checkers.models import RegisterCall, RegisterRead, result_of

HEARTBEAT_MS = 100
ELECTION_MS_LOW, ELECTION_MS_HIGH = 400, 900
TICK_S = 0.05
CONNECT_S = 1.0
RECONNECT_S = 0.1
INBOX_MAX = 1000
FOLDER = "/data/register"
JOURNAL = f"{FOLDER}/journal"
FRESH = f"{FOLDER}/journal.new"
RECORDS_MAX = 40

# ---- messages, and what is kept on disk


class LastAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The last change of a client and its result: a repeated request gets the same answer again."""

    client: str
    number: int
    result: int


class RegisterState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The durable state of a replica. Small enough to be sent and stored whole."""

    promised: int = 0
    """The newest epoch that this replica follows. It takes part in nothing older."""
    epoch: int = 0
    """The epoch of the primary that sent this state."""
    sequence: int = 0
    value: int = 0
    answers: tuple[LastAnswer, ...] = ()

    @property
    def age(self) -> tuple[int, int]:
        return (self.epoch, self.sequence)


class RegisterRequest(msgspec.Struct, frozen=True, tag="ask", array_like=True):
    client: str
    number: int
    call: RegisterCall


class RegisterAnswer(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    client: str
    number: int
    result: int


class NotPrimary(msgspec.Struct, frozen=True, tag="elsewhere", array_like=True):
    """The receiver is not the primary. `primary` is a guess, or empty."""

    client: str
    number: int
    primary: str


class PrepareEpoch(msgspec.Struct, frozen=True, tag="prepare", array_like=True):
    """Requests a promise to follow `epoch` and nothing older."""

    epoch: int


class EpochPromise(msgspec.Struct, frozen=True, tag="promise", array_like=True):
    epoch: int
    held: RegisterState


class StoreState(msgspec.Struct, frozen=True, tag="store", array_like=True):
    epoch: int
    held: RegisterState


class StateStored(msgspec.Struct, frozen=True, tag="stored", array_like=True):
    epoch: int
    sequence: int


class ConfirmEpoch(msgspec.Struct, frozen=True, tag="confirm", array_like=True):
    """Do you still follow `epoch`? Also the primary's heartbeat."""

    epoch: int
    round: int


class EpochConfirmed(msgspec.Struct, frozen=True, tag="confirmed", array_like=True):
    epoch: int
    round: int


class EpochOutdated(msgspec.Struct, frozen=True, tag="outdated", array_like=True):
    promised: int


RegisterMessage = (
    RegisterRequest
    | RegisterAnswer
    | NotPrimary
    | PrepareEpoch
    | EpochPromise
    | StoreState
    | StateStored
    | ConfirmEpoch
    | EpochConfirmed
    | EpochOutdated
)


class RegisterEnvelope(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    message: RegisterMessage


# ---- the pure core


@dataclass(slots=True)
class BackupRole:
    primary: str = ""


@dataclass(slots=True)
class CandidateRole:
    epoch: int
    promises: dict[str, RegisterState]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingClient:
    """A client that gets `result` once a majority has stored `sequence` and, for a read, confirmed `round`."""

    client: str
    number: int
    result: int
    sequence: int
    round: int


@dataclass(slots=True, kw_only=True)
class PrimaryRole:
    epoch: int
    stored: dict[str, int]
    confirmed: dict[str, int]
    round: int = 0
    waiting: list[WaitingClient] = field(default_factory=list)
    heartbeat_at_ms: int = 0


@dataclass(slots=True)
class RegisterEffects:
    held: RegisterState | None = None
    sends: list[tuple[str, RegisterMessage]] = field(default_factory=list)


class RegisterReplica:
    def __init__(self, name: str, names: Sequence[str], held: RegisterState, rng: Rng) -> None:
        self.name = name
        self.held = held
        self.role: BackupRole | CandidateRole | PrimaryRole = BackupRole()
        self._names = tuple(names)
        self._peers = tuple(peer for peer in names if peer != name)
        self._majority = len(names) // 2 + 1
        self._rng = rng
        self._newest_epoch = held.promised
        self._election_at_ms: int | None = None
        self._effects = RegisterEffects()

    # -- input and output ------------------------------------------------------------

    def receive(self, sender: str, message: RegisterMessage, now_ms: int) -> None:
        match message:
            case RegisterRequest():
                self._ask(message)
            case PrepareEpoch(epoch):
                self._prepare(sender, epoch, now_ms)
            case EpochPromise(epoch, held):
                self._promise(sender, epoch, held)
            case StoreState(epoch, held):
                self._store(sender, epoch, held, now_ms)
            case StateStored(epoch, sequence):
                if isinstance(self.role, PrimaryRole) and self.role.epoch == epoch:
                    self.role.stored[sender] = max(self.role.stored[sender], sequence)
                    self._answer_waiting(self.role)
            case ConfirmEpoch(epoch, number):
                if self._follow(sender, epoch, now_ms):
                    self._send(sender, EpochConfirmed(epoch, number))
            case EpochConfirmed(epoch, number):
                if isinstance(self.role, PrimaryRole) and self.role.epoch == epoch:
                    self.role.confirmed[sender] = max(self.role.confirmed[sender], number)
                    self._answer_waiting(self.role)
            case EpochOutdated(promised):
                self._outdated(promised)
            case RegisterAnswer() | NotPrimary():
                pass  # for clients
            case _:
                assert_never(message)

    def tick(self, now_ms: int) -> None:
        if isinstance(self.role, PrimaryRole):
            if now_ms >= self.role.heartbeat_at_ms:
                self.role.heartbeat_at_ms = now_ms + HEARTBEAT_MS
                self._repeat(self.role)
        elif self._election_at_ms is None:
            self._put_off_election(now_ms)
        elif now_ms >= self._election_at_ms:
            self._put_off_election(now_ms)
            self._campaign()

    def take(self) -> RegisterEffects:
        effects, self._effects = self._effects, RegisterEffects()
        return effects

    # -- choosing a primary ----------------------------------------------------------------------------------------

    def _campaign(self) -> None:
        """Takes the next epoch that belongs to this replica: no two replicas ever propose the same one."""
        count = len(self._names)
        epoch = (self._newest_epoch // count + 1) * count + self._names.index(self.name)
        self._hold(msgspec.structs.replace(self.held, promised=epoch))
        self.role = CandidateRole(epoch, {self.name: self.held})
        for peer in self._peers:
            self._send(peer, PrepareEpoch(epoch))

    def _prepare(self, sender: str, epoch: int, now_ms: int) -> None:
        if epoch < self.held.promised:
            self._send(sender, EpochOutdated(self.held.promised))
            return
        if epoch > self.held.promised:
            self._hold(msgspec.structs.replace(self.held, promised=epoch))
            self.role = BackupRole()
        self._put_off_election(now_ms)
        self._send(sender, EpochPromise(epoch, self.held))

    def _promise(self, sender: str, epoch: int, held: RegisterState) -> None:
        if not isinstance(self.role, CandidateRole) or self.role.epoch != epoch:
            return
        self.role.promises[sender] = held
        if len(self.role.promises) >= self._majority:
            self._lead(epoch, self._newest(list(self.role.promises.values())))

    def _newest(self, promises: Sequence[RegisterState]) -> RegisterState:
        return max(promises, key=lambda held: held.age)

    def _lead(self, epoch: int, newest: RegisterState) -> None:
        """Adopts the newest state and stores it again in the new epoch. Nothing may be answered before that."""
        self.role = PrimaryRole(
            epoch=epoch, stored=dict.fromkeys(self._peers, 0), confirmed=dict.fromkeys(self._peers, 0)
        )
        self._hold(msgspec.structs.replace(newest, promised=epoch, epoch=epoch, sequence=newest.sequence + 1))
        self._spread(self.role)

    def _follow(self, sender: str, epoch: int, now_ms: int) -> bool:
        """Whether the sender is the primary to follow. A primary of an older epoch gets `EpochOutdated`."""
        if epoch < self.held.promised:
            self._send(sender, EpochOutdated(self.held.promised))
            return False
        if epoch > self.held.promised:
            self._hold(msgspec.structs.replace(self.held, promised=epoch))
        self._newest_epoch = max(self._newest_epoch, epoch)
        self.role = BackupRole(primary=sender)
        self._put_off_election(now_ms)
        return True

    def _outdated(self, promised: int) -> None:
        self._newest_epoch = max(self._newest_epoch, promised)
        if promised > self.held.promised and not isinstance(self.role, BackupRole):
            self.role = BackupRole()

    # -- changes and reads -------------------------------------------------------------------------------------------

    def _ask(self, ask: RegisterRequest) -> None:
        if not isinstance(self.role, PrimaryRole):
            primary = self.role.primary if isinstance(self.role, BackupRole) else ""
            self._send(ask.client, NotPrimary(ask.client, ask.number, primary))
        elif isinstance(ask.call, RegisterRead):
            self._read(self.role, ask)
        else:
            self._change(self.role, ask, ask.call)

    def _read(self, primary: PrimaryRole, ask: RegisterRequest) -> None:
        """The value may come from a change that is not answered yet, so the read waits for its sequence too."""
        primary.round += 1
        self._wait(primary, ask, self.held.value, primary.round)
        for peer in self._peers:
            self._send(peer, ConfirmEpoch(primary.epoch, primary.round))

    def _change(self, primary: PrimaryRole, ask: RegisterRequest, call: RegisterCall) -> None:
        before = self._answered(ask.client)
        if before is not None and ask.number <= before.number:
            if ask.number == before.number:
                self._wait(primary, ask, before.result, 0)
            return
        result = result_of(call, self.held.value)
        others = tuple(answered for answered in self.held.answers if answered.client != ask.client)
        changed = RegisterState(
            promised=self.held.promised,
            epoch=primary.epoch,
            sequence=self.held.sequence + 1,
            value=result,
            answers=(*others, LastAnswer(ask.client, ask.number, result)),
        )
        self._hold(changed)
        self._wait(primary, ask, result, 0)
        self._spread(primary)

    def _answered(self, client: str) -> LastAnswer | None:
        return next((answered for answered in self.held.answers if answered.client == client), None)

    def _store(self, sender: str, epoch: int, held: RegisterState, now_ms: int) -> None:
        if not self._follow(sender, epoch, now_ms):
            return
        if held.age > self.held.age:
            self._hold(msgspec.structs.replace(held, promised=epoch))
        # A frame that is late carries an older state of the same epoch, which the held state contains.
        self._send(sender, StateStored(epoch, self.held.sequence))

    def _wait(self, primary: PrimaryRole, ask: RegisterRequest, result: int, number: int) -> None:
        again = [waiting for waiting in primary.waiting if waiting.client != ask.client]
        primary.waiting = [
            *again,
            WaitingClient(
                client=ask.client, number=ask.number, result=result, sequence=self.held.sequence, round=number
            ),
        ]

    def _answer_waiting(self, primary: PrimaryRole) -> None:
        stored = self._reached([self.held.sequence, *primary.stored.values()])
        confirmed = self._reached([primary.round, *primary.confirmed.values()])
        still: list[WaitingClient] = []
        for waiting in primary.waiting:
            if waiting.sequence <= stored and waiting.round <= confirmed:
                self._send(waiting.client, RegisterAnswer(waiting.client, waiting.number, waiting.result))
            else:
                still.append(waiting)
        primary.waiting = still

    def _reached(self, numbers: Sequence[int]) -> int:
        """The highest number that a majority has reached."""
        return sorted(numbers, reverse=True)[self._majority - 1]

    def _spread(self, primary: PrimaryRole) -> None:
        for peer in self._peers:
            self._send(peer, StoreState(primary.epoch, self.held))

    def _repeat(self, primary: PrimaryRole) -> None:
        """Frames get lost: a peer that has not stored the newest state gets it again, and every peer a heartbeat."""
        for peer in self._peers:
            if primary.stored[peer] < self.held.sequence:
                self._send(peer, StoreState(primary.epoch, self.held))
            self._send(peer, ConfirmEpoch(primary.epoch, primary.round))

    # -- effects -----------------------------------------------------------------------------------------------------

    def _hold(self, held: RegisterState) -> None:
        assert held.promised >= self.held.promised, "a promise is never taken back"
        assert held.age >= self.held.age, "what is held never gets older"
        self._newest_epoch = max(self._newest_epoch, held.promised)
        self.held = held
        self._effects.held = held

    def _send(self, target: str, message: RegisterMessage) -> None:
        self._effects.sends.append((target, message))

    def _put_off_election(self, now_ms: int) -> None:
        self._election_at_ms = now_ms + self._rng.randrange(ELECTION_MS_LOW, ELECTION_MS_HIGH)


# ---- the journal: records are appended, and the last whole one counts

_HEAD = Struct("<II")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RegisterState).decode


class RegisterStore:
    """Made by `open_register_store`. Raises `DiskFull` or `OSError` where the device refuses: then the process must
    end."""

    def __init__(self, disk: Disk, journal: File, held: RegisterState) -> None:
        self.held = held
        self._disk = disk
        self._journal = journal
        self._records = 1

    async def save(self, held: RegisterState) -> None:
        """Returns once it is durable."""
        self._journal.append(record_of(held))
        await self._journal.sync()
        self._records += 1
        self.held = held
        if self._records >= RECORDS_MAX:
            self._journal.close()
            self._journal = await rewrite(self._disk, held)
            self._records = 1


async def open_register_store(disk: Disk) -> RegisterStore:
    """Reads what the previous incarnation left, and writes it again.

    The journal is not continued, because what can be read of it need not be durable: after a failed sync, a restarted
    process finds its last record in the page cache, and a later sync would not report its loss.
    """
    disk.make_folder(FOLDER)
    await disk.sync_folder("/data")
    held = last_record(_content(disk)) or RegisterState()
    return RegisterStore(disk, await rewrite(disk, held), held)


async def rewrite(disk: Disk, held: RegisterState) -> File:
    """Replaces the journal with one that holds a single record. A crash leaves the old one or the new one."""
    if disk.exists(FRESH):
        disk.unlink(FRESH)
    fresh = disk.create(FRESH)
    fresh.append(record_of(held))
    await fresh.sync()
    fresh.close()
    disk.rename(FRESH, JOURNAL)
    await disk.sync_folder(FOLDER)
    return disk.open(JOURNAL)


def record_of(held: RegisterState) -> bytes:
    body = _encode(held)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def last_record(content: bytes) -> RegisterState | None:
    """The last whole record before the first torn one. What follows was never acknowledged: its sync did not return."""
    held: RegisterState | None = None
    offset = 0
    while offset + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, offset)
        body = content[offset + _HEAD.size : offset + _HEAD.size + length]
        if len(body) < length or zlib.crc32(body) != checksum or not body:
            break
        held = _decode(body)
        offset += _HEAD.size + length
    return held


def _content(disk: Disk) -> bytes:
    if not disk.exists(JOURNAL):
        return b""
    journal = disk.open(JOURNAL)
    content = journal.read(0, journal.size())
    journal.close()
    return content


# ---- the process: links, disk and time around the pure core

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(RegisterEnvelope).decode


@dataclass(frozen=True, slots=True)
class RegisterOptions:
    name: str
    addresses: Mapping[str, Address]


async def register_process(environment: Environment, options: RegisterOptions) -> None:
    """Runs one replica until it is cancelled, killed, or its disk fails."""
    store = await open_register_store(environment.disk)
    replica = RegisterReplica(options.name, sorted(options.addresses), store.held, environment.rng)
    process = _Process(environment, options, replica, store)
    await environment.transport.listen(options.addresses[options.name], process.accept)
    async with asyncio.TaskGroup() as tasks:
        for peer, address in sorted(options.addresses.items()):
            if peer != options.name:
                tasks.create_task(process.keep_link(peer, address))
        tasks.create_task(process.tick())
        tasks.create_task(process.work())


class _Inlet:
    """The owner of one link: passes its frames to the process."""

    def __init__(self, process: "_Process", link: Link) -> None:
        self._process = process
        self.link = link
        self.closed = asyncio.Event()

    def frame_received(self, frame: bytes) -> None:
        self._process.take_in(decode(frame), self.link)

    def link_closed(self, cause: str) -> None:  # noqa: ARG002  # the cause does not matter here
        self.closed.set()


class _Process:
    def __init__(
        self, environment: Environment, options: RegisterOptions, replica: RegisterReplica, store: RegisterStore
    ) -> None:
        self._environment = environment
        self._name = options.name
        self._replica = replica
        self._store = store
        self._links: dict[str, Link] = {}
        self._inbox: list[RegisterEnvelope] = []
        self._woken = asyncio.Event()

    def accept(self, link: Link) -> _Inlet:
        return _Inlet(self, link)

    def take_in(self, envelope: RegisterEnvelope, link: Link) -> None:
        if isinstance(envelope.message, RegisterRequest):
            self._links[envelope.sender] = link  # answers go to the client's latest link
        if len(self._inbox) < INBOX_MAX:
            self._inbox.append(envelope)
        self._woken.set()

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._woken.set()

    async def work(self) -> None:
        """One step at a time: what a step decided is durable before any message leaves."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            inbox, self._inbox = self._inbox, []
            now_ms = self._environment.clock.boot_ms()
            for envelope in inbox:
                self._replica.receive(envelope.sender, envelope.message, now_ms)
            self._replica.tick(now_ms)
            await self._carry_out(self._replica.take())

    async def _carry_out(self, effects: RegisterEffects) -> None:
        if effects.held is not None:
            await self._store.save(effects.held)
        for target, message in effects.sends:
            self._send(target, message)

    def _send(self, target: str, message: RegisterMessage) -> None:
        link = self._links.get(target)
        if link is not None:
            link.send(encode(RegisterEnvelope(self._name, message)))

    async def keep_link(self, peer: str, address: Address) -> None:
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    inlet = await self._connect(address)
            except (Unreachable, TimeoutError):
                await asyncio.sleep(RECONNECT_S)
                continue
            self._links[peer] = inlet.link
            await inlet.closed.wait()

    async def _connect(self, address: Address) -> _Inlet:
        inlets: list[_Inlet] = []

        def on_open(link: Link) -> _Inlet:
            inlets.append(_Inlet(self, link))
            return inlets[0]

        await self._environment.transport.connect(address, on_open)
        return inlets[0]
