"""What the log of a new node says of its join."""

from tests.unit.topology.world import cluster, host

from ebla.control.topology.own_row import JoinLog
from ebla.topology.states import NodeState, TransitionState

NEW = 4


def test_each_state_of_a_join_and_its_end_are_logged_once() -> None:
    world, coordinator = cluster(3)
    log, said = JoinLog(), []

    def look() -> None:
        news = log.news(world.snapshot.nodes.get(host(NEW)), world.snapshot)
        if news is not None:
            said.append(news)

    look()
    world.ask_to_join(world.node(NEW))
    while world.snapshot.node(host(NEW)).state is not NodeState.NORMAL:
        coordinator.step()
        look()
        look()
    states = [fields["transition"] for event, fields in said if event == "join.state"]
    assert states == [
        TransitionState.JOIN_GROUP0,
        TransitionState.COMMIT_CDC_GENERATION,
        TransitionState.WRITE_BOTH_READ_OLD,
        TransitionState.WRITE_BOTH_READ_NEW,
    ]
    (done,) = [fields for event, fields in said if event == "join.done"]
    assert set(done) == {"seconds", "bytes", "ranges"}
    assert said[-1][0] == "join.done"


def test_a_member_that_starts_again_has_not_joined() -> None:
    world, _ = cluster(3)
    assert JoinLog().news(world.snapshot.node(host(2)), world.snapshot) is None
