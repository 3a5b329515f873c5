"""A node's store: local writes, received messages, purge, reset."""

import uuid
from collections.abc import Mapping

import msgspec
import pytest

from ebla.model.errors import InvalidRequest, Refused, TooLarge, Unavailable
from ebla.model.identity import HostId
from ebla.settings_store import node_store
from ebla.settings_store.entry import Entry
from ebla.settings_store.merge import merge
from ebla.settings_store.node_store import Decision, NodeHeader, ReceivedEntries, SettingsStore, Writer
from ebla.settings_store.notation import format_entry, parse_entry
from ebla.settings_store.registry import node_key

HOST = HostId(uuid.UUID(int=1))
OTHER = HostId(uuid.UUID(int=2))
ME = uuid.UUID(bytes=b"me".ljust(16, b"\0"))
WALL = 1_000
ANYONE = Writer()


def new_store(**header: int) -> SettingsStore:
    return SettingsStore(HOST, msgspec.structs.replace(NodeHeader(actor=ME), **header))


def write(store: SettingsStore, key: str, value: bytes | None, wall_us: int = WALL) -> Decision:
    return done(store, store.write({key: value}, wall_us, ANYONE))


def done(store: SettingsStore, decision: Decision) -> Decision:
    if decision.update is not None:
        store.apply(msgspec.msgpack.decode(msgspec.msgpack.encode(decision.update), type=node_store.Update))
    return decision


def receive(store: SettingsStore, key: str, text: str, watermark_us: int = 0) -> Decision:
    return done(store, store.receive([ReceivedEntries([(key, entry(text))], watermark_us)], WALL))


def entry(text: str) -> Entry:
    parsed = parse_entry(text)
    assert parsed is not None
    return parsed


def shown(store: SettingsStore, key: str) -> str:
    return format_entry(store.entries.get(key))


# ---- local writes


def test_counter_is_of_the_actor_not_of_the_key() -> None:
    store = new_store()
    write(store, "user/a", b"x")
    decision = write(store, "user/b", b"y")
    assert (shown(store, "user/a"), shown(store, "user/b")) == ("0|{me:(1,1000)}|x", "0|{me:(2,1001)}|y")
    assert decision.pushed == ("user/b",)


def test_write_over_an_entry_keeps_its_clock_and_purge_timestamp() -> None:
    store = new_store(effective_us=100, watermark_us=100)
    receive(store, "user/a", "7|{a:(3,900), me:(0,5)}|D", 100)
    write(store, "user/a", b"x")
    assert shown(store, "user/a") == "7|{a:(3,900), me:(1,1000)}|x"


def test_key_created_after_a_purge_gets_the_effective_timestamp() -> None:
    store = new_store(tentative_us=100, effective_us=100, watermark_us=100)
    write(store, "user/a", b"v", wall_us=50)
    assert shown(store, "user/a") == "100|{me:(1,101)}|v"


def test_timestamps_of_an_actor_never_fall() -> None:
    store = new_store()
    write(store, "user/a", b"x", wall_us=2_000)
    write(store, "user/a", None, wall_us=1_000)
    assert shown(store, "user/a") == "0|{me:(2,2001)}|D"


def test_nothing_changes() -> None:
    store = new_store()
    write(store, "user/a", b"x")
    for key, value in (("user/a", b"x"), ("user/b", None)):
        assert write(store, key, value) == Decision()
    write(store, "user/a", None)
    assert write(store, "user/a", None) == Decision()
    assert store.header.counter == 2


def test_compare_and_set_is_all_or_nothing() -> None:
    store = new_store()
    write(store, "user/a", b"x")
    changes: Mapping[str, bytes | None] = {"user/a": b"y", "user/b": b"z"}
    with pytest.raises(Refused, match="user/b is not set, not q"):
        store.write(changes, WALL, ANYONE, {"user/a": b"x", "user/b": b"q"})
    done(store, store.write(changes, WALL, ANYONE, {"user/a": b"x", "user/b": None}))
    assert (store.get("user/a"), store.get("user/b")) == (b"y", b"z")


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    for key, value in (("user/" + "k" * 252, b""), ("user/a", bytes(64 * 1024 + 1))):
        with pytest.raises(TooLarge):
            write(store, key, value)
    write(store, "user/" + "k" * 251, bytes(64 * 1024))
    monkeypatch.setattr(node_store, "LIVE_KEYS_MAX", 2)
    write(store, "user/a", b"x")
    with pytest.raises(TooLarge, match="2 settings"):
        write(store, "user/b", b"x")
    write(store, "user/a", None)
    write(store, "user/b", b"x")
    monkeypatch.setattr(node_store, "KEYS_MAX", 3)
    write(store, "user/b", None)
    with pytest.raises(TooLarge, match="not purged: n3 is down"):
        store.write({"user/c": b"x"}, WALL, Writer(blocked_by="n3 is down"))
    monkeypatch.setattr(node_store, "STORE_BYTES_MAX", store.size_bytes + 10)
    write(store, "user/a", b"0123456789")
    with pytest.raises(TooLarge, match="bytes"):
        write(store, "user/a", b"0123456789" * 2)
    receive(store, "user/c", "0|{a:(1,5)}|" + "x" * 100)
    assert store.get("user/c") is not None, "a merge never fails for size"


