"""Clients of a simulated Raft group, and an operator that changes its members and its leader meanwhile."""

import asyncio
from dataclasses import dataclass, field

from ebla.model.errors import EblaError
from ebla.model.identity import HostId
from ebla.observe.event_reporter import discard_event
from ebla.ports.environment import Environment
from ebla.ports.rng import Rng
from ebla.raft.membership import LEAVE_JOINT, MemberChange, MemberChangeKind, MembershipChange, Transition
from ebla.raft.messages import PeerId
from ebla.sim.checkers.history import OperationHistory
from ebla.sim.checkers.models import RegisterAdd, RegisterCall, RegisterRead, RegisterWrite
from ebla.sim.clusters.raft import CHANGE, RUN_COMMAND, TRANSFER, LeaderTransferCall, MembershipChangeRequest, RaftGroup
from ebla.sim.clusters.raft_state_machine import RegisterCommand
from ebla.wire.peers import Peers

ATTEMPT_MS = 800
THINK_S = 0.12
PAUSE_S = 0.05
GIVE_UP_SHARE = 0.03
"""How often a client gives up and never learns the outcome of its call."""
COUNTER = "counter"
REGISTERS = ("left", "right")


@dataclass(slots=True, kw_only=True)
class RaftLoad:
    """What all clients of a run share. They begin no new call once `stopping` is set."""

    group: RaftGroup
    history: OperationHistory = field(default_factory=OperationHistory)
    stopping: bool = False
    calls_open: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def stop(self, seconds: float) -> int:
        """Lets the open calls end. Returns how many did not within `seconds`."""
        self.stopping = True
        try:
            async with asyncio.timeout(seconds):
                while self.calls_open:
                    self.idle.clear()
                    await self.idle.wait()
        except TimeoutError:
            pass
        return self.calls_open


class RaftClient:
    """One call at a time, repeated under its serial at one node after another until it is answered."""

    def __init__(self, environment: Environment, name: str, load: RaftLoad, peers: Peers) -> None:
        self._rng = environment.rng
        self._name = name
        self._load = load
        self._peers = peers
        self._serial = 0
        self._favourite: HostId | None = None

    async def run(self) -> None:
        load = self._load
        while not load.stopping:
            load.calls_open += 1
            key, call = draw_call(self._rng)
            patience = self._rng.randrange(1, 5) if self._rng.random() < GIVE_UP_SHARE else None
            await self.call(key, call, patience)
            load.calls_open -= 1
            load.idle.set()
            await asyncio.sleep(self._rng.random() * THINK_S)
        await asyncio.Event().wait()

    async def call(self, key: str, call: RegisterCall, attempts_max: int | None = None) -> int | None:
        """The answer, or None if the client gave up."""
        self._serial += 1
        command = RegisterCommand(client=self._name, serial=self._serial, key=key, call=call)
        operation = self._load.history.invoke(self._name, call, key)
        attempts = 0
        while attempts_max is None or attempts < attempts_max:
            attempts += 1
            result = await self._attempt(command)
            if result is not None:
                self._load.history.complete(operation, result)
                return result
            await asyncio.sleep(self._rng.random() * PAUSE_S)
        return None

    async def _attempt(self, command: RegisterCommand) -> int | None:
        target = self._favourite or self._rng.choice(sorted(self._load.group.hosts.values()))
        try:
            answer = await self._peers.call(target, RUN_COMMAND, command, ATTEMPT_MS)
        except EblaError:
            self._favourite = None
            return None
        self._favourite = target if self._rng.random() < 0.9 else None
        return answer.result


def draw_call(rng: Rng) -> tuple[str, RegisterCall]:
    kind = rng.randrange(0, 100)
    if kind < 30:
        return COUNTER, RegisterAdd(1)
    if kind < 45:
        return COUNTER, RegisterRead()
    register = rng.choice(REGISTERS)
    return register, RegisterWrite(rng.randrange(1, 1_000_000)) if kind < 70 else RegisterRead()


def make_peers(tasks: asyncio.TaskGroup, environment: Environment, group: RaftGroup) -> Peers:
    peers = Peers(tasks, group.context(environment, HostId(environment.rng.uuid()), discard_event))
    for peer, host in group.hosts.items():
        peers.set_address(host, group.addresses[peer])
    return peers


async def client_process(environment: Environment, name: str, load: RaftLoad) -> None:
    async with asyncio.TaskGroup() as tasks:
        await RaftClient(environment, name, load, make_peers(tasks, environment, load.group)).run()


class RaftOperator:
    """Requests changes and leader transfers blindly. The state machine ignores illegal changes."""

    def __init__(self, environment: Environment, load: RaftLoad, peers: Peers) -> None:
        self._rng = environment.rng
        self._load = load
        self._peers = peers
        self._numbers = sorted(load.group.hosts)

    async def run(self) -> None:
        while not self._load.stopping:
            await asyncio.sleep(self._rng.random() * 1.2)
            kind = self._rng.randrange(0, 100)
            if kind < 30:
                await self.transfer()
            else:
                await self.change(LEAVE_JOINT if kind < 45 else self._draw_change())
        await asyncio.Event().wait()

    async def change(self, change: MembershipChange) -> bool:
        return await self._ask_someone(MembershipChangeRequest(change))

    async def transfer(self) -> bool:
        return await self._ask_someone(LeaderTransferCall(self._rng.choice(self._numbers)))

    async def _ask_someone(self, request: MembershipChangeRequest | LeaderTransferCall) -> bool:
        host = self._rng.choice(sorted(self._load.group.hosts.values()))
        try:
            if isinstance(request, MembershipChangeRequest):
                await self._peers.call(host, CHANGE, request, ATTEMPT_MS)
            else:
                await self._peers.call(host, TRANSFER, request, ATTEMPT_MS)
        except EblaError:
            return False
        return True

    def _draw_change(self) -> MembershipChange:
        count = self._rng.choice((1, 1, 1, 2, 3))
        peers = list(self._numbers)
        self._rng.shuffle(peers)
        kinds = (
            MemberChangeKind.ADD_VOTER,
            MemberChangeKind.ADD_VOTER,
            MemberChangeKind.ADD_LEARNER,
            MemberChangeKind.REMOVE,
        )
        changes = tuple(MemberChange(self._rng.choice(kinds), peer) for peer in peers[:count])
        transition = self._rng.choice(
            (Transition.AUTO, Transition.AUTO, Transition.JOINT_IMPLICIT, Transition.JOINT_EXPLICIT)
        )
        return MembershipChange(changes, transition)


async def operator_process(environment: Environment, load: RaftLoad) -> None:
    async with asyncio.TaskGroup() as tasks:
        await RaftOperator(environment, load, make_peers(tasks, environment, load.group)).run()


def make_all_voters(peers: list[PeerId]) -> MembershipChange:
    return MembershipChange(
        tuple(MemberChange(MemberChangeKind.ADD_VOTER, peer) for peer in peers), Transition.JOINT_IMPLICIT
    )
