"""Drives `join_steps.py`: each node submits itself, and the leader of group 0 admits those that wait.

Every commit has a condition on the state it was decided by. So a former leader, a command sent twice or a crash between
two commands changes nothing: the next check decides from what is there.
"""

import asyncio

import msgspec

from ebla.control.group0.node import RunningGroup0
from ebla.control.leadership.activity_tasks import RunningHandle
from ebla.control.leadership.leadership_node import LeadershipNode
from ebla.control.topology.deps import TopologyDeps
from ebla.control.topology.join_steps import (
    LeaderAction,
    LeaderIdle,
    LeaderView,
    leader_step,
    own_commands,
    own_problem,
    own_refusal,
)
from ebla.leadership.activities import ActivityEnded, ActivityRefused, ActivitySpec
from ebla.leadership.quorum import MAJORITY
from ebla.model.errors import EblaError
from ebla.model.errors import Refused as NodeRefused
from ebla.topology.commands import Command
from ebla.topology.request_queue import LivenessView
from ebla.topology.snapshot import Node, Snapshot
from ebla.wire.feed_messages import NodeBarrierRequest

CHECK_MS = 500
COMMIT_MS = 5_000
BARRIER_MS = 5_000


class JoinDriver:
    def __init__(self, own: Node, deps: TopologyDeps, leadership: LeadershipNode) -> None:
        self._own = msgspec.structs.replace(own, supported_features=tuple(sorted(own.supported_features)))
        self._deps = deps
        self._leadership = leadership
        self._last_reason = ""
        self.waits_for = ""
        """For people: why this node is not in the ring."""

    async def run(self) -> None:
        """Until cancelled. Raises `Rejection` where this node must not run as it is."""
        await self._deps.group0.confirmed.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._submit())
            tasks.create_task(self._lead())

    # ---- this node

    async def _submit(self) -> None:
        while True:
            group0 = self._deps.group0
            if group0.is_running and group0.running.store.index > 0:
                await self._submit_once()
            await asyncio.sleep(CHECK_MS / 1000)

    async def _submit_once(self) -> None:
        """Decides by what a quorum knows: by its own state alone, a node that was paused could overwrite newer data."""
        snapshot = self._deps.topology.snapshot
        self.waits_for = own_problem(snapshot, self._own)
        if not self._commands_for_own(snapshot) and not own_refusal(snapshot, self._own):
            return
        try:
            snapshot = await self._deps.read(COMMIT_MS)
        except EblaError as error:
            self.waits_for = error.message
            return
        refusal = own_refusal(snapshot, self._own)
        if refusal:
            raise NodeRefused(refusal, advice="start it again with options that fit")
        commands = self._commands_for_own(snapshot)
        if commands:
            refused = await self._commit(snapshot, commands)
            self.waits_for = refused or own_problem(self._deps.topology.snapshot, self._own)

    def _commands_for_own(self, snapshot: Snapshot) -> tuple[Command, ...]:
        return own_commands(snapshot, self._own, self._deps.now_ms(), self._deps.rng)

    # ---- the leader

    async def _lead(self) -> None:
        """While this node leads, as the activity `coordinator`: it ends with the quorum, the lease and the term."""
        while True:
            if self._deps.group0.leads:
                spec = ActivitySpec(
                    name="admit", domain="coordinator", quorum=MAJORITY, wait_ms=self._leadership.settings().period_ms
                )
                try:
                    await self._leadership.activities.run(spec, self._admit)
                except (ActivityRefused, ActivityEnded) as error:
                    self._report_wait(error.message)
            await asyncio.sleep(CHECK_MS / 1000)

    async def _admit(self, handle: RunningHandle) -> None:
        """Until cancelled. First the quorum, then what a quorum of group 0 knows, then the decisions."""
        while True:
            try:
                await self._deps.read(COMMIT_MS)
                break
            except EblaError as error:
                self._report_wait(error.message)
                await asyncio.sleep(CHECK_MS / 1000)
        while True:
            if not await self._lead_once(self._deps.group0.running, handle):
                await asyncio.sleep(CHECK_MS / 1000)

    async def _lead_once(self, running: RunningGroup0, handle: RunningHandle) -> bool:
        """Whether a step was made, so that the next one can follow at once."""
        snapshot = self._deps.topology.snapshot
        step = leader_step(snapshot, self._view(running), self._deps.rng)
        match step:
            case LeaderAction():
                return await self._do(snapshot, step, handle)
            case LeaderIdle(why=why):
                self._report_wait(why)
                return False

    async def _do(self, snapshot: Snapshot, action: LeaderAction, handle: RunningHandle) -> bool:
        """Whether it is done. The commit has a condition on the state that the action was decided by, barrier
        included."""
        if action.barrier is not None:
            request = NodeBarrierRequest(action.barrier.version)
            handle.check_effect()
            outcome = await self._deps.barriers.request(action.barrier.hosts, request, BARRIER_MS)
            if outcome.down or outcome.lacking:
                missing = (*outcome.down, *(host for host, _ in outcome.lacking))
                self._report_wait(f"the barrier of version {request.version} waits for {', '.join(map(str, missing))}")
                return False
        handle.check_effect()
        return not await self._commit(snapshot, action.commands)

    def _view(self, running: RunningGroup0) -> LeaderView:
        members = running.store.members.values()
        down = self._deps.down()
        alive = frozenset(member.host for member in members if member.host not in down)
        gone = frozenset(member.host for member in members if not member.present)
        return LeaderView(LivenessView(alive, self._deps.now_ms()), gone)

    # ---- both

    async def _commit(self, snapshot: Snapshot, commands: tuple[Command, ...]) -> str:
        """Why it is not committed, or not known to be; empty if it is."""
        names = ", ".join(type(command).__name__ for command in commands)
        try:
            done = await self._deps.commit(snapshot, commands, COMMIT_MS)
        except EblaError as error:
            self._report_wait(f"{names}: {error.message}")
            return error.message
        if done is None:
            return "another change was committed first"
        self._deps.report("topology.committed", {"commands": names, "version": done.version})
        return ""

    def _report_wait(self, why: str) -> None:
        if why != self._last_reason:  # once, not at every check
            self._last_reason = why
            self._deps.report("topology.waits", {"reason": why})
