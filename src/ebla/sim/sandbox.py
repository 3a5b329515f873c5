"""Isolates a run from the real world: code that reads a real clock or real randomness, or starts a thread, fails at
once.

The lint rules are the first line of defence. This one catches what they cannot see: a library that reads the clock, a
name imported earlier. It replaces the functions in their modules and in every module of ours that imported one by name.
"""

import datetime
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

import pyarrow as pa

from ebla.sim.loop import NotSimulated, SimLoop

OWN_PACKAGES = ("ebla", "tests", "benchmarks")
LOGGING = ("logging", "warnings")
"""These may read the time of day to stamp a record: they get virtual time."""

CLOCK_FUNCTIONS = (
    "time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime",
    "time_ns", "monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns", "clock_gettime_ns",
    "localtime", "gmtime",
)  # fmt: skip
RANDOM_FUNCTIONS = (
    "random", "randint", "randrange", "choice", "choices", "shuffle", "sample", "uniform", "gauss", "expovariate",
    "getrandbits", "randbytes", "seed", "betavariate", "normalvariate", "triangular",
)  # fmt: skip
SYSTEM_RANDOM_FUNCTIONS = ("random", "getrandbits", "randbytes")
"""All other methods of `SystemRandom` use these. An instance made before the run would bypass `Random.__init__`."""
SECRETS_FUNCTIONS = ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice")
_real_datetime = datetime.datetime
_real_random_init = random.Random.__init__


def _refuse(what: str, instead: str) -> NoReturn:
    raise NotSimulated(f"{what} leaks the real world into the simulation; use {instead}")


def _sealed(real: Callable[..., Any], what: str, instead: str) -> Callable[..., Any]:
    """Fails in the simulation's thread. Other threads, such as a test runner's, are not affected."""
    simulation = threading.get_ident()

    def refused(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == simulation:
            _refuse(what, instead)
        return real(*args, **kwargs)

    return refused


def _sealed_clock(name: str, loop: SimLoop) -> Callable[..., Any]:
    """Virtual time for logging, which must be able to stamp a record. Fails for all other callers."""
    real = getattr(time, name)
    refused = _sealed(real, f"time.{name}", "ports.Clock")

    def read(*args: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] not in LOGGING:  # noqa: SLF001  # the caller decides
            return refused(*args)
        if name in ("localtime", "gmtime"):
            return real(*(args or (loop.time(),)))
        return int(loop.time() * 1e9) if name.endswith("_ns") else loop.time()

    return read


class _AnyDatetime(type(_real_datetime)):  # type: ignore[misc]  # the type of datetime is plain `type`
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _real_datetime)


class _SealedDatetime(_real_datetime, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> NoReturn:  # noqa: ARG003  # the signature of the real one
        _refuse("datetime.now", "ports.Clock.wall_us")

    @classmethod
    def utcnow(cls) -> NoReturn:
        _refuse("datetime.utcnow", "ports.Clock.wall_us")

    @classmethod
    def today(cls) -> NoReturn:
        _refuse("datetime.today", "ports.Clock.wall_us")


def _sealed_random_init(self: random.Random, x: Any = None) -> None:
    if x is None:
        _refuse("random.Random() without a seed", "ports.Rng")
    _real_random_init(self, x)


def _replacements(loop: SimLoop) -> list[tuple[Any, str, Any]]:
    refused: list[tuple[Any, str, str]] = [(random, name, "ports.Rng") for name in RANDOM_FUNCTIONS]
    refused += [(random.SystemRandom, name, "ports.Rng") for name in SYSTEM_RANDOM_FUNCTIONS]
    refused += [(secrets, name, "ports.Rng") for name in SECRETS_FUNCTIONS]
    refused += [
        (time, "sleep", "asyncio.sleep"),
        (os, "urandom", "ports.Rng"),
        (uuid, "uuid4", "ports.Rng.uuid"),
        (uuid, "uuid1", "ports.Rng.uuid"),
        (threading.Thread, "start", "ports.Disk.run"),
        (socket.socket, "__init__", "ports.Transport"),
        (subprocess.Popen, "__init__", "a unit of the world"),
    ]
    replaced = [
        (owner, name, _sealed(getattr(owner, name), f"{owner.__name__}.{name}", instead))
        for owner, name, instead in refused
    ]
    replaced += [(time, name, _sealed_clock(name, loop)) for name in CLOCK_FUNCTIONS]
    return [*replaced, (datetime, "datetime", _SealedDatetime), (random.Random, "__init__", _sealed_random_init)]


def _holders(real: dict[int, Any]) -> Iterator[tuple[ModuleType, str, Any]]:
    """Modules of ours that imported one of the functions by name."""
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] in OWN_PACKAGES and module_name != __name__ and module is not None:
            for name, value in list(vars(module).items()):
                if id(value) in real:
                    yield module, name, real[id(value)]


@contextmanager
def sandboxed(loop: SimLoop) -> Iterator[None]:
    # Arrow imports pandas at its first array, and pandas reads numpy's random source, which would fail inside the run.
    pa.array([b""])
    undo: list[tuple[Any, str, Any]] = []
    replaced = _replacements(loop)
    by_real = {id(getattr(owner, name)): new for owner, name, new in replaced if isinstance(owner, ModuleType)}
    try:
        for holder, name, new in [*_holders(by_real), *replaced]:
            undo.append((holder, name, getattr(holder, name)))
            setattr(holder, name, new)
        yield
    finally:
        for holder, name, old in reversed(undo):
            setattr(holder, name, old)
