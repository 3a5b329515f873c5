"""What a shard offers to a driver that asks, in SUPPORTED. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ebla.cql.system_tables.node_info import CQL_VERSION, PARTITIONER
from ebla.wire.cql.compression import KNOWN
from ebla.wire.cql.frames import VERSION, VERSION_OLDEST

SHARDING_ALGORITHM = "biased-token-round-robin"
TABLET_ROUTING = "TABLETS_ROUTING_V1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingInfo:
    """By which drivers find the shard of a token that is in no tablet."""

    shard: int
    shard_count: int
    ignore_msb: int
    shard_aware_port: int
    """A connection from port p comes to shard p modulo the number of shards."""
    is_tls: bool = False


def supported_options(sharding: ShardingInfo) -> Mapping[str, Sequence[str]]:
    port_key = "SCYLLA_SHARD_AWARE_PORT_SSL" if sharding.is_tls else "SCYLLA_SHARD_AWARE_PORT"
    return {
        "CQL_VERSION": (CQL_VERSION,),
        "COMPRESSION": tuple(KNOWN),
        "PROTOCOL_VERSIONS": tuple(f"{version}/v{version}" for version in range(VERSION_OLDEST, VERSION + 1)),
        "SCYLLA_SHARD": (str(sharding.shard),),
        "SCYLLA_NR_SHARDS": (str(sharding.shard_count),),
        "SCYLLA_PARTITIONER": (PARTITIONER,),
        "SCYLLA_SHARDING_ALGORITHM": (SHARDING_ALGORITHM,),
        "SCYLLA_SHARDING_IGNORE_MSB": (str(sharding.ignore_msb),),
        port_key: (str(sharding.shard_aware_port),),
        TABLET_ROUTING: ("",),
    }
