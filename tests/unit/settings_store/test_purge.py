"""How a round chooses its time, and what becomes of collected tombstones."""

from dataclasses import replace

import pytest

from ebla.settings_store.entry import Entry
from ebla.settings_store.notation import format_entry, parse_entry
from ebla.settings_store.purge import CollectedTombstones, PurgeResult, RoundStart, choose_timestamp, qualifying_time

START = RoundStart(
    tentative_us=100,
    effective_us=100,
    wall_us=1_000,
    age_us=300,
    clock_offsets_ms=(0, 0),
    other_members=2,
    oldest_tombstone_us=500,
)


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        ({}, 700),
        ({"oldest_tombstone_us": 700}, 700),
        ({"oldest_tombstone_us": 701}, PurgeResult.NOTHING_TO_PURGE),
        ({"oldest_tombstone_us": None}, PurgeResult.NOTHING_TO_PURGE),
        ({"age_us": 900}, PurgeResult.NOTHING_TO_PURGE),
        ({"wall_us": 99, "age_us": 0}, PurgeResult.CLOCK_BEHIND),
        ({"wall_us": 100, "age_us": 0}, PurgeResult.NOTHING_TO_PURGE),
        ({"tentative_us": 101}, 101),
        ({"tentative_us": 10_000, "wall_us": 50, "oldest_tombstone_us": None}, 10_000),
        ({"tentative_us": 101, "is_finishing": True}, 101),
        ({"is_finishing": True}, PurgeResult.NOTHING_TO_PURGE),
        ({"clock_offsets_ms": (-60_001, -70_000)}, PurgeResult.CLOCK_AHEAD),
        ({"clock_offsets_ms": (-60_001, -60_000)}, 700),
        ({"clock_offsets_ms": (-70_000,)}, 700),
        ({"clock_offsets_ms": (-70_000,), "other_members": 1}, PurgeResult.CLOCK_AHEAD),
        ({"clock_offsets_ms": (), "other_members": 0}, 700),
    ],
)
def test_choice(change: dict[str, object], chosen: int | PurgeResult) -> None:
    assert choose_timestamp(replace(START, **change)) == chosen  # type: ignore[arg-type]  # fields by name


def test_collected_tombstones_are_merged_with_each_other() -> None:
    collected = CollectedTombstones()
    for text in ("0|{a:(1,10)}|D", "0|{b:(1,12)}|D", "5|{c:(1,11)}|D"):
        collected.add([("k", entry(text))])
    collected.add([("a", entry("0|{a:(2,11)}|D"))])
    found = [(key, format_entry(one)) for key, one in collected.sorted_entries()]
    assert found == [("a", "0|{a:(2,11)}|D"), ("k", "0|{a:(1,10), b:(1,12)}|D")]


def test_least_qualifying_time() -> None:
    assert qualifying_time([entry("5|{a:(1,3)}|D"), entry("0|{a:(1,9)}|D")]) == 5
    assert qualifying_time([]) is None


def entry(text: str) -> Entry:
    parsed = parse_entry(text)
    assert parsed is not None
    return parsed
