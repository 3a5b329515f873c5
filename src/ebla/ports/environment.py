"""The ports of a process: real in production, simulated in the simulator."""

from dataclasses import dataclass

from ebla.ports.clock import Clock
from ebla.ports.disk import Disk
from ebla.ports.rng import Rng
from ebla.ports.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    clock: Clock
    rng: Rng
    disk: Disk
    transport: Transport
