"""A node's member entry of group 0 and its row of the topology, from its options."""

from ebla.control.group0.formation import Group0Config
from ebla.group0.members import Member, MemberRole
from ebla.node.context import NodeContext
from ebla.topology.snapshot import Node


def group0_config(node: NodeContext) -> Group0Config:
    """With the member entry and the row of this node, as its options make them."""
    options, features = node.options, node.options.features
    return Group0Config(
        member=Member(
            host=node.host,
            role=MemberRole.LEARNER,
            address=options.control_address,
            datacenter=options.datacenter,
            rack=options.rack,
            features=features,
            release=node.release,
        ),
        node=Node(
            host=node.host,
            datacenter=options.datacenter,
            rack=options.rack,
            shard_count=options.shards,
            ignore_msb=0,
            release_version=node.release,
            address=options.address,
            num_tokens=options.num_tokens,
            supported_features=features,
        ),
        cluster=node.cluster,
        cluster_name=node.cluster_name,
        contacts=options.peer_addresses,
        replaced=options.replace,
        ignored=options.ignore_dead,
        folder=str(node.folder.group0.absolute()),
        limits=node.limits,
    )
