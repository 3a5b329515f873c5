"""Which replicas a read contacts: spans are split by replica set, and of each set the nearest replicas that the level
needs are chosen. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ebla.feed.topology_view import View
from ebla.model.consistency import ConsistencyLevel, RequiredReplies, is_met, required_replies
from ebla.model.errors import TooFewReplicas
from ebla.model.identity import HostId, Replica, TableId
from ebla.model.schema import TombstoneGc
from ebla.model.token import TOKEN_MAX, TOKEN_MIN
from ebla.request.write_plan import PlanCache, table_replicas
from ebla.storage.codec.key_codec import TOKEN_BYTES, decode_token, encode_token
from ebla.topology.routing.replica_sets import TableReplicas
from ebla.topology.tablet_map import ReplicaSet
from ebla.wire.row_messages import Span

_PLANS_MAX = 16_384


@dataclass(frozen=True, slots=True)
class ReplicaSpans:
    """Spans, ascending, that the same replica set serves: a page of them takes one request to each contact."""

    spans: tuple[Span, ...]
    replicas: ReplicaSet
    partition_rows_max: int = 0


def split_by_replicas(replicas: TableReplicas, spans: Sequence[Span]) -> Iterator[ReplicaSpans]:
    """In ascending order. Spans inside one token range of the ring come together; one that leaves the range is cut."""
    gathered: list[Span] = []
    stretch_end = TOKEN_MIN - 1
    shards: ReplicaSet = ()
    for span in spans:
        start, end = span
        while True:
            token = first_token(start)
            if token > stretch_end:
                if gathered:
                    yield ReplicaSpans(tuple(gathered), shards)
                    gathered = []
                shards, stretch_end = replicas.reading(token), replicas.same_readers_until(token)
            if last_token(end) <= stretch_end:
                gathered.append((start, end))
                break
            cut = encode_token(stretch_end + 1)
            gathered.append((start, cut))
            start = cut
    if gathered:
        yield ReplicaSpans(tuple(gathered), shards)


def replica_spans(
    replicas: TableReplicas, spans: Sequence[Span], partition_rows_max: int, *, is_reversed: bool
) -> Iterator[ReplicaSpans]:
    """In the order of the read."""
    parts: Iterable[ReplicaSpans] = split_by_replicas(replicas, spans)
    if is_reversed:
        parts = reversed(list(parts))
    for part in parts:
        yield ReplicaSpans(part.spans, part.replicas, partition_rows_max) if partition_rows_max else part


def is_one_token(spans: Sequence[Span]) -> bool:
    """Whether all spans are inside one token: a row with its head, slices, a partition. They always have one replica
    set."""
    start, end = spans[0][0], spans[-1][1]
    return end is not None and len(start) >= TOKEN_BYTES < len(end) and start[:TOKEN_BYTES] == end[:TOKEN_BYTES]


def first_token(start: bytes) -> int:
    """The least token of a key at or after this one. A start shorter than a token counts as if zeros followed."""
    return decode_token(start.ljust(TOKEN_BYTES, b"\0"))


def last_token(end: bytes | None) -> int:
    """The greatest token of a key before this one."""
    if end is None:
        return TOKEN_MAX
    token = first_token(end)
    return token if len(end) > TOKEN_BYTES else token - 1


@dataclass(frozen=True, slots=True)
class ReadReplicaPlan:
    """The replicas to contact, nearest first, and spares that may replace one of them."""

    contacts: ReplicaSet
    spares: ReplicaSet
    needed: tuple[RequiredReplies, ...]

    @property
    def required(self) -> int:
        return sum(each.count for each in self.needed)


@dataclass(frozen=True, slots=True)
class RepairRoute:
    """The replicas that must have what a read returned, and how many of them before it is returned. The same as for a
    write: reads that a topology change sends elsewhere must see it too."""

    targets: ReplicaSet
    needed: tuple[RequiredReplies, ...]
    is_changing: bool
    """Some targets are not read from at present."""


class ReadPlanner(PlanCache):
    """Read plans, each computed once."""

    def __init__(
        self, view: View, own: Replica, datacenter: str, down: frozenset[HostId], refused: frozenset[Replica]
    ) -> None:
        super().__init__(view, datacenter, down, refused)
        self._own = own
        self._plans: dict[tuple[TableId, ReplicaSet, ConsistencyLevel], ReadReplicaPlan] = {}

    def plan(self, table: TableId, replicas: ReplicaSet, level: ConsistencyLevel) -> ReadReplicaPlan:
        """Raises `TooFewReplicas`."""
        key = (table, replicas, level)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            plan = self._plans[key] = self._choose(table, replicas, level)
        return plan

    def datacenter_of(self, replica: Replica) -> str:
        return self._datacenters[replica.host]

    def repair_route(self, table: TableId, token: int, level: ConsistencyLevel) -> RepairRoute:
        sets = self.view.sets
        replicas = sets.of(table)
        writing = replicas.writing(token)
        targets = (*writing.natural, *writing.pending)
        needed = sets.required_write_replies(table, token, level, self._datacenter)
        reading = replicas.reading(token)
        return RepairRoute(targets, needed, any(each not in reading for each in targets))

    def _choose(self, table: TableId, replicas: ReplicaSet, level: ConsistencyLevel) -> ReadReplicaPlan:
        counts = table_replicas(self.view, table).counts(replicas)
        needed = required_replies(level, counts, self._datacenter)
        there = [each for each in replicas if not self.is_unavailable(each)]
        nearest = sort_by_distance(there, self._own, self._datacenter, self._datacenters)
        return choose_replicas(nearest, needed, self._datacenters)


def sort_by_distance(
    replicas: Iterable[Replica], own: Replica, datacenter: str, datacenters: Mapping[HostId, str]
) -> ReplicaSet:
    """This shard, this node, this datacenter, the others. Equal distances keep the order of the set, which differs
    from tablet to tablet and so spreads reads."""

    def distance(replica: Replica) -> int:
        if replica == own:
            return 0
        if replica.host == own.host:
            return 1
        return 2 if datacenters[replica.host] == datacenter else 3

    return tuple(sorted(replicas, key=distance))


def choose_replicas(
    there: ReplicaSet, needed: tuple[RequiredReplies, ...], datacenters: Mapping[HostId, str]
) -> ReadReplicaPlan:
    """As few available replicas as meet the level. Raises `TooFewReplicas`."""
    contacts: list[Replica] = []
    spares: list[Replica] = []
    lacking = {each.datacenter: each.count for each in needed}
    for replica in there:
        for name in (None, datacenters[replica.host]):
            if name in lacking:
                (contacts if lacking[name] > 0 else spares).append(replica)
                lacking[name] -= 1
                break
    missing = next(((name, count) for name, count in lacking.items() if count > 0), None)
    if missing is None and not contacts:
        missing = (None, 1)
    if missing is not None:
        required = max(1, sum(each.count for each in needed))
        where = "" if missing[0] is None else f" in {missing[0]}"
        raise TooFewReplicas(
            f"{required} replicas are needed for this read, {missing[1]} too few are up{where}",
            advice="bring nodes back or read at a lower consistency level",
            required=required,
            alive=len(contacts),
        )
    return ReadReplicaPlan(tuple(contacts), tuple(spares), needed)


def level_is_met(
    needed: Sequence[RequiredReplies], answered: Collection[Replica], datacenter_of: Callable[[Replica], str]
) -> bool:
    if needed and needed[0].datacenter is None:
        return len(answered) >= needed[0].count
    return is_met(needed, [datacenter_of(each) for each in answered])


def find_spare(
    spares: Iterable[Replica],
    missing: Replica,
    needed: Sequence[RequiredReplies],
    datacenter_of: Callable[[Replica], str],
) -> Replica | None:
    """The nearest spare whose answer counts for the same requirement as the missing one's."""
    if any(each.datacenter is None for each in needed):
        return next(iter(spares), None)
    wanted = datacenter_of(missing)
    return next((each for each in spares if datacenter_of(each) == wanted), None)


