"""What every change of the topology needs, shared by the schema, the sessions and the joins."""

from dataclasses import dataclass
from typing import Protocol

from ebla.control.group0.node import Group0Node
from ebla.control.topology.barrier_client import BarrierClient, DownHosts
from ebla.observe.event_reporter import EventReporter
from ebla.ports.clock import Clock
from ebla.ports.rng import Rng
from ebla.topology.snapshot import Snapshot


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
