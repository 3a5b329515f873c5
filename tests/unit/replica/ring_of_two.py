"""A ring of two nodes, of which the second one joins and leaves: what the first one loses and gains by that."""

import dataclasses

from tests.unit.replica.shard_rig import small_cluster
from tests.unit.storage.small_table import partition_token
from tests.unit.storage.store_rig import plain
from tests.unit.topology.small_cluster import network, node, request_id

from ebla.model.identity import TopologyVersion
from ebla.model.token import Token, TokenRange
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.snapshot import Keyspace, Snapshot, TopologyState
from ebla.topology.states import NodeState, TransitionState

B_TOKEN, A_TOKEN = Token(0), Token(1 << 62)
TAKEN = TokenRange(A_TOKEN, B_TOKEN)
"""The range that B takes when it joins, and that A gains when B leaves."""
OURS = next(plain(number, 0, 5) for number in range(40) if partition_token(number) not in TAKEN)
OLD, FRESH = [plain(number, 0, 5) for number in range(40) if partition_token(number) in TAKEN][:2]

ALONE = (NodeState.NONE, None)
JOINING = (NodeState.BOOTSTRAPPING, TransitionState.WRITE_BOTH_READ_OLD)
JOINED_READ_NEW = (NodeState.BOOTSTRAPPING, TransitionState.WRITE_BOTH_READ_NEW)
JOINED = (NodeState.NORMAL, None)
LEAVING = (NodeState.DECOMMISSIONING, TransitionState.WRITE_BOTH_READ_OLD)
LEAVING_READ_NEW = (NodeState.DECOMMISSIONING, TransitionState.WRITE_BOTH_READ_NEW)
LEFT = (NodeState.LEFT, None)
ROLLING_BACK = (NodeState.DECOMMISSIONING, TransitionState.ROLLBACK_TO_NORMAL)


def at(version: int, second: tuple[NodeState, TransitionState | None], request: int = 0) -> Snapshot:
    """This node, which owned the whole ring, and B. `request`: of the operation, if B joins or leaves repeatedly."""
    state, transition = second
    of_request = None if transition is None else request_id(100 * list(NodeState).index(state) + request)
    nodes = [node(1, tokens=(A_TOKEN,)), node(2, state=state, tokens=(B_TOKEN,), request=of_request)]
    return dataclasses.replace(
        small_cluster(),
        state=TopologyState(version=TopologyVersion(version), fence=TopologyVersion(1), transition=transition),
        nodes=FrozenMap({one.host: one for one in nodes}),
        keyspaces=FrozenMap({"ks": Keyspace(name="ks", replication=network(dc1=1), on_tablets=False)}),
    )
