import pytest

from ebla.request.write_acks import AckCounter, make_ack_rule

TWO_OF_THREE = make_ack_rule([2], [(0,)] * 3)
TWO_EACH = make_ack_rule([2, 2], [(0,)] * 3 + [(1,)] * 3)


def test_the_acknowledgement_that_makes_it_full_says_so_once() -> None:
    acks = AckCounter(TWO_OF_THREE)
    assert [acks.acknowledge(position) for position in (2, 0, 1)] == [False, True, False]
    assert acks.is_met
    assert acks.received == 2, "what the level did not ask for is not counted"


def test_the_refusal_that_makes_it_impossible_says_so_once() -> None:
    acks = AckCounter(TWO_OF_THREE)
    assert [acks.refuse(position) for position in (2, 0, 1)] == [False, True, False]
    assert acks.is_impossible
    assert not acks.is_met


def test_a_datacenter_does_not_make_up_for_another() -> None:
    acks = AckCounter(TWO_EACH)
    for position in (0, 1, 2, 3):
        assert not acks.acknowledge(position)
    assert (acks.received, acks.required) == (3, 4)
    assert not acks.refuse(4)
    assert acks.acknowledge(5)


def test_each_datacenter_alone_can_make_it_impossible() -> None:
    acks = AckCounter(TWO_EACH)
    assert not acks.refuse(0)
    assert not acks.refuse(3)
    assert acks.refuse(4)


def test_copies_that_no_requirement_counts_change_nothing() -> None:
    acks = AckCounter(make_ack_rule([1], [(), (0,)]))
    assert not acks.acknowledge(0)
    assert not acks.is_met
    assert acks.acknowledge(1)


def test_a_position_answers_once() -> None:
    acks = AckCounter(TWO_OF_THREE)
    acks.acknowledge(1)
    with pytest.raises(AssertionError, match="replies once"):
        acks.acknowledge(1)
    with pytest.raises(AssertionError, match="replies once"):
        acks.refuse(1)


def test_a_rule_can_be_met_only_by_enough_copies_and_never_by_none() -> None:
    assert TWO_OF_THREE.can_be_met
    assert not make_ack_rule([2], [(0,)]).can_be_met
    assert not make_ack_rule([1, 1], [(0,), (0,)]).can_be_met
    assert not make_ack_rule([0], []).can_be_met
