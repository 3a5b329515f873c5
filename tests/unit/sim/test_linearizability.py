"""The checker against known histories, and against trying every order of small random ones."""

import itertools
import random

import pytest

from ebla.sim.checkers import linearizability
from ebla.sim.checkers.history import ClientOperation, OperationHistory
from ebla.sim.checkers.linearizability import SearchGivenUp, find_violation
from ebla.sim.checkers.models import RegisterAdd, RegisterCall, RegisterModel, RegisterRead, RegisterWrite, result_of

MODEL = RegisterModel()


def op(
    call: RegisterCall, result: int | None, invoked: float, returned: float | None, key: str = ""
) -> ClientOperation:
    return ClientOperation(client="c", key=key, call=call, result=result, invoked=invoked, returned=returned)


def is_right(*operations: ClientOperation) -> bool:
    return find_violation(operations, MODEL) is None


def test_an_empty_history_is_right() -> None:
    assert is_right()
    assert is_right(op(RegisterWrite(1), None, 0, None))


def test_one_after_another() -> None:
    assert is_right(op(RegisterWrite(1), 1, 0, 1), op(RegisterAdd(2), 3, 2, 3), op(RegisterRead(), 3, 4, 5))
    assert not is_right(op(RegisterWrite(1), 1, 0, 1), op(RegisterRead(), 0, 2, 3))


def test_what_overlaps_may_come_in_either_order() -> None:
    write, other = op(RegisterWrite(1), 1, 0, 10), op(RegisterWrite(2), 2, 0, 10)
    assert is_right(write, other, op(RegisterRead(), 1, 11, 12))
    assert is_right(write, other, op(RegisterRead(), 2, 11, 12))
    assert not is_right(write, other, op(RegisterRead(), 1, 11, 12), op(RegisterRead(), 2, 13, 14))


def test_a_read_may_see_an_overlapping_write_but_then_not_unsee_it() -> None:
    write = op(RegisterWrite(1), 1, 0, 10)
    assert is_right(write, op(RegisterRead(), 0, 1, 2), op(RegisterRead(), 1, 3, 4))
    assert not is_right(write, op(RegisterRead(), 1, 1, 2), op(RegisterRead(), 0, 3, 4))


def test_an_unknown_outcome_may_happen_late_or_never_but_once() -> None:
    add = op(RegisterAdd(5), None, 0, None)
    assert is_right(add, op(RegisterRead(), 0, 1, 2), op(RegisterRead(), 0, 3, 4))
    assert is_right(add, op(RegisterRead(), 0, 1, 2), op(RegisterRead(), 5, 30, 40))
    assert not is_right(add, op(RegisterRead(), 5, 1, 2), op(RegisterRead(), 0, 3, 4))
    assert not is_right(add, op(RegisterRead(), 10, 1, 2))
    assert not is_right(op(RegisterAdd(5), None, 3, None), op(RegisterRead(), 5, 1, 2)), "not before it was asked for"
    assert is_right(op(RegisterRead(), None, 0, None), op(RegisterRead(), 0, 1, 2))


def test_keys_are_judged_apart_and_named() -> None:
    good = op(RegisterWrite(1), 1, 0, 1, key="a")
    assert is_right(good, op(RegisterRead(), 0, 2, 3, key="b"))
    violation = find_violation(
        [good, op(RegisterRead(), 0, 2, 3, key="a"), op(RegisterRead(), 0, 2, 3, key="b")], MODEL
    )
    assert violation is not None
    assert (violation.key, violation.done, violation.total, violation.state) == ("a", 1, 2, 1)
    assert "none of these can follow:\n  c a RegisterRead() -> 0 [2, 3]" in str(violation)


def test_a_search_that_decides_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "CONFIGURATIONS_MAX", 20)
    history = [op(RegisterWrite(number), number, 0, 10) for number in range(8)]
    history.append(op(RegisterRead(), 99, 11, 12))
    with pytest.raises(SearchGivenUp, match="20 configurations of 9 operations"):
        find_violation(history, MODEL)


def draw_call(rng: random.Random, values: int) -> RegisterCall:
    calls: list[RegisterCall] = [RegisterRead(), RegisterWrite(rng.randrange(values)), RegisterAdd(1)]
    return rng.choice(calls)


def by_trying_every_order(operations: list[ClientOperation]) -> bool:
    unknown = [operation for operation in operations if operation.returned is None]
    known = [operation for operation in operations if operation.returned is not None]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *chosen]):
                if _fits(order):
                    return True
    return False


def _fits(order: tuple[ClientOperation, ...]) -> bool:
    value = 0
    for place, operation in enumerate(order):
        if any(later.returned is not None and later.returned < operation.invoked for later in order[place:]):
            return False
        fits, value = MODEL.step(value, operation)
        if not fits:
            return False
    return True


def test_it_agrees_with_trying_every_order() -> None:
    rng = random.Random(4)
    verdicts = [0, 0]
    for _ in range(400):
        history: list[ClientOperation] = []
        for _ in range(rng.randrange(1, 6)):
            call = draw_call(rng, 3)
            invoked = rng.randrange(20)
            returned = None if rng.random() < 0.2 else invoked + rng.randrange(1, 10) + 0.5
            result = call.value if isinstance(call, RegisterWrite) else rng.randrange(3)
            history.append(op(call, result, invoked, returned))
        expected = by_trying_every_order(history)
        assert is_right(*history) == expected, [str(operation) for operation in history]
        verdicts[expected] += 1
    assert min(verdicts) > 80, "both verdicts are tried"


def test_a_thousand_operations_of_ten_clients() -> None:
    history = large_history(seed=1)
    assert find_violation(history, MODEL) is None
    spoiled = history[600]
    wrong = ClientOperation(
        client=spoiled.client, key="", call=spoiled.call, result=-7, invoked=spoiled.invoked, returned=spoiled.returned
    )
    assert find_violation([*history[:600], wrong, *history[601:]], MODEL) is not None


def large_history(seed: int) -> list[ClientOperation]:
    """Ten clients that never pause; each operation takes effect at some moment between call and return."""
    rng = random.Random(seed)
    free_at = [0.0] * 10
    moments: list[tuple[float, float, float, int, RegisterCall]] = []
    for _ in range(1000):
        client = free_at.index(min(free_at))
        invoked = free_at[client] + rng.random() * 0.1
        moment = invoked + rng.random()
        free_at[client] = moment + rng.random()
        call = draw_call(rng, 1000)
        moments.append((moment, invoked, free_at[client], client, call))
    value = 0
    history: list[ClientOperation] = []
    for _, invoked, returned, client, call in sorted(moments, key=lambda each: each[0]):
        value = result_of(call, value)
        history.append(
            ClientOperation(client=f"c{client}", key="", call=call, result=value, invoked=invoked, returned=returned)
        )
    return history


def test_a_history_counts_events() -> None:
    history = OperationHistory()
    first = history.invoke("a", RegisterWrite(1))
    second = history.invoke("b", RegisterRead())
    third = history.invoke("c", RegisterAdd(1))
    history.complete(second, 0)
    history.complete(first, 1)
    history.withdraw(third)
    left_open = history.invoke("d", RegisterAdd(2), key="k")
    operations = history.operations()
    assert [(o.client, o.invoked, o.returned) for o in operations] == [("a", 1, 5), ("b", 2, 4), ("d", left_open, None)]
    assert operations[2].key == "k"
    assert str(operations[2]) == "d k RegisterAdd(amount=2) never answered [6, inf]"