def test_own_entries_of_hosts() -> None:
    store = new_store()
    theirs = node_key(OTHER, "status")
    with pytest.raises(Refused, match="belongs to host"):
        write(store, theirs, b"x")
    done(store, store.write({theirs: b"gone"}, WALL, Writer(removed=(OTHER,))))
    receive(store, node_key(OTHER, "actor"), "0|{a:(1,5)}|x")
    with pytest.raises(Refused):
        store.write({node_key(OTHER, "actor"): None}, WALL, Writer(removed=(OTHER,)))
    done(store, store.write({node_key(OTHER, "actor"): None}, WALL, Writer(removed=(OTHER,), leads=True)))
    assert store.entries[node_key(OTHER, "actor")].is_tombstone
    with pytest.raises(InvalidRequest):
        write(store, "no_such_setting", None)


def test_names_of_a_newer_release_can_be_deleted() -> None:
    store = new_store()
    receive(store, "of_a_newer_release", "0|{a:(1,5)}|x")
    write(store, "of_a_newer_release", None)
    assert store.get("of_a_newer_release") is None


# ---- values in effect


def test_last_valid_value_stays_in_effect() -> None:
    store = new_store()
    assert store.in_effect("settings_purge") == (None, "", "")
    write(store, "settings_purge", b'{"age_ms":5}')
    receive(store, "settings_purge", '0|{a:(1,9), me:(1,1000)}|{"age_ms":-5}')
    assert store.get("settings_purge") == b'{"age_ms":-5}'
    value, key, problem = store.in_effect("settings_purge")
    assert (value, key) == (b'{"age_ms":5}', "settings_purge")
    assert "age_ms" in problem
    receive(store, "settings_purge", '0|{a:(2,10), me:(1,1000)}|{"age_ms":-6}')
    assert store.in_effect("settings_purge").value == b'{"age_ms":5}'
    write(store, "settings_purge", b'{"age_ms":7}')
    assert (store.in_effect("settings_purge").value, store.last_valid) == (b'{"age_ms":7}', {})


def test_value_that_never_was_valid_is_the_default() -> None:
    store = new_store()
    receive(store, "settings_purge", "0|{a:(1,9)}|nonsense")
    value, key, problem = store.in_effect("settings_purge")
    assert (value, key, bool(problem)) == (None, "", True)


# ---- messages


def test_conflicts_are_pushed_and_remembered() -> None:
    store = new_store()
    write(store, "user/a", b"x")
    decision = receive(store, "user/a", "0|{a:(1,2000)}|y")
    assert (decision.pushed, decision.conflicts) == (("user/a",), 1)
    records = [(one.old, one.new, one.lost, one.changed_wall_us) for one in store.history["user/a"]]
    assert records == [(None, b"x", False, 1_000), (b"y", b"x", True, 1_000), (b"x", b"y", False, 2_000)]


def test_plain_successor_is_not_pushed() -> None:
    store = new_store()
    decision = receive(store, "user/a", "0|{a:(1,2000)}|y")
    assert (decision.pushed, decision.conflicts, store.get("user/a")) == ((), 0, b"y")
    assert receive(store, "user/a", "0|{a:(1,2000)}|y") == Decision()


def test_erased_tombstones_do_not_return() -> None:
    store = new_store(effective_us=100, watermark_us=100)
    assert receive(store, "user/a", "0|{a:(1,100)}|D", 100).filtered == 1
    assert store.entries == {}


def test_old_entries_of_a_late_message_are_dropped() -> None:
    store = new_store(watermark_us=100)
    assert receive(store, "user/a", "0|{a:(1,100)}|x", 99).filtered == 1
    assert receive(store, "user/b", "0|{a:(1,101)}|x", 99).filtered == 0
    assert receive(store, "user/c", "0|{a:(1,100)}|x", 100).filtered == 0
    assert receive(store, "user/d", "0|{a:(1,90)}|D", 0).filtered == 1
    assert receive(store, "user/e", "0|{a:(1,101)}|D", 0).filtered == 0
    assert sorted(store.entries) == ["user/b", "user/c", "user/e"]


