"""Large states in pages: all of one moment, each row once, and a new beginning where the moment is forgotten."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from ebla.control.group0_pages import STATE_IDLE_MS, STATES_MAX, KeptStates, PageLimits, Wanted, steps_of_a_page
from ebla.group0.commands import CallId, Command
from ebla.group0.feed import KeyChange, Step
from ebla.group0.history import HistoryStart
from ebla.group0.store import Store
from ebla.model.identity import HistoryId, HostId
from ebla.model.transaction import Delete, Put, Revision, Transaction
from ebla.sim.world import World

HISTORY = HistoryId(uuid.UUID(int=7))
ALL = Wanted((), ("user/",))
LIMITS = PageLimits(bytes_max=1_000, keys_max=3)


def simulate(work: Callable[[], Awaitable[None]]) -> None:
    async def scenario(_world: World) -> None:
        await work()

    World(seed=1, seconds=600.0).run(scenario)


def change(store: Store, *changes: Put | Delete) -> None:
    index = store.index + 1
    store.apply(index, Command(CallId(HostId(uuid.UUID(int=1)), 1, index, 0), Transaction((), changes)))


def filled(count: int, value: bytes = b"v") -> Store:
    store = Store((HistoryStart(HISTORY, 0),))
    for number in range(count):
        change(store, Put(f"user/{number:03d}", value))
    change(store, Put("other", b"o"))
    return store


def names(store: Store, states: KeptStates, wanted: Wanted, between: Callable[[], None]) -> list[str]:
    """Every page, with something done between any two. None may begin anew."""
    found: list[str] = []
    page = states.page(store, wanted, None, 0)
    while True:
        found += [key for key, _ in page.rows]
        if not page.more:
            return found
        between()
        at = page.revision
        page = states.page(store, wanted, at, len(found))
        assert page.revision == at


def test_pages_add_up_to_one_moment_whatever_changes_between_them() -> None:
    async def work() -> None:
        store, states = filled(10), KeptStates(LIMITS)

        def meddle() -> None:
            change(store, Delete("user/009"), Delete("user/000"), Put(f"user/{store.index:03d}x", b"new"))

        assert names(store, states, ALL, meddle) == [f"user/{number:03d}" for number in range(10)]
        assert states._states == {}, "nothing is kept for nobody"

    simulate(work)


def test_what_fits_one_page_is_kept_for_nobody() -> None:
    async def work() -> None:
        store, states = filled(3), KeptStates(LIMITS)
        page = states.page(store, ALL, None, 0)
        assert (len(page.rows), page.more, states._states) == (3, False, {})

    simulate(work)


@pytest.mark.parametrize("size", [1, 400, 5_000])
def test_a_page_is_bounded_in_keys_and_bytes_but_never_empty(size: int) -> None:
    async def work() -> None:
        store, states = filled(7, b"v" * size), KeptStates(LIMITS)
        page = states.page(store, ALL, None, 0)
        assert len(page.rows) == {1: 3, 400: 2, 5_000: 1}[size]
        assert names(store, states, ALL, lambda: None) == [f"user/{number:03d}" for number in range(7)]

    simulate(work)


def test_keys_come_first_and_each_once() -> None:
    async def work() -> None:
        store, states = filled(4), KeptStates(LIMITS)
        wanted = Wanted(("user/002", "nothing", "other"), ("user/00", "user/"))
        assert names(store, states, wanted, lambda: None) == ["user/002", "other", "user/000", "user/001", "user/003"]

    simulate(work)


def test_a_moment_that_is_forgotten_begins_anew_and_one_that_still_is_does_not() -> None:
    async def work() -> None:
        store = filled(7)
        first = KeptStates(LIMITS).page(store, ALL, None, 0)
        elsewhere = KeptStates(LIMITS).page(store, ALL, first.revision, 3)
        assert elsewhere.revision == first.revision
        assert [key for key, _ in elsewhere.rows] == ["user/003", "user/004", "user/005"]
        change(store, Delete("user/001"))
        anew = KeptStates(LIMITS).page(store, ALL, first.revision, 3)
        assert anew.revision == store.revision
        assert [key for key, _ in anew.rows] == ["user/000", "user/002", "user/003"]

    simulate(work)


def test_states_that_nobody_asks_for_are_forgotten_by_time_and_by_number() -> None:
    async def work() -> None:
        store, states = filled(7), KeptStates(LIMITS)
        at = states.page(store, ALL, None, 0).revision
        for _ in range(3):
            await asyncio.sleep(STATE_IDLE_MS / 1000 * 0.8)
            states.page(store, ALL, at, 3)
            assert states.holds(ALL, at), "it is still asked for"
        await asyncio.sleep(STATE_IDLE_MS / 1000 * 2.1)
        assert not states.holds(ALL, at)
        revisions = []
        for _ in range(STATES_MAX + 1):
            change(store, Put("user/000", b"again"))
            revisions.append(states.page(store, ALL, None, 0).revision)
        assert [states.holds(ALL, revision) for revision in revisions] == [False] + [True] * STATES_MAX

    simulate(work)


def test_a_page_of_changes_is_whole_steps() -> None:
    def step(index: int, count: int, size: int) -> Step:
        return Step(index, tuple(KeyChange(f"user/{number}", b"v" * size) for number in range(count)))

    small = [step(index, 1, 10) for index in range(5)]
    assert steps_of_a_page(small[:3], LIMITS) == (tuple(small[:3]), True)
    assert steps_of_a_page(small, LIMITS) == (tuple(small[:3]), False)
    assert steps_of_a_page([step(1, 5, 10), *small], LIMITS) == ((step(1, 5, 10),), False), "one is never cut"
    assert steps_of_a_page([step(1, 1, 1_000), *small], LIMITS) is None
    assert steps_of_a_page([], LIMITS) == ((), True)
    assert Revision(HISTORY, 1) < Revision(HISTORY, 2)
