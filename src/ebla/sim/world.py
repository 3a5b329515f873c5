"""A simulated world: machines with disks and clocks, processes that run on them and die, a network between them.

How to write a scenario. The file `sim/scenarios/ping.py` is found by its `SCENARIO`:

    async def server(environment: Environment) -> None:         # a process: runs until it is cancelled or killed
        disk = environment.disk                                 # "/data" exists from the start, nothing else does
        file = disk.open("/data/log") if disk.exists("/data/log") else disk.create("/data/log")
        await disk.sync_folder("/data")
        await environment.transport.listen(Address("10.0.0.1", 7000), lambda link: Echo(link, file))
        await asyncio.Event().wait()

    async def run(world: World) -> None:                        # the scenario: outside every process, never dies
        one = world.unit("one", server)                         # machines get 10.0.0.1, 10.0.0.2, … in this order
        two = world.unit("two", lambda environment: client(environment, one.address(7000)))
        for unit in (one, two):
            unit.start()
        await harsh(world, (one, two), seconds=world.seconds)   # sim/faults/harsh.py: ends with all faults healed
        world.log("scenario", "the storm is over")              # a line of the trace, part of its hash
        one.crash()                                             # power loss: unsynced data may vanish
        one.start()                                             # a new incarnation on the same disk
        one.kill()                                              # the process alone: its page cache survives
        two.pause(); await asyncio.sleep(3); two.resume()       # like SIGSTOP: nothing runs, links stay open
        world.network.cut("one", "two"); world.network.heal()   # directed; see sim/network.py
        one.machine.disk.fill(); one.machine.disk.heal()        # see sim/disk.py; clock: one.machine.clock.jump(us)
        own = world.scenario_environment("probe")               # ports for code of the scenario itself
        link = await own.transport.connect(one.address(7000), Probe)
        up = await world.wait_for(lambda: one.running, 5.0)     # a condition that must hold within some time
        world.check(up, "one should be up")                     # a failed check fails the run and prints its trace

    SCENARIO = Scenario("ping", "a client talks to a server", seconds=30.0, run=run)

Time is virtual: `asyncio.sleep`, timeouts and `TaskGroup` just work, and `world.now()` returns it. Random numbers for
the scenario come from `world.rng`. Code that reads a real clock or real randomness, or starts a thread, fails. An
exception that leaves a unit's `main` fails the run, unless it is one of the unit's `expected_errors` (by default a
full or failing disk): then the process has exited and can be started again, as `harsh` does.
"""

import asyncio
import contextvars
import enum
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from ebla.model.errors import DiskFull, leaf_errors
from ebla.model.identity import Address, HostId
from ebla.observe.event_reporter import EventReporter
from ebla.ports.environment import Environment
from ebla.sim.clock import SimClock
from ebla.sim.disk import ProcessDisk, SimDisk
from ebla.sim.incarnation import ProcessIncarnation
from ebla.sim.loop import Deadlock, ExceptionContext, SimTask, simulated_loop
from ebla.sim.network import Network, NetworkEndpoint
from ebla.sim.rng import SimRng
from ebla.sim.sandbox import sandboxed
from ebla.sim.trace import RunTrace

Main = Callable[[Environment], Coroutine[Any, Any, None]]
EXPECTED_ERRORS: tuple[type[Exception], ...] = (DiskFull, OSError)
OVERRUN_FACTOR = 10.0
OVERRUN_SLACK_S = 600.0
WAIT_STEP_S = 0.25


class RunFailed(AssertionError):
    """The run found something wrong. The message says what."""


class UnitState(enum.Enum):
    DOWN = enum.auto()
    RUNNING = enum.auto()
    PAUSED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimMachine:
    """What outlives a process: an address, a disk, clocks. Several units may share a machine. Two machines may be one
    piece of hardware: two addresses on the same disk."""

    name: str
    host: str
    disk: SimDisk
    clock: SimClock


