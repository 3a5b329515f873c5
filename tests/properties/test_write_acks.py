"""A write is acknowledged only by enough replicas, and fails only if enough can no longer answer."""

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.topology.small_cluster import node, replica

from ebla.model.consistency import ConsistencyLevel, ReplicaCounts, RequiredReplies, is_met, required_replies
from ebla.model.identity import Replica
from ebla.request.write_acks import AckCounter
from ebla.request.write_plan import WriteReplicaPlan, plan_without, plan_write
from ebla.topology.routing.replica_sets import WriteReplicas, count_by_datacenter

NODES = [node(number, datacenter=f"dc{number % 3}") for number in range(1, 13)]
DATACENTERS = {each.host: each.datacenter for each in NODES}
REPLICAS = [replica(number) for number in range(1, 13)]


@st.composite
def writes(draw: st.DrawFn) -> tuple[WriteReplicas, tuple[RequiredReplies, ...], WriteReplicaPlan, frozenset[Replica]]:
    chosen = draw(st.lists(st.sampled_from(REPLICAS), min_size=1, max_size=8, unique=True))
    pending_count = draw(st.integers(0, min(2, len(chosen) - 1)))
    natural, pending = tuple(chosen[pending_count:]), tuple(chosen[:pending_count])
    level = draw(st.sampled_from(ConsistencyLevel))
    counts = ReplicaCounts(len(natural), count_by_datacenter(natural, DATACENTERS))
    needed = required_replies(level, counts, "dc1", count_by_datacenter(pending, DATACENTERS))
    away = frozenset(draw(st.lists(st.sampled_from(REPLICAS), max_size=4)))
    replicas = WriteReplicas(natural, pending)
    return replicas, needed, plan_write(replicas, needed, DATACENTERS, lambda replica: replica in away), away


def enough(needed: tuple[RequiredReplies, ...], answered: list[Replica]) -> bool:
    return is_met(needed, [DATACENTERS[each.host] for each in answered])


@given(writes())
def test_copies_go_to_everybody_who_is_there_and_the_level_is_counted_of_all(
    write: tuple[WriteReplicas, tuple[RequiredReplies, ...], WriteReplicaPlan, frozenset[Replica]],
) -> None:
    replicas, needed, plan, away = write
    everybody = [*replicas.natural, *replicas.pending]
    assert list(plan.targets) == [each for each in everybody if each not in away]
    assert sorted((*plan.targets, *plan.skipped)) == sorted(everybody)
    assert plan.is_available == (bool(plan.targets) and enough(needed, list(plan.targets)))


@given(writes(), st.data())
def test_met_and_impossible_are_said_exactly_when_they_are_so(
    write: tuple[WriteReplicas, tuple[RequiredReplies, ...], WriteReplicaPlan, frozenset[Replica]], data: st.DataObject
) -> None:
    _, needed, plan, _ = write
    if not plan.is_available:
        return
    acks = AckCounter(plan.rule)
    acknowledged: list[Replica] = []
    waiting = list(range(len(plan.targets)))
    for position in data.draw(st.permutations(waiting)):
        waiting.remove(position)
        was_met, was_impossible = acks.is_met, acks.is_impossible
        if data.draw(st.booleans()):
            acknowledged.append(plan.targets[position])
            assert acks.acknowledge(position) == (acks.is_met and not was_met)
        else:
            assert acks.refuse(position) == (acks.is_impossible and not was_impossible)
        may_answer = acknowledged + [plan.targets[each] for each in waiting]
        assert acks.is_met == enough(needed, acknowledged)
        assert acks.is_impossible == (not enough(needed, may_answer))
        assert acks.received <= acks.required
        assert (acks.received == acks.required) == acks.is_met


@given(writes(), st.data())
def test_copies_left_out_lower_nothing_that_must_come_back(
    write: tuple[WriteReplicas, tuple[RequiredReplies, ...], WriteReplicaPlan, frozenset[Replica]], data: st.DataObject
) -> None:
    _, needed, plan, _ = write
    left_out = frozenset(data.draw(st.lists(st.sampled_from(REPLICAS), max_size=3)))
    fewer = plan_without(plan, left_out)
    assert fewer.rule.needed == plan.rule.needed
    kept = [each for each in plan.targets if each not in left_out]
    assert list(fewer.targets) == kept
    assert fewer.is_available == (bool(kept) and enough(needed, kept))
