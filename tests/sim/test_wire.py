"""The RPC client and server on the simulated network, under every fault: INV-WIRE-1 to INV-WIRE-5."""

from collections.abc import Callable

import pytest

from ebla.model.errors import ConnectionLost, Overloaded
from ebla.sim.checkers.calls import CallLedger
from ebla.sim.scenario import run_scenario
from ebla.sim.scenarios.wire import SCENARIO


@pytest.mark.parametrize("seed", range(1, 7))
def test_calls_keep_their_promises_under_every_fault(seed: int) -> None:
    outcome = run_scenario(SCENARIO, seed)
    assert outcome.failure is None, outcome.report


def test_one_seed_is_one_run() -> None:
    assert run_scenario(SCENARIO, 3, 10.0).trace == run_scenario(SCENARIO, 3, 10.0).trace


def runs_twice(ledger: CallLedger) -> None:
    ledger.ran(1)
    ledger.ran(1)


def refused_after_it_ran(ledger: CallLedger) -> None:
    ledger.ran(1)
    ledger.failed(1, Overloaded("no room"))


def runs_after_it_was_refused(ledger: CallLedger) -> None:
    ledger.failed(1, Overloaded("no room"))
    ledger.ran(1)


def given_anothers_answer(ledger: CallLedger) -> None:
    ledger.ran(1)
    ledger.was_answered(1, 2)


def answered_by_nobody(ledger: CallLedger) -> None:
    ledger.was_answered(1, 1)


def ends_late(ledger: CallLedger) -> None:
    ledger.ended(1, 1051, 1000)


def goes_on_too_long(ledger: CallLedger) -> None:
    ledger.outlived(1)


@pytest.mark.parametrize(
    ("story", "label"),
    [
        (runs_twice, "INV-WIRE-1"),
        (refused_after_it_ran, "INV-WIRE-2"),
        (runs_after_it_was_refused, "INV-WIRE-2"),
        (given_anothers_answer, "INV-WIRE-3"),
        (answered_by_nobody, "INV-WIRE-3"),
        (ends_late, "INV-WIRE-4"),
        (goes_on_too_long, "INV-WIRE-5"),
    ],
)
def test_the_ledger_sees_broken_promises(story: Callable[[CallLedger], None], label: str) -> None:
    complaints: list[str] = []
    story(CallLedger(complaints.append, 50))
    assert [text.partition(":")[0] for text in complaints] == [label]


def test_the_ledger_is_content_with_what_may_happen() -> None:
    complaints: list[str] = []
    ledger = CallLedger(complaints.append, 50)
    ledger.ran(1)
    ledger.was_answered(1, 1)
    ledger.ran(2)
    ledger.failed(2, ConnectionLost("cut"))
    ledger.failed(3, Overloaded("no room"))
    ledger.ended(1, 1050, 1000)
    assert complaints == []
    assert (ledger.answered, ledger.unknown, ledger.refused) == (1, 1, 1)