class Unit:
    """One process that can die and start again on its machine."""

    def __init__(self, world: "World", main: Main, machine: SimMachine, endpoint: NetworkEndpoint) -> None:
        self.name = endpoint.name
        self.machine = machine
        self.state = UnitState.DOWN
        self.expected_errors = EXPECTED_ERRORS
        self.start_count = 0
        self._world = world
        self._main = main
        self._endpoint = endpoint
        self.incarnation = ProcessIncarnation(self.name)
        self.incarnation.alive = False

    def __repr__(self) -> str:
        return f"<unit {self.name} {self.state.name.lower()}>"

    @property
    def host(self) -> str:
        return self.machine.host

    @property
    def running(self) -> bool:
        return self.state is UnitState.RUNNING

    @property
    def down(self) -> bool:
        return self.state is UnitState.DOWN

    def address(self, port: int) -> Address:
        return Address(self.machine.host, port)

    def start(self) -> None:
        assert self.down, f"{self.name} is already up"
        world = self._world
        self.state = UnitState.RUNNING
        self.start_count += 1
        self.incarnation = ProcessIncarnation(self.name)
        world.log(self.name, "starts" if self.start_count == 1 else f"starts, incarnation {self.start_count}")
        environment = world.make_environment(self.incarnation, self._endpoint, self.machine)
        task = world.loop.create_task(self._main(environment), name=self.name, context=self.incarnation.new_context())
        task.add_done_callback(functools.partial(self._ended, self.incarnation), context=world.kernel)

    def crash(self) -> None:
        """Power loss of the unit's machine: every unit on it dies, and unsynced data may be lost."""
        disk = self.machine.disk
        on_machine = [unit for unit in self._world.units.values() if unit.machine.disk is disk]
        for unit in on_machine:
            if not unit.down:
                self._world.log(unit.name, "crashes")
                unit.end(with_machine=True)
        self.machine.disk.lose_power()
        self.machine.clock.reboot()

    def kill(self) -> None:
        """The process dies, its machine stays up: the page cache survives, and peers are notified that its links
        ended."""
        if not self.down:
            self._world.log(self.name, "is killed")
            self.end(with_machine=False)

    def pause(self) -> None:
        if self.running:
            self._world.log(self.name, "is paused")
            self.state = UnitState.PAUSED
            self._world.loop.pause(self.incarnation)

    def resume(self) -> None:
        if self.state is UnitState.PAUSED:
            self._world.log(self.name, "goes on")
            self.state = UnitState.RUNNING
            self._world.loop.resume(self.incarnation)

    def end(self, *, with_machine: bool) -> None:
        self.state = UnitState.DOWN
        self._world.loop.end(self.incarnation)
        self._world.network.incarnation_ended(self.incarnation, self._endpoint, with_machine=with_machine)

    def _ended(self, incarnation: ProcessIncarnation, task: "asyncio.Task[None]") -> None:
        if not incarnation.alive or task.cancelled():
            return
        error = task.exception()
        self._world.log(self.name, "ends" if error is None else f"ends: {describe(error)}")
        self.end(with_machine=False)
        if error is not None and not _is_one_of(error, self.expected_errors):
            self._world.fail_with(error, f"{self.name} died of {describe(error)}")