def replace_slow(
    chosen: ReadReplicaPlan, is_slow: Callable[[Replica], bool], datacenter_of: Callable[[Replica], str]
) -> ReadReplicaPlan:
    """Replaces contacts that seem to have stopped by spares; they become the last spares."""
    slow = [each for each in chosen.contacts if is_slow(each)]
    if not slow:
        return chosen
    contacts = list(chosen.contacts)
    spares = [each for each in chosen.spares if not is_slow(each)]
    others = [each for each in chosen.spares if is_slow(each)]
    for each in slow:
        instead = find_spare(spares, each, chosen.needed, datacenter_of)
        if instead is not None:
            contacts.remove(each)
            contacts.append(instead)
            spares.remove(instead)
            others.append(each)
    return ReadReplicaPlan(tuple(contacts), (*spares, *others), chosen.needed)


SINGLE_REPLICA_LEVELS = frozenset((ConsistencyLevel.ONE, ConsistencyLevel.LOCAL_ONE))
"""Levels that a single replica meets."""


def gc_before_s(view: View, table: TableId, now_s: int) -> int:
    """Tombstones and expired cells from before this time may be gone at some replicas and not at others; 0: at none.

    If they are purged after a repair, replicas hardly differ in when they do it. 0 is safe: it only finds more
    differences."""
    options = view.schemas[table].options
    match options.tombstone_gc:
        case TombstoneGc.TIMEOUT:
            return max(0, now_s - options.gc_grace_s)
        case TombstoneGc.IMMEDIATE:
            return now_s
        case TombstoneGc.DISABLED | TombstoneGc.REPAIR:
            return 0
