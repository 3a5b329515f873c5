"""Clients of a simulated Raft group, and an operator that changes its members and its leader meanwhile."""

import asyncio
import itertools
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
from ebla.sim.clients import ClientLoad
from ebla.sim.clusters.raft import CHANGE, RUN_COMMAND, TRANSFER, LeaderTransferCall, MembershipChangeRequest, RaftGroup
from ebla.sim.clusters.raft_state_machine import RegisterCommand
from ebla.wire.peers import Peers
from ebla.wire.verbs import EmptyAnswer, Q, Verb

ATTEMPT_MS = 800
THINK_S = 0.12
PAUSE_S = 0.05
GIVE_UP_SHARE = 0.03
"""How often a client gives up and never learns the outcome of its call."""
COUNTER = "counter"
REGISTERS = ("left", "right")


@dataclass(slots=True, kw_only=True)
class RaftLoad(ClientLoad):
    group: RaftGroup
    history: OperationHistory = field(default_factory=OperationHistory)


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
        await self._load.keep_calling(self._call_once, self._rng, THINK_S)

    async def _call_once(self) -> None:
        key, call = draw_call(self._rng)
        await self.call(key, call, self._rng.randrange(1, 5) if self._rng.random() < GIVE_UP_SHARE else None)

    async def call(self, key: str, call: RegisterCall, attempts_max: int | None = None) -> int | None:
        """The answer, or None if the client gave up."""
        self._serial += 1
        command = RegisterCommand(client=self._name, serial=self._serial, key=key, call=call)
        operation = self._load.history.invoke(self._name, call, key)
        for _ in itertools.count() if attempts_max is None else range(attempts_max):
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

    async def change(self, change: MembershipChange) -> None:
        await self._try(CHANGE, MembershipChangeRequest(change))

    async def transfer(self) -> None:
        await self._try(TRANSFER, LeaderTransferCall(self._rng.choice(self._numbers)))

    async def _try(self, verb: Verb[Q, EmptyAnswer], request: Q) -> None:
        host = self._rng.choice(sorted(self._load.group.hosts.values()))
        try:
            await self._peers.call(host, verb, request, ATTEMPT_MS)
        except EblaError:
            pass  # the state machine shows the outcome

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