class World:
    def __init__(self, seed: int, seconds: float, show: Callable[[str], None] | None = None) -> None:
        rng = SimRng(f"seed {seed}")
        self.seed = seed
        self.seconds = seconds
        self.rng = rng.fork("world")
        self.loop = simulated_loop(rng)
        self.loop.time_max = seconds * OVERRUN_FACTOR + OVERRUN_SLACK_S
        self.loop.on_problem = self._problem
        self.trace = RunTrace(self.loop.time, show)
        self.network = Network(self.loop, rng.fork("network"), self.trace)
        self.units: dict[str, Unit] = {}
        self.boot_rates: tuple[float, float] | None = None
        """Between these the boot clocks of new machines run; None: nearly at the true rate."""
        self.kernel = contextvars.Context()
        self._root = rng
        self._incarnation = ProcessIncarnation("world")
        self._machines: dict[str, SimMachine] = {}
        self._endpoints = 0
        self._failure: BaseException | None = None
        self._main: SimTask[None] | None = None

    # -- building ------------------------------------------------------------------------------------------------

    def machine(self, name: str, *, beside: str | None = None) -> SimMachine:
        """The machine of that name, created at the first call. `beside`: on the same hardware as that machine."""
        found = self._machines.get(name)
        if found is None:
            number = len(self._machines) + 1
            rng = self._root.fork(f"machine {name}")
            if beside is None:
                disk = SimDisk(rng.fork("disk"), self.trace, name)
                clock = SimClock(self.loop.time, rng.fork("clock").random)
                if self.boot_rates is not None:
                    clock.boot_rate = rng.fork("boot rate").between(*self.boot_rates)
            else:
                disk, clock = self._machines[beside].disk, self._machines[beside].clock
            found = self._machines[name] = SimMachine(
                name=name, host=f"10.0.{number // 250}.{number % 250}", disk=disk, clock=clock
            )
        return found

    def unit(self, name: str, main: Main, *, machine: str | None = None, host_id: HostId | None = None) -> Unit:
        """A process that is not yet started. Without `machine` it gets its own machine, of the same name."""
        assert name not in self.units, f"there is already a unit {name}"
        home = self.machine(machine or name)
        unit = self.units[name] = Unit(self, main, home, self._endpoint(name, home, host_id))
        return unit

    def scenario_environment(self, name: str, host_id: HostId | None = None) -> Environment:
        """Ports for code of the scenario itself, which never dies, such as a probe or a client."""
        home = self.machine(name)
        return self.make_environment(self._incarnation, self._endpoint(name, home, host_id), home)

    def disk_of(self, machine: SimMachine) -> ProcessDisk:
        """The disk of a machine for code of the scenario itself."""
        return machine.disk.of(self._incarnation)

    def make_environment(
        self, incarnation: ProcessIncarnation, endpoint: NetworkEndpoint, machine: SimMachine
    ) -> Environment:
        return Environment(
            clock=machine.clock,
            rng=self._root.fork(f"unit {endpoint.name} {self.loop.next_number()}"),
            disk=machine.disk.of(incarnation),
            transport=self.network.transport(incarnation, endpoint),
        )

    def _endpoint(self, name: str, machine: SimMachine, host_id: HostId | None) -> NetworkEndpoint:
        self._endpoints += 1
        return NetworkEndpoint(name=name, number=self._endpoints, host=machine.host, host_id=host_id)

    # -- during the run ------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Virtual seconds since the start. No unit's clock shows this time."""
        return self.loop.time()

    def log(self, subject: str, text: str) -> None:
        self.trace.log(subject, text)

    def reporter(self, subject: str) -> EventReporter:
        return lambda event, details: self.log(subject, f"{event} {details}")

    async def wait_for(self, condition: Callable[[], bool], seconds: float, *, step_s: float = WAIT_STEP_S) -> bool:
        """Whether the condition holds within this time."""
        ends_at = self.now() + seconds
        while not condition():
            if self.now() >= ends_at:
                return False
            await asyncio.sleep(step_s)
        return True

    def check(self, condition: bool, text: str) -> None:
        if not condition:
            raise RunFailed(text)

    def fail(self, text: str) -> None:
        """For code that must not raise, such as a checker called from inside a unit."""
        self.fail_with(None, text)

    def fail_with(self, cause: BaseException | None, text: str) -> None:
        if self._failure is None:
            self.log("world", f"FAILS: {text}")
            self._failure = RunFailed(text)
            self._failure.__cause__ = cause
        self.loop.stop()

    def _problem(self, context: ExceptionContext) -> None:
        error = context.get("exception")
        self.fail_with(error, context["message"] if error is None else f"{context['message']}: {describe(error)}")

    def heal(self) -> None:
        """Ends every fault of paths and devices, and every pause. Units that are down stay down."""
        self.network.heal()
        for machine in self._machines.values():
            machine.disk.heal()
            machine.clock.thaw()
        for unit in self.units.values():
            unit.resume()

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, scenario: Callable[["World"], Awaitable[None]]) -> None:
        """Runs the scenario to its end. Raises the failure it found."""
        with sandboxed(self.loop):
            try:
                context = self._incarnation.new_context()
                self._main = self.loop.create_task(_await(scenario(self)), name="scenario", context=context)
                self._main.add_done_callback(lambda _: self.loop.stop(), context=self.kernel)
                self._turn_until_done()
                if self._failure is not None:
                    raise self._failure
                self._main.result()
            finally:
                self._close()

    def _turn_until_done(self) -> None:
        try:
            self.loop.run_forever()
        except Deadlock as error:
            waiting = [task for incarnation in self._incarnations() for task in incarnation.tasks if not task.done()]
            raise Deadlock(f"{error}; waiting: {'; '.join(_where(task) for task in waiting)}") from None

    def _incarnations(self) -> Iterator[ProcessIncarnation]:
        yield self._incarnation
        for unit in self.units.values():
            yield unit.incarnation

    def _close(self) -> None:
        """Ends every incarnation in order, so that nothing is left for the garbage collector."""
        for unit in self.units.values():
            if not unit.down:
                unit.end(with_machine=True)
        self.loop.end(self._incarnation)
        self.loop.close()


def _where(task: "asyncio.Task[Any]") -> str:
    """The task and its innermost coroutine, with the line at which it waits."""
    coro: Any = task.get_coro()
    place = "not started"
    while getattr(coro, "cr_frame", None) is not None:
        place = f"{coro.__qualname__} line {coro.cr_frame.f_lineno}"
        coro = coro.cr_await
    return f"{task.get_name()} in {place}"


async def _await(work: Awaitable[None]) -> None:
    await work


def describe(error: BaseException) -> str:
    return ", ".join(f"{type(each).__name__}: {each}" for each in leaf_errors(error))


def _is_one_of(error: BaseException, allowed: tuple[type[Exception], ...]) -> bool:
    return all(isinstance(each, allowed) for each in leaf_errors(error))
