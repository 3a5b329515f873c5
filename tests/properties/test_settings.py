"""Settings of 2 to 6 model nodes converge, and what was purged never returns, whatever is late, repeated or aborted."""

import uuid
from collections.abc import Iterator
from random import Random

import pytest

from ebla.model.identity import HostId
from ebla.settings_store.entry import Entry, qualifies
from ebla.settings_store.merge import descends, merge
from ebla.settings_store.node_store import Decision, NodeHeader, ReceivedEntries, SettingsStore, Writer
from ebla.settings_store.purge import CollectedTombstones, qualifying_time

KEYS = tuple(f"user/{name}" for name in "abcd")
VALUES = (b"x", b"y", b"z")
OPERATIONS = 700
SEEDS = 300
LATE_MESSAGES_MAX = 60


class ModelCluster:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.wall_us = 1_000
        self.tentative_us = self.effective_us = 0
        self.attempt = 0
        self.late: list[ReceivedEntries] = []
        self.erased: dict[str, list[Entry]] = {key: [] for key in KEYS}
        self.round: Iterator[None] | None = None
        self.skews = [self.rng.randrange(-200, 200) for _ in range(self.rng.randrange(2, 7))]
        self.nodes = [self._new_node(number) for number in range(len(self.skews))]
        self.prepared_us = [0] * len(self.nodes)
        self.purges = 0

    def _new_node(self, number: int) -> SettingsStore:
        return SettingsStore(HostId(uuid.UUID(int=number + 1)), NodeHeader(actor=self._actor()))

    def _actor(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128))

    def apply(self, node: SettingsStore, decision: Decision) -> None:
        """Every resolved conflict becomes a message that may arrive whenever."""
        assert not decision.older_copy
        if decision.update is None:
            return
        for key in decision.update.erased:
            self.erased[key].append(node.entries[key])
        before = node.header
        node.apply(decision.update)
        assert node.header.counter >= before.counter
        assert node.header.last_wall_us >= before.last_wall_us
        if decision.pushed:
            self.send(node, decision.pushed)

    def send(self, node: SettingsStore, keys: tuple[str, ...]) -> None:
        entries = [(key, node.entries[key]) for key in keys if key in node.entries]
        self.late.append(ReceivedEntries(entries, node.header.watermark_us))
        del self.late[:-LATE_MESSAGES_MAX]

    # ---- operations

    def step(self) -> None:
        self.wall_us += self.rng.randrange(0, 20)
        operation = self.rng.choices(
            (self.write, self.deliver, self.exchange, self.learn, self.go_on_purging, self.lose_folder),
            (30, 40, 8, 6, 15, 1),
        )[0]
        operation()

    def write(self) -> None:
        number = self.rng.randrange(len(self.nodes))
        node = self.nodes[number]
        value = None if self.rng.random() < 0.45 else self.rng.choice(VALUES)
        decision = node.write({self.rng.choice(KEYS): value}, self.wall_us + self.skews[number], Writer())
        self.apply(node, decision)
        if decision.update is not None:
            assert node.header.last_wall_us > self.prepared_us[number], "a change fell under a prepared purge"

    def deliver(self) -> None:
        if self.late:
            self.receive(self.rng.choice(self.nodes), self.rng.choice(self.late))

    def receive(self, node: SettingsStore, message: ReceivedEntries) -> None:
        self.apply(node, node.receive([message], self.wall_us))

    def exchange(self) -> None:
        source, target = self.rng.sample(self.nodes, 2)
        self.receive(target, ReceivedEntries(list(source.entries.items()), source.header.watermark_us))

    def learn(self) -> None:
        node = self.rng.choice(self.nodes)
        self.apply(node, node.learn(self.tentative_us, self.effective_us))

    def lose_folder(self) -> None:
        """The node resets: it clears the purger, and takes a copy of another node with a sufficient watermark."""
        self.attempt += 1
        number = self.rng.randrange(len(self.nodes))
        sources = [
            one for one in self.nodes if one is not self.nodes[number] and one.header.watermark_us >= self.effective_us
        ]
        node = self._new_node(number)
        self.apply(node, node.begin_reset(self._actor(), self.tentative_us, self.effective_us))
        copy = dict(self.rng.choice(sources).entries) if sources else None
        self.nodes[number] = node.restored(copy, self.wall_us)

    # ---- purge, cut into its steps

    def go_on_purging(self) -> None:
        if self.round is None or self.rng.random() < 0.05:
            self.round = self.purge()
        if next(self.round, self) is self:
            self.round = None

    def purge(self) -> Iterator[None]:
        leader = self.rng.choice(self.nodes)
        until_us = self.tentative_us
        if self.tentative_us == self.effective_us:
            oldest_us = qualifying_time(leader.entries[key] for key in leader.tombstones)
            until_us = self.wall_us - self.rng.randrange(0, 300)
            if oldest_us is None or oldest_us > until_us or until_us <= self.effective_us:
                return
        self.tentative_us = until_us
        self.attempt += 1
        attempt = self.attempt
        collected = CollectedTombstones()
        for number in self._shuffled():
            yield
            if attempt != self.attempt:
                return
            node = self.nodes[number]
            self.apply(node, node.prepare(until_us))
            self.prepared_us[number] = until_us
            collected.add(node.purgeable(until_us))
        parts = [[one] for one in collected.sorted_entries()] or [[]]
        for number in self._shuffled():
            for part in parts:
                yield
                if attempt != self.attempt:
                    return
                node = self.nodes[number]
                is_last = part is parts[-1]
                self.apply(node, node.receive_tombstones(part, until_us, self.wall_us, is_last=is_last))
        yield
        if attempt == self.attempt:
            self.effective_us = until_us
            self.purges += 1

    def _shuffled(self) -> list[int]:
        return self.rng.sample(range(len(self.nodes)), len(self.nodes))

    # ---- the end

    def settle(self) -> None:
        while self.tentative_us > self.effective_us:
            for _ in self.purge():
                pass
        for node in self.nodes:
            self.apply(node, node.learn(self.tentative_us, self.effective_us))
        for _ in range(20):
            before = [dict(node.entries) for node in self.nodes]
            for target in self.nodes:
                for source in self.nodes:
                    if source is not target:
                        self.receive(target, ReceivedEntries(list(source.entries.items()), source.header.watermark_us))
            if before == [node.entries for node in self.nodes]:
                return
        pytest.fail("the nodes do not come to rest")

    def check(self) -> None:
        first = self.nodes[0].entries
        assert all(node.entries == first for node in self.nodes)
        for key, tombstones in self.erased.items():
            entry = first.get(key)
            if entry is None:
                continue
            assert not qualifies(entry, self.effective_us)
            for tombstone in tombstones:
                below = descends(tombstone.clock, entry.clock) and not descends(entry.clock, tombstone.clock)
                came_back = entry.value is not None and entry.purged_us == tombstone.purged_us and below
                assert not came_back, f"{key} was deleted and erased, and is back"


