"""What every process of one node is composed from, real or simulated, besides its `Environment`.

Each entry module (`control.py`, `shard.py`, `bulk.py`, `pipeline.py`) has a function that makes the configuration of
its process from this. Simulated nodes use the same functions and the same process classes. They give them simulated
ports and parts, and replace some limits with smaller ones.
"""

from dataclasses import dataclass
from functools import cached_property

from ebla.feed.shard_peers import ShardAddresses
from ebla.model.identity import Address, ClusterId, HostId, ShardNumber
from ebla.observe.event_reporter import EventReporter
from ebla.options import NodeOptions
from ebla.runtime.data_folder import DataFolder
from ebla.transfers.cluster_client import ClusterAddresses
from ebla.wire.frames import Introduction


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    options: NodeOptions
    host: HostId
    cluster: ClusterId
    cluster_name: str
    report: EventReporter
    pid: int

    @cached_property
    def folder(self) -> DataFolder:
        return DataFolder(self.options.folder)

    def introduction(self, process: str = "") -> Introduction:
        return Introduction(
            host=self.host, cluster=self.cluster, cluster_name=self.cluster_name, process=process or "control"
        )

    @property
    def control_socket(self) -> Address:
        return Address(str(self.folder.control_socket))

    @property
    def bulk_socket(self) -> Address:
        return Address(str(self.folder.bulk_socket))

    def shard_socket(self, number: ShardNumber) -> Address:
        return Address(str(self.folder.shard_socket(number)))

    @property
    def cluster_addresses(self) -> ClusterAddresses:
        return ClusterAddresses(
            shards=ShardAddresses(
                own=self.host, port_first=self.options.ports.shards_from, socket_of=self.shard_socket
            ),
            control_socket=self.control_socket,
            bulk_socket=self.bulk_socket,
            bulk_port=self.options.ports.bulk_verbs,
        )