def test_own_entry_changed_by_a_peer() -> None:
    store = new_store()
    key = node_key(HOST, "status")
    write(store, key, b"fine")
    for text in ("0|{a:(1,9000), me:(1,1000)}|D", "50|{a:(2,9500)}|broken"):
        decision = receive(store, key, text)
        assert (decision.pushed, store.get(key)) == ((key,), b"fine")
        assert merge(entry(text), store.entries[key], 0).entry == store.entries[key]


def test_own_actor_with_a_greater_counter_shows_an_older_copy() -> None:
    store = new_store(counter=3)
    assert receive(store, "user/a", "0|{me:(4,9)}|x").older_copy
    assert not receive(store, "user/a", "0|{me:(3,9)}|x").older_copy


def test_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    for number in range(12):
        write(store, "user/a", b"%d" % number + bytes(300))
    assert [one.new for one in store.history["user/a"]] == [(b"%d" % n + bytes(300))[:256] for n in range(2, 12)]
    monkeypatch.setattr(node_store, "HISTORY_MAX", 11)
    write(store, "user/b", b"1")
    write(store, "user/b", b"2")
    assert list(store.history) == ["user/b"]
    assert store.history_records == 2


# ---- purge


def test_prepare_moves_later_stamps_above_it() -> None:
    store = new_store()
    done(store, store.prepare(5_000))
    write(store, "user/a", b"x")
    assert shown(store, "user/a") == "0|{me:(1,5001)}|x"
    assert store.prepare(4_000) == Decision()


def test_watermark_comes_with_the_last_part() -> None:
    store = new_store()
    write(store, "user/a", b"x", wall_us=5)
    part = [("user/a", entry("0|{a:(1,9), me:(1,5)}|D"))]
    done(store, store.receive_tombstones(part, 10, WALL, is_last=False))
    assert (store.get("user/a"), store.header.watermark_us) == (None, 0)
    done(store, store.receive_tombstones([], 10, WALL, is_last=True))
    assert store.header.watermark_us == 10


def test_erasure_and_effective_are_one_update() -> None:
    store = new_store(watermark_us=10, tentative_us=10)
    for key, text in (("a", "0|{a:(1,10)}|D"), ("b", "0|{a:(2,11)}|D"), ("c", "0|{a:(3,1)}|x")):
        receive(store, f"user/{key}", text, 10)
    decision = done(store, store.learn(10, 10))
    assert decision.update is not None
    assert (decision.update.erased, decision.update.header.effective_us) == (("user/a",), 10)
    assert sorted(store.entries) == ["user/b", "user/c"]
    assert store.learn(10, 10) == Decision()


def test_missed_round_shows_an_older_copy() -> None:
    assert new_store(watermark_us=10).learn(11, 11).older_copy


# ---- reset


def test_reset() -> None:
    store = new_store(counter=9, last_wall_us=77)
    receive(store, "user/old", "0|{a:(1,5)}|x")
    fresh = uuid.UUID(int=99)
    done(store, store.begin_reset(fresh, 30, 20))
    expected = NodeHeader(actor=fresh, tentative_us=30, effective_us=20, watermark_us=20, in_reset=True)
    assert (store.header, store.get("user/old")) == (expected, b"x")
    with pytest.raises(Unavailable):
        write(store, "user/a", b"x")
    after = store.restored({"user/new": entry("0|{a:(2,6)}|y")}, WALL)
    assert (after.header.in_reset, list(after.entries)) == (False, ["user/new"])
    assert list(store.restored(None, WALL).entries) == ["user/old"]


def test_joining_and_leaving_keep_own_entries_with_new_clocks() -> None:
    store = new_store(effective_us=50, watermark_us=50, tentative_us=50)
    write(store, node_key(HOST, "status"), b"mine")
    write(store, "user/a", b"x")
    left = store.left(uuid.UUID(int=99), 2_000)
    assert list(left.entries) == [node_key(HOST, "status")]
    assert (left.header.tentative_us, left.header.effective_us, left.header.watermark_us) == (0, 0, 0)
    done(left, left.begin_reset(ME, 60, 40, joins=True))
    copy = {node_key(HOST, "status"): entry("40|{a:(2,6)}|theirs"), "user/b": entry("0|{a:(3,7)}|y")}
    joined = left.restored(copy, 2_000)
    assert shown(joined, node_key(HOST, "status")) == "0|{me:(1,2000)}|mine"
    assert joined.get("user/b") == b"y"


def test_actor_is_published_once() -> None:
    store = new_store()
    done(store, store.publish_actor(WALL))
    assert store.get(node_key(HOST, "actor")) == str(ME).encode()
    assert store.publish_actor(WALL) == Decision()
