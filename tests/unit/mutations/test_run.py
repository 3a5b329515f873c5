"""The machinery of mutations tells catches, escapes and errors apart."""

from pathlib import Path

import pytest
from tests.mutations import __main__ as command
from tests.mutations.framework import Mutation, PytestCheck, UnfitMutation, all_mutations, choose
from tests.mutations.run import CheckRun, Result, Verdict, judge, try_baseline, try_mutation

TEXT = "return (end - start) % RING_TOKENS"


def mutation(**changes: object) -> Mutation:
    fields: dict[str, object] = {
        "name": "sample",
        "module": "ebla.model.token",
        "function": "distance",
        "find": TEXT,
        "replace": "return end - start",
        "check": PytestCheck("tests/unit/model/test_token.py::test_the_ring_goes_round"),
        "why": "a sample",
    }
    return Mutation(**{**fields, **changes})  # type: ignore[arg-type]  # the fields are given by name above


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"find": "not there at all"}, "occurs 0 times"),
        ({"find": "end"}, "2 times in distance, not once"),
        ({"replace": "return ("}, "does not compile"),
        ({"replace": f"{TEXT}  # the same"}, "changes nothing"),
        ({"module": "ebla.nowhere"}, "no module"),
        ({"function": "nowhere"}, "there is no nowhere"),
    ],
    ids=["gone", "ambiguous", "syntax", "no-change", "no-module", "no-function"],
)
def test_one_that_does_not_fit_is_an_error(changes: dict[str, object], complaint: str) -> None:
    unfit = mutation(**changes)
    with pytest.raises(UnfitMutation, match=complaint):
        unfit.mutated_source()
    assert try_mutation(unfit).verdict is Verdict.ERROR


def test_a_caught_mutation_names_the_test() -> None:
    result = try_mutation(mutation())
    assert result.verdict is Verdict.CAUGHT
    assert "test_the_ring_goes_round" in result.detail


def test_a_mutation_nobody_notices_escapes() -> None:
    blind = PytestCheck("tests/unit/model/test_token.py::test_composite_keys_have_bounds")
    assert try_mutation(mutation(check=blind)).verdict is Verdict.ESCAPED


def test_a_module_that_no_longer_imports_is_not_a_catch() -> None:
    result = try_mutation(
        mutation(function="", find="TOKEN_MAX: Final = Token(2**63 - 1)", replace="TOKEN_MAX: Final = missing")
    )
    assert result.verdict is Verdict.ERROR
    assert "NameError" in result.detail


def run_of(exit_code: int | None, *, applied: bool = True, broken: str = "") -> CheckRun:
    return CheckRun(exit_code=exit_code, output="FAILED this::test - why", applied=applied, broken=broken)


@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        (run_of(1), Verdict.CAUGHT),
        (run_of(0), Verdict.ESCAPED),
        (run_of(None), Verdict.ESCAPED),
        (run_of(2), Verdict.ERROR),
        (run_of(5), Verdict.ERROR),
        (run_of(-11), Verdict.ERROR),
        (run_of(1, applied=False), Verdict.ERROR),
        (run_of(1, broken="SyntaxError"), Verdict.ERROR),
    ],
)
def test_only_a_failing_check_with_the_bug_in_it_is_a_catch(run: CheckRun, verdict: Verdict) -> None:
    assert judge(run, mutation())[0] is verdict


def names_of(*asked: str) -> list[str]:
    return [chosen.name for chosen in choose(asked)]


def test_an_area_is_chosen_by_its_file_and_one_by_its_name() -> None:
    assert "token-unsigned-tail" in names_of("tokens")
    assert "raft-read-before-own-commit" not in names_of("tokens")
    assert names_of("raft-read-before-own-commit") == ["raft-read-before-own-commit"]
    assert names_of("raft-read-before-own-commit", "tokens") == sorted(
        [*names_of("tokens"), "raft-read-before-own-commit"]
    )
    assert len(names_of()) == len(all_mutations())
    assert names_of("nonesuch") == []


@pytest.mark.parametrize(
    ("verdicts", "last_line", "status"),
    [
        ((Verdict.CAUGHT, Verdict.CAUGHT), "2/2 caught", 0),
        ((Verdict.CAUGHT, Verdict.ESCAPED), "1/2 caught", 1),
        ((Verdict.ERROR, Verdict.CAUGHT), "1/2 caught", 1),
    ],
)
def test_one_that_is_not_caught_fails_the_command(
    verdicts: tuple[Verdict, ...],
    last_line: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = dict(zip(("raft-read-before-own-commit", "raft-read-without-quorum-round"), verdicts, strict=True))
    monkeypatch.setattr(command, "try_mutation", lambda one: Result(found[one.name], "", 0.0))
    assert command.main([*found]) == status
    assert capsys.readouterr().out.splitlines()[-1] == last_line


def test_a_name_nobody_has_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nonesuch"]) == 1
    assert "no mutation is called nonesuch" in capsys.readouterr().out


def test_a_check_over_its_time_limit_is_ended(tmp_path: Path) -> None:
    endless = tmp_path / "test_endless.py"
    endless.write_text("def test_endless() -> None:\n    while True:\n        pass\n")
    result = try_baseline(PytestCheck(str(endless)), limit_s=1)
    assert result.verdict is Verdict.ERROR
    assert "not done within 1 s" in result.detail
