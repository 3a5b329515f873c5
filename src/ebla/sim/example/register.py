"""A replicated register: one primary at a time, chosen by an epoch that a majority has promised to follow.

Pure: messages and ticks in, effects out. The shell stores `Effects.held` durably *before* it sends `Effects.sends`.

Why it is right. A change is answered once a majority stored it. A new primary first gets promises from a majority,
each with what that replica holds; the two majorities share a replica, so the newest state among the promises contains
every answered change, and whoever promised takes nothing from an older primary any more. A read is answered only after
a majority confirmed, after the read had come, that it follows this epoch: nobody else can have answered a newer change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from ebla.ports.rng import Rng
from ebla.sim.checkers.models import RegisterCall, RegisterRead, result_of
from ebla.sim.example.messages import (
    ConfirmEpoch,
    EpochConfirmed,
    EpochOutdated,
    EpochPromise,
    LastAnswer,
    NotPrimary,
    PrepareEpoch,
    RegisterAnswer,
    RegisterMessage,
    RegisterRequest,
    RegisterState,
    StateStored,
    StoreState,
)

HEARTBEAT_MS = 100
ELECTION_MS_LOW, ELECTION_MS_HIGH = 400, 900


@dataclass(slots=True)
class BackupRole:
    primary: str = ""


@dataclass(slots=True)
class CandidateRole:
    epoch: int
    promises: dict[str, RegisterState]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingClient:
    """A client that gets `result` once `sequence` is stored by a majority and, for a read, `round` is confirmed."""

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

    # -- the doors -----------------------------------------------------------------------------------------------

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
                pass  # meant for clients
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
        """The next epoch that is ours alone: no two replicas ever ask for the same one."""
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
        """Takes over the newest state and stores it again in the new epoch: only then may anything be answered."""
        self.role = PrimaryRole(
            epoch=epoch, stored=dict.fromkeys(self._peers, 0), confirmed=dict.fromkeys(self._peers, 0)
        )
        self._hold(msgspec.structs.replace(newest, promised=epoch, epoch=epoch, sequence=newest.sequence + 1))
        self._spread(self.role)

    def _follow(self, sender: str, epoch: int, now_ms: int) -> bool:
        """Whether the sender is the primary to follow. One of an older epoch is told so."""
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
        """The value may come from a change that is not answered yet, so its sequence is waited for as well."""
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
        # A frame that comes late carries an older state of the same epoch: what is held contains it.
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
        """Frames get lost: whoever has not stored the newest state gets it again, and everybody a sign of life."""
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
