"""Checks every peer of a simulated Raft group after each of its steps, unknown to the peers.

`raft/invariants.py` has the invariants of cores and of their messages. Here they are applied to running drivers,
together with what only those have: disks, state machines, and restarts.
"""

from collections.abc import Sequence

from ebla.control.raft.driver import RaftDriver
from ebla.raft.core import RaftCore
from ebla.raft.effects import LogWrite
from ebla.raft.events import RaftEvent
from ebla.raft.invariants import RaftChecker
from ebla.raft.messages import AppendResponse, Entry, Membership, Message, PeerId
from ebla.raft.state import StepOutcome
from ebla.sim.clusters.raft_state_machine import OnApplied, RegisterContent, RegisterMachine


class RaftSafetyViolation(AssertionError):
    """Two peers, or two incarnations of one peer, contradict each other."""


class DurableLogImage:
    """The entries that the log of one peer has reported durable."""

    def __init__(self, core: RaftCore) -> None:
        log = core.state.log
        self._snapshot_index = log.snapshot.index
        self._terms = {entry.index: entry.term for entry in log.slice(log.first_index, log.last_index, 1 << 62)}

    def note(self, write: LogWrite) -> None:
        if write.snapshot is not None:
            self._snapshot_index = write.snapshot.index
            self._terms = {}
        if write.entries:
            first = write.entries[0].index
            self._terms = {index: term for index, term in self._terms.items() if index < first}
            self._terms.update((entry.index, entry.term) for entry in write.entries)

    def holds(self, index: int, term: int) -> bool:
        return index <= self._snapshot_index or self._terms.get(index) == term


class RaftSafetyChecker:
    def __init__(self) -> None:
        self.history = RaftChecker()
        self.servers: dict[PeerId, RaftDriver[RegisterContent]] = {}
        self.machines: dict[PeerId, RegisterMachine] = {}
        self.steps = 0
        self.restarts = 0
        self.snapshots_installed = 0
        self.memberships: dict[Membership, None] = {}
        self._disks: dict[PeerId, DurableLogImage] = {}
        self._states: dict[int, tuple[bytes, Membership]] = {}
        self._acknowledged: dict[PeerId, tuple[int, int]] = {}

    # ---- called by the nodes

    def opened(self, server: RaftDriver[RegisterContent], machine: RegisterMachine) -> None:
        core = server.core
        peer = core.peer
        if peer in self.servers:
            self.restarts += 1
            self.history.restarted(core)
            self._check_kept(core)
        self.servers[peer], self.machines[peer] = server, machine
        self._disks[peer] = DurableLogImage(core)
        self._watch_steps(core, machine)
        self._watch_disk(server, self._disks[peer])

    def leaves(self, message: Message) -> None:
        self.history.left(message)
        if isinstance(message, AppendResponse) and not message.rejected:
            acknowledged = (message.term, message.index)
            self._acknowledged[message.sender] = max(self._acknowledged.get(message.sender, (0, 0)), acknowledged)

    def seen(self, peer: PeerId) -> OnApplied:
        def check(content: RegisterContent, entry: Entry | None) -> None:
            if entry is None:
                self.snapshots_installed += 1
            else:
                self.history.applied(peer, (entry,))
            self.memberships[content.membership] = None
            state = (content.digest, content.membership)
            known = self._states.setdefault(content.index, state)
            if known != state:
                raise RaftSafetyViolation(
                    f"INV-RAFT-4: peer {peer} has at index {content.index} another history than its peers"
                )

        return check

    # ---- looking

    def _watch_steps(self, core: RaftCore, machine: RegisterMachine) -> None:
        step = core.step

        def watched(event: RaftEvent, now_ms: int) -> StepOutcome:
            outcome = step(event, now_ms)
            self.steps += 1
            self.history.observe(core, self._disks)
            self._check_membership(core, machine)
            return outcome

        core.step = watched  # type: ignore[method-assign]  # one core, from outside

    def _watch_disk(self, server: RaftDriver[RegisterContent], image: DurableLogImage) -> None:
        persist = server.log.persist

        async def watched(writes: Sequence[LogWrite]) -> None:
            await persist(writes)
            for write in writes:
                image.note(write)

        server.log.persist = watched  # type: ignore[method-assign]  # one log, from outside

    def _check_membership(self, core: RaftCore, machine: RegisterMachine) -> None:
        """Core and state machine derive the same membership from the same entries."""
        log = core.state.log
        if log.incoming_snapshot is not None or log.applied != machine.content.index:
            return
        if core.membership != machine.content.membership:
            raise RaftSafetyViolation(
                f"peer {core.peer} has {core.membership} at {log.applied}, its machine {machine.content.membership}"
            )

    def _check_kept(self, core: RaftCore) -> None:
        """Within its term nothing can replace an acknowledged entry."""
        term, index = self._acknowledged.get(core.peer, (0, 0))
        if core.term == term and core.last_index < index:
            raise RaftSafetyViolation(
                f"INV-RAFT-6: peer {core.peer} acknowledged {index} in term {term} and restarts at {core.last_index}"
            )
