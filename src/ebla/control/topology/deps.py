"""What every change of the topology needs, and the steps that the schema, the sessions and the joins share."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ebla.control.group0.client import BeforeOffer, error_of
from ebla.control.group0.node import Group0Node
from ebla.control.topology.barrier_client import BarrierClient, DownHosts
from ebla.group0.commands import ConditionFailed, Done
from ebla.model.errors import Refused
from ebla.model.transaction import Condition
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.topology.apply.command import Rejection, apply_commands
from ebla.topology.commands import Command
from ebla.topology.snapshot import Snapshot

RETRY_MS_MAX = 50


class TopologySource(Protocol):
    """The topology as this node's group 0 has it."""

    @property
    def snapshot(self) -> Snapshot: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDeps:
    group0: Group0Node
    topology: TopologySource
    barriers: BarrierClient
    down: DownHosts
    rng: Rng
    clock: Clock
    report: EventReporter

    async def read(self, within_ms: int) -> Snapshot:
        """The topology as a quorum knows it."""
        await self.group0.running.client.read_barrier(within_ms)
        return self.topology.snapshot

    async def commit(
        self,
        snapshot: Snapshot,
        commands: Sequence[Command],
        within_ms: int,
        conditions: tuple[Condition, ...] = (),
        before_offer: BeforeOffer = None,
    ) -> Snapshot | None:
        """Commits them together, if the topology is still this one and the further conditions hold. Returns the result;
        None if another change was committed first. Errors carry their outcome."""
        applied = apply_commands(snapshot, commands)
        if isinstance(applied, Rejection):
            raise Refused(applied.reason)
        transaction = applied.transaction
        if conditions:
            transaction = msgspec.structs.replace(transaction, conditions=(*transaction.conditions, *conditions))
        answer = await self.group0.running.client.transact(transaction, within_ms, before_offer)
        match answer:
            case Done():
                return applied.snapshot
            case ConditionFailed():
                return None
            case _:
                raise error_of(answer)

    async def pause(self) -> None:
        """After another change was committed first."""
        await asyncio.sleep(self.rng.random() * RETRY_MS_MAX / 1000)

    def now_ms(self) -> int:
        return self.clock.wall_us() // 1000


def expires_at(within_ms: int) -> float:
    return asyncio.get_running_loop().time() + within_ms / 1000


def remaining_ms(expires_at: float) -> int:
    return max(0, int((expires_at - asyncio.get_running_loop().time()) * 1000))


def out_of_time() -> Refused:
    return Refused("other topology changes came first until the deadline passed", advice="try again")