def test_nodes_converge_and_purged_settings_stay_away() -> None:
    purges = 0
    for seed in range(SEEDS):
        cluster = ModelCluster(seed)
        for _ in range(OPERATIONS):
            cluster.step()
        cluster.settle()
        cluster.check()
        purges += cluster.purges
    assert OPERATIONS * SEEDS >= 100_000
    assert purges > SEEDS, "a test of purges needs some"


def test_merge_of_reachable_entries() -> None:
    """Commutative and idempotent; the value is one of the two; no actor is invented; row 8 keeps the clock."""
    for seed in range(30):
        cluster = ModelCluster(seed)
        entries: list[Entry] = []
        for _ in range(200):
            cluster.step()
            if cluster.rng.random() < 0.2:
                entry = cluster.rng.choice(cluster.nodes).entries.get(KEYS[0])
                entries += () if entry is None else (entry,)
        for local in entries:
            for remote in entries:
                check_pair(local, remote)


def check_pair(local: Entry, remote: Entry) -> None:
    merged = merge(local, remote, 0)
    back = merge(remote, local, 0)
    assert (merged.entry, merged.pushed) == (back.entry, back.pushed)
    assert merged.entry is not None
    assert merge(merged.entry, merged.entry, 0).entry == merged.entry
    assert merged.entry.value in (local.value, remote.value)
    actors = {stamp.actor for one in (local, remote) for stamp in one.clock}
    assert {stamp.actor for stamp in merged.entry.clock} <= actors
    if merged.row in (4, 6, 7):
        assert descends(merged.entry.clock, local.clock)
        assert descends(merged.entry.clock, remote.clock)
        assert merge(local, merged.entry, 0).entry == merged.entry
    else:
        assert merged.entry in (local, remote)
