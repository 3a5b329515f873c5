"""Large states in pages: all of one moment, each row once, and a new beginning where the moment is forgotten."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from tests.async_tests import runs_in

from ebla.control.group0.pages import (
    PAGED_READ_IDLE_MS,
    PAGED_READS_MAX,
    KeySelection,
    PagedReads,
    PageLimits,
    change_sets_of_a_page,
)
from ebla.group0.change_feed import ChangeSet, KeyChange
from ebla.group0.commands import CallId, Group0Command
from ebla.group0.store import Group0Store, HistoryStart
from ebla.model.identity import HistoryId, HostId
from ebla.model.transaction import DeleteKey, PutKey, Revision, Transaction
from ebla.sim.world import World

HISTORY = HistoryId(uuid.UUID(int=7))
ALL = KeySelection((), ("user/",))
LIMITS = PageLimits(bytes_max=1_000, keys_max=3)


def simulate(work: Callable[[], Awaitable[None]]) -> None:
    async def scenario(_world: World) -> None:
        await work()

    World(seed=1, seconds=600.0).run(scenario)


pytestmark = runs_in(simulate)


def change(store: Group0Store, *changes: PutKey | DeleteKey) -> None:
    index = store.index + 1
    store.apply(
        index,
        Group0Command(
            CallId(client=HostId(uuid.UUID(int=1)), incarnation=1, serial=index, answered_through=0),
            Transaction((), changes),
        ),
    )


def filled(count: int, value: bytes = b"v") -> Group0Store:
    store = Group0Store((HistoryStart(HISTORY, 0),))
    for number in range(count):
        change(store, PutKey(f"user/{number:03d}", value))
    change(store, PutKey("other", b"o"))
    return store


def names(store: Group0Store, states: PagedReads, wanted: KeySelection, between: Callable[[], None]) -> list[str]:
    """Every page, with something done between any two. None may start over."""
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


async def test_pages_add_up_to_one_moment_whatever_changes_between_them() -> None:
    store, states = filled(10), PagedReads(LIMITS)

    def meddle() -> None:
        change(store, DeleteKey("user/009"), DeleteKey("user/000"), PutKey(f"user/{store.index:03d}x", b"new"))

    assert names(store, states, ALL, meddle) == [f"user/{number:03d}" for number in range(10)]
    assert states._states == {}, "a finished read is dropped"


async def test_what_fits_one_page_is_kept_for_nobody() -> None:
    store, states = filled(3), PagedReads(LIMITS)
    page = states.page(store, ALL, None, 0)
    assert (len(page.rows), page.more, states._states) == (3, False, {})


@pytest.mark.parametrize("size", [1, 400, 5_000])
async def test_a_page_is_bounded_in_keys_and_bytes_but_never_empty(size: int) -> None:
    store, states = filled(7, b"v" * size), PagedReads(LIMITS)
    page = states.page(store, ALL, None, 0)
    assert len(page.rows) == {1: 3, 400: 2, 5_000: 1}[size]
    assert names(store, states, ALL, lambda: None) == [f"user/{number:03d}" for number in range(7)]


async def test_keys_come_first_and_each_once() -> None:
    store, states = filled(4), PagedReads(LIMITS)
    wanted = KeySelection(("user/002", "nothing", "other"), ("user/00", "user/"))
    assert names(store, states, wanted, lambda: None) == ["user/002", "other", "user/000", "user/001", "user/003"]


async def test_a_moment_that_is_forgotten_begins_anew_and_one_that_still_is_does_not() -> None:
    store = filled(7)
    first = PagedReads(LIMITS).page(store, ALL, None, 0)
    elsewhere = PagedReads(LIMITS).page(store, ALL, first.revision, 3)
    assert elsewhere.revision == first.revision
    assert [key for key, _ in elsewhere.rows] == ["user/003", "user/004", "user/005"]
    change(store, DeleteKey("user/001"))
    restarted = PagedReads(LIMITS).page(store, ALL, first.revision, 3)
    assert restarted.revision == store.revision
    assert [key for key, _ in restarted.rows] == ["user/000", "user/002", "user/003"]


async def test_states_that_nobody_asks_for_are_forgotten_by_time_and_by_number() -> None:
    store, states = filled(7), PagedReads(LIMITS)
    at = states.page(store, ALL, None, 0).revision
    for _ in range(3):
        await asyncio.sleep(PAGED_READ_IDLE_MS / 1000 * 0.8)
        states.page(store, ALL, at, 3)
        assert states.holds(ALL, at), "it is still asked for"
    await asyncio.sleep(PAGED_READ_IDLE_MS / 1000 * 2.1)
    assert not states.holds(ALL, at)
    revisions = []
    for _ in range(PAGED_READS_MAX + 1):
        change(store, PutKey("user/000", b"again"))
        revisions.append(states.page(store, ALL, None, 0).revision)
    assert [states.holds(ALL, revision) for revision in revisions] == [False] + [True] * PAGED_READS_MAX


def test_a_page_of_changes_is_whole_steps() -> None:
    def step(index: int, count: int, size: int) -> ChangeSet:
        return ChangeSet(index, tuple(KeyChange(f"user/{number}", b"v" * size) for number in range(count)))

    small = [step(index, 1, 10) for index in range(5)]
    assert change_sets_of_a_page(small[:3], LIMITS) == (tuple(small[:3]), True)
    assert change_sets_of_a_page(small, LIMITS) == (tuple(small[:3]), False)
    assert change_sets_of_a_page([step(1, 5, 10), *small], LIMITS) == ((step(1, 5, 10),), False), "one is never cut"
    assert change_sets_of_a_page([step(1, 1, 1_000), *small], LIMITS) is None
    assert change_sets_of_a_page([], LIMITS) == ((), True)
    assert Revision(HISTORY, 1) < Revision(HISTORY, 2)
