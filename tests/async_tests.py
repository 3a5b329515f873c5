"""How an `async def test_…` is run. `tests/conftest.py` makes pytest call this.

Without a mark, on a simulated loop of its own: time is virtual, an hour takes no time, a test that waits for something
that never happens ends at once with `Deadlock`, and callbacks that are ready together run in an order drawn from a
seed, which is always the same. `await settled()` waits until nothing is left to do at this instant.

A test that needs something else says so, for itself or for its module:

    @runs_in(real_time)                         # asyncio's own loop: sockets, threads, child processes
    async def test_a() -> None: ...

    pytestmark = runs_in(in_shard)              # a rig: any function that takes the test's work and runs it
    async def test_b(shard: ShardRig, /, tmp_path: Path) -> None: ...

What the rig hands to its work are the test's positional-only parameters; all others are fixtures, as ever. More
arguments of `runs_in` go to the rig, and its keyword-only parameters without a default are fixtures too.
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
    """Until nothing but the caller is ready to run: all that is left waits for time to pass, or for the caller.

    On a simulated loop this is exact. On asyncio's own, where sockets and threads can always bring more, it means many
    turns of the loop.
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
    """What `pytest_pyfunc_call` asks for: True if the test was run here."""
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
