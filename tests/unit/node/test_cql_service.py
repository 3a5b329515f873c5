"""When a node takes clients."""

from tests.unit.topology.world import World, cluster, host

from ebla.node.cql_service import why_no_clients
from ebla.topology.commands import CompleteRequest, RaiseFence
from ebla.topology.states import NodeRequestKind, NodeState, TransitionState


def why(world: World, number: int, *, listens: bool) -> str:
    return why_no_clients(world.snapshot.nodes.get(host(number)), is_down=False, listens=listens)


def test_a_node_that_leaves_takes_requests_until_it_is_ordered_to_stop_and_does_not_listen_again() -> None:
    """A driver that has not heard of it yet may send to it after its tokens were taken."""
    world, coordinator = cluster(4)
    world.ask(NodeRequestKind.LEAVE, 2)
    for transition in (TransitionState.WRITE_BOTH_READ_OLD, TransitionState.WRITE_BOTH_READ_NEW):
        coordinator.until(transition)
        assert why(world, 2, listens=False) == ""
    coordinator.until(TransitionState.LEFT_TOKEN_RING)
    assert not world.snapshot.node(host(2)).takes_clients, "other nodes do not name it any more"
    assert why(world, 2, listens=True) == ""
    assert why(world, 2, listens=False) == "this node is not in the ring"
    world.do(RaiseFence(world.snapshot.version))
    world.do(CompleteRequest(host(2), world.now_ms))
    assert why(world, 2, listens=True) == "", "the order to stop comes next"
    coordinator.settle()
    assert world.snapshot.node(host(2)).state is NodeState.LEFT
    assert why(world, 2, listens=True) == "this node is not in the ring"


def test_an_excluded_node_a_new_one_and_an_unknown_one_take_no_clients() -> None:
    world, coordinator = cluster(3)
    row = world.snapshot.node(host(2))
    assert why_no_clients(row, is_down=True, listens=True) == "this node is excluded"
    assert why_no_clients(None, is_down=False, listens=False) == "this node is not in the ring"
    world.ask_to_join(world.node(9))
    coordinator.until(TransitionState.WRITE_BOTH_READ_NEW)
    assert why(world, 9, listens=False) == "this node is not in the ring", "it may be rolled back"
    coordinator.settle()
    assert why(world, 9, listens=False) == ""
