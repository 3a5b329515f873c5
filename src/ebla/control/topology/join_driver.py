"""The shell of `join_steps.py`: each node submits itself, and the leader of group 0 lets in those that wait.

Everything is committed under a condition on the state it was decided by, so that a leader that is none any more, a
command sent twice or a crash between two of them changes nothing: whoever looks next decides from what is there.
"""

import asyncio
from dataclasses import dataclass

import msgspec

from ebla.control.group0.node import Group0Node, RunningGroup0
from ebla.control.topology.barrier_client import BarrierClient, Down
from ebla.control.topology.join_steps import (
    LeaderAction,
    LeaderIdle,
    LeaderView,
    leader_step,
    own_commands,
    own_problem,
    own_refusal,
)
from ebla.control.topology.schema_service import TopologySource
from ebla.group0.commands import Done
from ebla.model.errors import EblaError
from ebla.model.errors import Refused as NodeRefused
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.topology.apply.command import Rejection
from ebla.topology.apply.command_batch import apply_commands
from ebla.topology.commands import Command
from ebla.topology.request_queue import LivenessView
from ebla.topology.snapshot import Node, Snapshot
from ebla.wire.feed_messages import NodeBarrierRequest

LOOK_MS = 500
COMMIT_MS = 5_000
BARRIER_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinDeps:
    group0: Group0Node
    topology: TopologySource
    barriers: BarrierClient
    down: Down
    rng: Rng
    clock: Clock
    report: EventReporter


class JoinDriver:
    def __init__(self, own: Node, parts: JoinDeps) -> None:
        self._own = msgspec.structs.replace(own, supported_features=tuple(sorted(own.supported_features)))
        self._parts = parts
        self._told = ""
        self.waits_for = ""
        """For people: why this node is not in the ring."""

    async def run(self) -> None:
        """Until cancelled. Raises `Rejection` where this node must not run as it is."""
        await self._parts.group0.started.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._submit())
            tasks.create_task(self._lead())

    # ---- for ourselves

    async def _submit(self) -> None:
        while True:
            group0 = self._parts.group0
            if group0.is_running and group0.running.store.index > 0:
                await self._submit_once(group0.running)
            await asyncio.sleep(LOOK_MS / 1000)

    async def _submit_once(self, running: RunningGroup0) -> None:
        """Decided by what a quorum knows: by its own state alone a node that slept could refresh what is newer."""
        snapshot = self._parts.topology.snapshot
        self.waits_for = own_problem(snapshot, self._own)
        if not self._commands_for_own(snapshot) and not own_refusal(snapshot, self._own):
            return
        try:
            await running.calls.read_barrier(COMMIT_MS)
        except EblaError as error:
            self.waits_for = error.message
            return
        snapshot = self._parts.topology.snapshot
        refusal = own_refusal(snapshot, self._own)
        if refusal:
            raise NodeRefused(refusal, advice="start it again with options that fit")
        commands = self._commands_for_own(snapshot)
        if commands:
            refused = await self._commit(snapshot, commands)
            self.waits_for = refused or own_problem(self._parts.topology.snapshot, self._own)

    def _commands_for_own(self, snapshot: Snapshot) -> tuple[Command, ...]:
        return own_commands(snapshot, self._own, self._now_ms(), self._parts.rng)

    # ---- for the others

    async def _lead(self) -> None:
        while True:
            group0 = self._parts.group0
            leads = group0.is_running and group0.running.raft.is_leader
            if not leads or not await self._lead_once(group0.running):
                await asyncio.sleep(LOOK_MS / 1000)

    async def _lead_once(self, running: RunningGroup0) -> bool:
        """Whether a step was made, and the next one can be looked for at once."""
        snapshot = self._parts.topology.snapshot
        step = leader_step(snapshot, self._around(running), self._parts.rng)
        match step:
            case LeaderAction():
                return await self._do(snapshot, step)
            case LeaderIdle(why=why):
                self._tell(why)
                return False

    async def _do(self, snapshot: Snapshot, deed: LeaderAction) -> bool:
        """Whether it is done. The commit depends on the state that the deed was decided by, barrier included."""
        if deed.barrier is not None:
            request = NodeBarrierRequest(deed.barrier.version)
            asked = await self._parts.barriers.ask(deed.barrier.hosts, request, BARRIER_MS)
            if asked.down or asked.lacking:
                missing = (*asked.down, *(host for host, _ in asked.lacking))
                self._tell(f"the barrier of version {request.version} waits for {', '.join(map(str, missing))}")
                return False
        return not await self._commit(snapshot, deed.commands)

    def _around(self, running: RunningGroup0) -> LeaderView:
        members = running.store.members.values()
        down = self._parts.down()
        alive = frozenset(member.host for member in members if member.host not in down)
        gone = frozenset(member.host for member in members if not member.present)
        return LeaderView(LivenessView(alive, self._now_ms()), gone)

    # ---- both

    async def _commit(self, snapshot: Snapshot, commands: tuple[Command, ...]) -> str:
        """Why it is not committed, or not known to be; empty where it is."""
        names = ", ".join(type(command).__name__ for command in commands)
        applied = apply_commands(snapshot, commands)
        if isinstance(applied, Rejection):
            self._tell(f"{names} is refused: {applied.reason}")
            return applied.reason
        try:
            answer = await self._parts.group0.running.calls.transact(applied.transaction, COMMIT_MS)
        except EblaError as error:
            return error.message
        if not isinstance(answer, Done):
            return "something else was committed first"
        self._parts.report("topology.committed", {"commands": names, "version": applied.snapshot.version})
        return ""

    def _tell(self, why: str) -> None:
        if why != self._told:  # once, not twice a second
            self._told = why
            self._parts.report("topology.waits", {"reason": why})

    def _now_ms(self) -> int:
        return self._parts.clock.wall_us() // 1000
