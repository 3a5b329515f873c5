"""Everything a process is given from outside. Real in production, simulated in the simulator, the same type in both."""

from dataclasses import dataclass

from ebla.ports.chance import Chance
from ebla.ports.clock import Clock
from ebla.ports.disk import Disk
from ebla.ports.transport import Transport


@dataclass(frozen=True, slots=True)
class Surroundings:
    clock: Clock
    chance: Chance
    disk: Disk
    transport: Transport
