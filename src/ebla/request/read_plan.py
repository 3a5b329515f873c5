"""Which replicas a read asks: spans cut into pieces with one replica set each, and of a set those that a level needs,
nearest first. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from ebla.model.consistency import LEVELS, ConsistencyLevel, Needed, Scope, is_met
from ebla.model.errors import NotFound, TooFewReplicas
from ebla.model.identity import HostId, Replica, TableId
from ebla.model.schema import TombstoneGc
from ebla.model.token import TOKEN_MAX, TOKEN_MIN
from ebla.storage.key_codec import TOKEN_BYTES, decode_token, encode_token
from ebla.topology.replica_sets import TableReplicas
from ebla.topology.states import NodeState
from ebla.topology.tablet_map import ReplicaSet
from ebla.wire.row_messages import Span
from ebla.wire.topology_view import View


@dataclass(frozen=True, slots=True)
class Piece:
    """Spans, ascending, that the same shards serve: a page of it takes one request to each."""

    spans: tuple[Span, ...]
    replicas: ReplicaSet
    partition_rows_max: int = 0


def cut_into_pieces(replicas: TableReplicas, spans: Sequence[Span]) -> Iterator[Piece]:
    """In ascending order. Spans of one stretch of the ring come together, up to one that goes on beyond it."""
    gathered: list[Span] = []
    stretch_end = TOKEN_MIN - 1
    shards: ReplicaSet = ()
    for span in spans:
        start, end = span
        while True:
            token = first_token(start)
            if token > stretch_end:
                if gathered:
                    yield Piece(tuple(gathered), shards)
                    gathered = []
                shards, stretch_end = replicas.reading(token), replicas.reading_until(token)
            if last_token(end) <= stretch_end:
                gathered.append((start, end))
                break
            cut = encode_token(stretch_end + 1)
            gathered.append((start, cut))
            start = cut
    if gathered:
        yield Piece(tuple(gathered), shards)


def pieces_of(
    replicas: TableReplicas, spans: Sequence[Span], partition_rows_max: int, *, is_reversed: bool
) -> Iterator[Piece]:
    """In the order of the read."""
    found: Iterable[Piece] = cut_into_pieces(replicas, spans)
    if is_reversed:
        found = reversed(list(found))
    for piece in found:
        yield Piece(piece.spans, piece.replicas, partition_rows_max) if partition_rows_max else piece


def is_one_token(spans: Sequence[Span]) -> bool:
    """A single span inside one token: a row, a slice or a partition. It is one piece, wherever stretches end."""
    if len(spans) != 1:
        return False
    start, end = spans[0]
    return end is not None and len(start) >= TOKEN_BYTES and start[:TOKEN_BYTES] == end[:TOKEN_BYTES]


def first_token(start: bytes) -> int:
    """The least token of a key at or after this one. A shorter start is one of zeros behind it."""
    return decode_token(start.ljust(TOKEN_BYTES, b"\0"))


def last_token(end: bytes | None) -> int:
    """The greatest token of a key before this one."""
    if end is None:
        return TOKEN_MAX
    token = first_token(end)
    return token if len(end) > TOKEN_BYTES else token - 1


@dataclass(frozen=True, slots=True)
class Chosen:
    """Whom to ask, the nearest first, and who may stand in for one of them."""

    asked: ReplicaSet
    spares: ReplicaSet
    needed: tuple[Needed, ...]

    @property
    def required(self) -> int:
        return sum(each.count for each in self.needed)


class ReadPlanner:
    """Choices at one version, with those down that are down now; each is made once."""

    def __init__(self, view: View, own: Replica, datacenter: str, away: Callable[[Replica], bool]) -> None:
        self._view = view
        self._own = own
        self._datacenter = datacenter
        self._away = away
        self._chosen: dict[tuple[TableId, ReplicaSet, ConsistencyLevel], Chosen] = {}

    def chosen(self, table: TableId, replicas: ReplicaSet, level: ConsistencyLevel, token: int) -> Chosen:
        """Raises `TooFewReplicas`."""
        key = (table, replicas, level)
        found = self._chosen.get(key)
        if found is None:
            found = self._chosen[key] = self._choose(table, replicas, level, token)
        return found

    def datacenter_of(self, replica: Replica) -> str:
        return self._view.snapshot.node(replica.host).datacenter

    def _choose(self, table: TableId, replicas: ReplicaSet, level: ConsistencyLevel, token: int) -> Chosen:
        snapshot = self._view.snapshot
        needed = self._view.sets.read_answers_needed(table, token, level, self._datacenter)
        datacenters = {each.host: snapshot.node(each.host).datacenter for each in replicas}
        there = [
            each for each in replicas if snapshot.node(each.host).state is not NodeState.LEFT and not self._away(each)
        ]
        return choose(by_distance(there, self._own, self._datacenter, datacenters), needed, datacenters)


def by_distance(
    replicas: Iterable[Replica], own: Replica, datacenter: str, datacenters: Mapping[HostId, str]
) -> ReplicaSet:
    """The own shard, the own node, the own datacenter, the others; among equals in the order of the set, which differs
    from tablet to tablet and so spreads the reads."""

    def distance(replica: Replica) -> int:
        if replica == own:
            return 0
        if replica.host == own.host:
            return 1
        return 2 if datacenters[replica.host] == datacenter else 3

    return tuple(sorted(replicas, key=distance))


def choose(there: ReplicaSet, needed: tuple[Needed, ...], datacenters: Mapping[HostId, str]) -> Chosen:
    """As few of those that are there as meet the level. Raises `TooFewReplicas`."""
    asked: list[Replica] = []
    spares: list[Replica] = []
    lacking = {each.datacenter: each.count for each in needed}
    for replica in there:
        for name in (None, datacenters[replica.host]):
            if name in lacking:
                (asked if lacking[name] > 0 else spares).append(replica)
                lacking[name] -= 1
                break
    missing = next(((name, count) for name, count in lacking.items() if count > 0), None)
    if missing is not None:
        required = sum(each.count for each in needed)
        where = "" if missing[0] is None else f" in {missing[0]}"
        raise TooFewReplicas(
            f"{required} replicas are needed for this read, {missing[1]} too few are up{where}",
            advice="bring nodes back or read at a lower consistency level",
            required=required,
            alive=len(asked),
        )
    return Chosen(tuple(asked), tuple(spares), needed)


def level_is_met(needed: Sequence[Needed], answered: Iterable[Replica], datacenters: Callable[[Replica], str]) -> bool:
    return is_met(needed, [datacenters(each) for each in answered])


def stand_in(
    spares: Iterable[Replica], missing: Replica, plan: tuple[Sequence[Needed], Callable[[Replica], str]]
) -> Replica | None:
    """The nearest spare whose answer counts where the missing one's would have."""
    needed, datacenter_of = plan
    if any(each.datacenter is None for each in needed):
        return next(iter(spares), None)
    wanted = datacenter_of(missing)
    return next((each for each in spares if datacenter_of(each) == wanted), None)


ANY_ONE = frozenset(
    level for level, rule in LEVELS.items() if rule.count == 1 and rule.scope is not Scope.EACH_DATACENTER
)
"""Levels that one near replica meets alone."""


def gc_before_s(view: View, table: TableId, now_s: int) -> int:
    """Before that, tombstones and expired cells may be gone at some replicas and not at others; 0: at none.

    Where they go after a repair the replicas hardly differ in when, and 0 is safe: it only finds more differences."""
    options = view.schemas[table].options
    match options.tombstone_gc:
        case TombstoneGc.TIMEOUT:
            return max(0, now_s - options.gc_grace_s)
        case TombstoneGc.IMMEDIATE:
            return now_s
        case TombstoneGc.DISABLED | TombstoneGc.REPAIR:
            return 0


def replicas_of(view: View, table: TableId) -> TableReplicas:
    """Raises `NotFound`."""
    if table not in view.schemas:
        raise NotFound(f"there is no table {table}")
    return view.sets.of(table)


def away_of(down: Set[HostId], refused: Set[Replica]) -> Callable[[Replica], bool]:
    """Who is not asked: nodes that are held to be down, and shards nobody listens at."""
    return lambda replica: replica.host in down or replica in refused
