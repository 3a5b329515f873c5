"""`python -m ebla.sim`."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import ebla.sim.__main__ as cli
from ebla.sim.scenario import RunOutcome, find_scenario, run_scenario, scenario_names


def outcome(scenario: str, seed: int, failure: str | None) -> RunOutcome:
    return RunOutcome(
        scenario=scenario,
        seed=seed,
        seconds=20.0,
        trace="abc",
        simulated_s=20.0,
        cpu_s=0.1,
        steps=9,
        failure=failure,
        report="the story",
    )


class Inline:
    """A pool that runs at once, in this process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def submit(self, work: Callable[..., RunOutcome], *args: Any) -> "Future[RunOutcome]":
        future: Future[RunOutcome] = Future()
        future.set_result(work(*args))
        return future


@pytest.fixture
def odd_seeds_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, seed: int, seconds: float | None) -> RunOutcome:
        return outcome(name, seed, "Failed: odd" if seed % 2 else None)

    monkeypatch.setattr(cli, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(cli, "run_named", run)


def test_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list"]) == 0
    output = capsys.readouterr().out
    assert "raft" in output
    assert "a Raft group keeps every promise" in output


def test_a_seed_is_replayed_and_ends_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    expected = run_scenario(find_scenario("raft"), 7, 4.0)
    assert cli.main(["--scenario", "raft", "--seed", "7", "--seconds", "4", "--narrate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"trace={expected.trace}"
    assert "raft is well at seed 7" in lines[-2]
    assert any(line.endswith("starts") for line in lines)


def test_a_failing_seed_prints_its_story_and_exits_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "run_scenario", lambda *_: outcome("raft", 7, "Failed: lost a write"))
    assert cli.main(["--scenario", "raft", "--seed", "7"]) == 1
    output = capsys.readouterr().out
    assert "the story" in output
    assert "fails at seed 7: Failed: lost a write" in output
    assert output.rstrip().endswith("trace=abc")


def test_many_seeds_say_which_fail_and_how_to_replay_them(
    capsys: pytest.CaptureFixture[str], odd_seeds_fail: None
) -> None:
    assert cli.main(["--scenario", "raft", "--seeds", "2-5"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "4 runs, 2 failed" in lines
    assert lines[-2:] == [
        "  python -m ebla.sim --scenario raft --seed 3 --seconds 20 --narrate",
        "  python -m ebla.sim --scenario raft --seed 5 --seconds 20 --narrate",
    ]
    assert cli.main(["--scenario", "raft", "--seeds", "2-2"]) == 0
    assert "1 runs, 0 failed" in capsys.readouterr().out


def test_all_runs_every_scenario(capsys: pytest.CaptureFixture[str], odd_seeds_fail: None) -> None:
    assert cli.main(["--all", "--seeds", "2-2"]) == 0
    assert f"{len(scenario_names())} runs, 0 failed" in capsys.readouterr().out


def test_worker_processes_really_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--scenario", "wire", "--seeds", "1-3", "--seconds", "2"]) == 0
    assert "3 runs, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "one of the arguments --scenario --all --list is required"),
        (["--scenario", "nonesuch"], "there is no scenario 'nonesuch'; there are: atomic_change"),
        (["--scenario", "raft", "--seed", "-1"], "a seed is a whole number from 0, not '-1'"),
        (["--scenario", "raft", "--seed", "x"], "a seed is a whole number from 0, not 'x'"),
        (["--scenario", "raft", "--seeds", "5"], "seeds are given as A-B, for example 1-200, not '5'"),
        (["--scenario", "raft", "--seeds", "9-5"], "'9-5' is empty"),
        (["--scenario", "raft", "--seeds", "0-99999999"], "more than 1000000 seeds"),
        (["--scenario", "raft", "--seconds", "0"], "seconds must be above 0"),
        (["--scenario", "raft", "--seconds", "nan"], "seconds must be above 0"),
        (["--scenario", "raft", "--seconds", "ten"], "seconds are a number, not 'ten'"),
        (["--scenario", "raft", "--seed", "1", "--seeds", "1-2"], "not allowed with argument"),
        (["--scenario", "raft", "--seeds", "1-2", "--narrate"], "--narrate prints one run: use it with --seed"),
        (["--scenario", "raft", "--all"], "not allowed with argument"),
    ],
)
def test_bad_arguments_are_explained(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err
