"""What every process of one node is composed from, real or simulated, besides its `Environment`.

The process classes (`*_process.py`) take it and read the node's options from it. Simulated nodes use the same classes
with simulated ports and parts, and with smaller limits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ebla.feed.shard_peers import ShardAddresses
from ebla.model.identity import Address, ClusterId, HostId, ShardNumber
from ebla.observe.event_reporter import EventReporter
from ebla.options import NodeLimits, NodeOptions
from ebla.ports.environment import Environment
from ebla.runtime.data_folder import DataFolder
from ebla.runtime.death_signal import kill_own_process
from ebla.transfers.cluster_client import ClusterAddresses
from ebla.version import release
from ebla.wire.frames import Introduction
from ebla.wire.peers import PeersContext
from ebla.wire.verbs import IdentityAnswer


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    options: NodeOptions
    host: HostId
    cluster: ClusterId
    cluster_name: str
    report: EventReporter
    pid: int
    release: str = field(default_factory=release)
    crash: Callable[[], object] = kill_own_process
    """Ends the process at once, as a power cut would."""

    @cached_property
    def folder(self) -> DataFolder:
        return DataFolder(self.options.folder)

    @property
    def limits(self) -> NodeLimits:
        return self.options.limits

    def introduction(self, process: str) -> Introduction:
        return Introduction(
            host=self.host,
            cluster=self.cluster,
            cluster_name=self.cluster_name,
            process=process,
            features=self.options.features,
        )

    def peers_context(self, environment: Environment, process: str) -> PeersContext:
        """For the calls of a process of this node."""
        return PeersContext(
            transport=environment.transport,
            rng=environment.rng,
            introduction=self.introduction(process),
            report=self.report,
        )

    def identity_answer(self, process: str) -> IdentityAnswer:
        return IdentityAnswer(
            host=self.host, cluster=self.cluster, cluster_name=self.cluster_name, process=process, pid=self.pid
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
