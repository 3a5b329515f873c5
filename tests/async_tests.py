"""Runs `async def test_…`; `tests/conftest.py` is the hook.

Without a mark a test runs on its own simulated loop: time is virtual, a test that waits for something that never
happens fails at once with `Deadlock`, and callbacks that are ready together run in an order drawn from a fixed seed.
`await settled()` waits until nothing is left to do at this instant.

A mark on the test or its module selects something else:

    @runs_in(real_time)                         # asyncio's own loop: sockets, threads, child processes
    async def test_a() -> None: ...

    pytestmark = runs_in(in_shard)              # a rig: any function that takes the test's work and runs it
    async def test_b(shard: ShardRig, /, tmp_path: Path) -> None: ...

The rig passes its values to the test's positional-only parameters; all other parameters are fixtures. Further arguments
of `runs_in` go to the rig; keyword-only parameters of the rig without a default are filled from fixtures.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest

from ebla.sim.loop import simulated_loop
from ebla.sim.rng import SimRng

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]

SEED = "tests"


def simulated_time(work: Work[T], seed: str = SEED) -> T:
    with asyncio.Runner(loop_factory=lambda: simulated_loop(SimRng(seed))) as runner:
        return runner.run(work())


def real_time(work: Work[T]) -> T:
    return asyncio.run(work())


async def settled() -> None:
    """Waits until only the caller is ready to run: everything else waits for time to pass, or for the caller.

    Exact on a simulated loop. On asyncio's own loop, where sockets and threads can add work at any time, it yields to
    the loop many times.
    """
    wait_idle = getattr(asyncio.get_running_loop(), "wait_idle", None)
    if wait_idle is not None:
        await wait_idle()
        return
    for _ in range(50):
        await asyncio.sleep(0)


def runs_in(rig: Callable[..., object], *arguments: object, **options: object) -> pytest.MarkDecorator:
    """Marks a test, or all of a module (`pytestmark = runs_in(…)`)."""
    return pytest.mark.runs_in.with_args(rig, *arguments, **options)


def run_async_test(item: pytest.Function) -> bool | None:
    """Implements `pytest_pyfunc_call`: True if the test was run here."""
    if not inspect.iscoroutinefunction(item.obj):
        return None
    fixtures = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    mark = item.get_closest_marker("runs_in")
    rig, *arguments = mark.args if mark is not None else (simulated_time,)
    options = dict(mark.kwargs) if mark is not None else {}
    for name, parameter in inspect.signature(rig).parameters.items():
        is_needed = parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
        if is_needed and name not in options:
            options[name] = item._request.getfixturevalue(name)
    rig(partial(item.obj, **fixtures), *arguments, **options)
    return True
