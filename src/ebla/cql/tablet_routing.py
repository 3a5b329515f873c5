"""Where a tablet is, for drivers that ask to be told when they came to the wrong shard. Pure."""

from collections.abc import Mapping, Sequence

from ebla.feed.topology_view import View
from ebla.model.cql_types import SCALARS, ListType, TupleType
from ebla.model.identity import Replica, TableId
from ebla.model.token import token_of
from ebla.model.values import encode

KEY = "tablets-routing-v1"
_REPLICA = TupleType((SCALARS["uuid"], SCALARS["int"]))
_SHAPE = TupleType((SCALARS["bigint"], SCALARS["bigint"], ListType(_REPLICA, True)))


def tablet_payload(view: View, table: TableId, keys: Sequence[bytes], own: Replica) -> Mapping[str, bytes]:
    """Nothing where the request came to a replica, names several partitions, or the table has no tablets."""
    return tablet_payload_of_token(view, table, token_of(keys[0]), own) if len(keys) == 1 else {}


def tablet_payload_of_token(view: View, table: TableId, token: int, own: Replica) -> Mapping[str, bytes]:
    tablets = view.snapshot.tablets.get(table)
    if tablets is None:
        return {}
    replicas = view.sets.of(table).reading(token)
    if own in replicas:
        return {}
    number = tablets.number_of(token)
    placed = [(replica.host, replica.shard) for replica in replicas]
    return {KEY: encode(_SHAPE, (tablets.after_token(number), tablets.last_token(number), placed))}
