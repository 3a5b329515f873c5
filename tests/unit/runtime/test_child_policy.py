"""The supervisor's decisions, event by event. Times are milliseconds."""

import pytest

from ebla.options import NodeLimits
from ebla.runtime.child_policy import (
    ChildEffect,
    ChildPolicy,
    ChildState,
    Finished,
    Kill,
    Killed,
    NotStarted,
    RunningChild,
    Spawn,
    Starting,
    StartPending,
    Terminate,
    Terminating,
)

LIMITS = NodeLimits(
    child_start_ms=30_000,
    child_silence_ms=10_000,
    child_exits_max=5,
    child_exits_window_ms=60_000,
    child_restart_pause_ms=200,
    stop_ms=5_000,
)


def policy(*names: str) -> ChildPolicy:
    return ChildPolicy(names or ("shard-0",), LIMITS, now_ms=0)


def state(given: ChildPolicy, name: str = "shard-0") -> ChildState:
    return given.children[name].state


def finished(given: ChildPolicy) -> bool:
    return given.finished


def running(*names: str) -> ChildPolicy:
    """Every child started and heard at time 0; pids 100, 101, …"""
    given = policy(*names)
    for number, name in enumerate(given.children):
        given.spawned(name, 100 + number, 0)
        given.heard(name, 100 + number, 0)
    return given


def ticks(given: ChildPolicy, start: int, end: int, step: int = 500) -> list[tuple[int, ChildEffect]]:
    """What ticks from `start` to `end` bring, with their times."""
    return [(now, effect) for now in range(start, end + 1, step) for effect in given.tick(now)]


def test_a_child_is_started_once_and_runs_when_heard() -> None:
    given = policy()
    assert given.tick(0) == [Spawn("shard-0")]
    given.spawned("shard-0", 100, 5)
    assert given.tick(100) == []
    assert state(given) == Starting(100, 5)
    given.heard("shard-0", 100, 300)
    assert state(given) == RunningChild(100, 5, 300)


def test_a_silent_child_is_killed_at_the_bound_and_not_gone_before_it_is_reaped() -> None:
    given = running()
    assert ticks(given, 500, 60_000) == [(10_000, Kill(100))]
    assert isinstance(state(given), Killed)
    assert given.exited("shard-0", 100, "was ended by SIGKILL", 61_000) == []
    assert state(given) == StartPending(61_200)
    assert given.children["shard-0"].last_exit == "was silent for 10000 ms and was killed"


def test_a_child_that_is_heard_is_never_killed() -> None:
    given = running()
    for now in range(0, 100_000, 9_500):
        assert ticks(given, now, now + 9_000) == []
        given.heard("shard-0", 100, now + 9_500)


def test_a_child_never_heard_is_killed_after_the_start_bound() -> None:
    given = policy()
    given.spawned("shard-0", 100, 0)
    assert ticks(given, 500, 40_000) == [(30_000, Kill(100))]


def test_last_words_of_a_predecessor_do_not_count_for_its_successor() -> None:
    given = running()
    given.exited("shard-0", 100, "ended with status 1", 1_000)
    given.spawned("shard-0", 200, 1_200)
    given.heard("shard-0", 100, 1_300)
    given.heard("nobody", 100, 1_300)
    assert state(given) == Starting(200, 1_200)


def test_a_child_that_ends_is_started_again_after_the_pause() -> None:
    given = running()
    given.exited("shard-0", 100, "ended with status 1", 1_000)
    assert given.tick(1_199) == []
    assert given.tick(1_200) == [Spawn("shard-0")]


def test_the_fifth_exit_within_the_window_stops_the_node_with_the_reason() -> None:
    given = running("shard-0", "shard-1")
    for number in range(5):
        assert given.gave_up is None
        now = 1_000 + number * 14_000
        effects = given.exited("shard-0", 100 + number * 10, "ended with status 7", now)
        if number < 4:
            given.spawned("shard-0", 110 + number * 10, now + 200)
    assert effects == [Terminate(101)]
    assert given.gave_up == ("shard-0 ended 5 times within 60000 ms; the last time it ended with status 7")
    assert state(given) == Finished()
    assert not finished(given)
    given.exited("shard-1", 101, "ended with status 0", 60_000)
    assert finished(given)


def test_exits_older_than_the_window_do_not_count() -> None:
    given = running()
    pid = 100
    for number in range(20):
        now = 1_000 + number * 15_000
        given.exited("shard-0", pid, "ended with status 7", now)
        pid += 1
        given.spawned("shard-0", pid, now + 200)
    assert given.gave_up is None
    assert given.children["shard-0"].exits_total == 20


def test_a_child_that_cannot_be_started_counts_as_an_exit() -> None:
    given = policy()
    for _ in range(5):
        given.spawn_failed("shard-0", "no such file", 0)
    assert given.gave_up is not None
    assert "could not be started: no such file" in given.gave_up
    assert finished(given)


def test_stop_asks_then_kills_and_finishes_only_when_all_are_reaped() -> None:
    given = running("shard-0", "shard-1", "shard-2")
    given.exited("shard-2", 102, "ended with status 1", 900)
    assert given.stop(1_000) == [Terminate(100), Terminate(101)]
    assert state(given) == Terminating(100, 1_000)
    given.exited("shard-0", 100, "ended with status 0", 1_500)
    assert ticks(given, 1_500, 8_000) == [(4_000, Kill(101))]
    assert not finished(given)
    given.exited("shard-1", 101, "was ended by SIGKILL", 8_000)
    assert finished(given)
    assert given.gave_up is None
    assert ticks(given, 8_000, 20_000) == []


def test_asking_twice_changes_nothing() -> None:
    given = running()
    given.stop(1_000)
    assert given.stop(2_000) == []
    assert state(given) == Terminating(100, 1_000)


def test_a_pause_of_the_supervisor_itself_is_nobodys_silence() -> None:
    given = running()
    assert ticks(given, 500, 5_000) == []
    assert given.tick(65_000) == []
    assert ticks(given, 65_500, 72_000) == [(70_000, Kill(100))]


PIPELINE = "pipeline"
WANTED, UNWANTED = True, False


def with_pipeline(given_state: ChildState | None = None, *, wanted: bool = True) -> ChildPolicy:
    given = ChildPolicy(("shard-0",), LIMITS, 0, optional=(PIPELINE,))
    given.spawned("shard-0", 100, 0)
    given.heard("shard-0", 100, 0)
    if given_state is not None:
        given.children[PIPELINE].state = given_state
        given.children[PIPELINE].wanted = wanted
    return given


def test_an_optional_child_is_not_there_until_it_is_wanted() -> None:
    given = with_pipeline()
    assert given.tick(500) == []
    assert state(given, PIPELINE) == NotStarted()
    given.want(PIPELINE, True, 600)
    assert given.tick(600) == [Spawn(PIPELINE)]
    given.spawned(PIPELINE, 200, 600)
    given.heard(PIPELINE, 200, 700)
    assert given.want(PIPELINE, False, 800) == [Terminate(200)]
    given.exited(PIPELINE, 200, "ended with status 0", 900)
    assert state(given, PIPELINE) == NotStarted()
    assert given.tick(1_000) == []
    assert given.children[PIPELINE].exits_total == 0


ASKED, KILLED = Terminating(200, 10), Killed(200, 10, "was silent")


@pytest.mark.parametrize(
    ("before", "wanted", "after", "effects"),
    [
        (NotStarted(), WANTED, StartPending(50), []),
        (StartPending(9), UNWANTED, NotStarted(), []),
        (Starting(200, 10), UNWANTED, Terminating(200, 50), [Terminate(200)]),
        (RunningChild(200, 10, 20), UNWANTED, Terminating(200, 50), [Terminate(200)]),
        (ASKED, WANTED, ASKED, []),
        (KILLED, WANTED, KILLED, []),
        (KILLED, UNWANTED, KILLED, []),
        (StartPending(9), WANTED, StartPending(9), []),
        (RunningChild(200, 10, 20), WANTED, RunningChild(200, 10, 20), []),
        (NotStarted(), UNWANTED, NotStarted(), []),
        (ASKED, UNWANTED, ASKED, []),
    ],
)
def test_what_a_wish_does_in_each_state(
    before: ChildState, wanted: bool, after: ChildState, effects: list[ChildEffect]
) -> None:
    was_wanted = isinstance(before, StartPending | Starting | RunningChild) or (before == KILLED and not wanted)
    given = with_pipeline(before, wanted=was_wanted)
    assert given.want(PIPELINE, wanted, 50) == effects
    assert state(given, PIPELINE) == after
    assert given.children[PIPELINE].wanted is wanted


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        (ASKED, False, NotStarted()),
        (KILLED, False, NotStarted()),
        (ASKED, True, StartPending(50)),
        (KILLED, True, StartPending(1_050)),
        (RunningChild(200, 10, 20), True, StartPending(1_050)),
        (Starting(200, 10), True, StartPending(1_050)),
    ],
)
def test_where_the_end_of_an_optional_child_leads(before: ChildState, wanted: bool, after: ChildState) -> None:
    given = with_pipeline(before, wanted=wanted)
    assert given.exited(PIPELINE, 200, "ended", 50) == []
    assert state(given, PIPELINE) == after


@pytest.mark.parametrize(
    ("before", "after", "effects"),
    [
        (NotStarted(), NotStarted(), []),
        (StartPending(9), StartPending(9), []),
        (Starting(200, 10), Killed(200, 50, "hangs"), [Kill(200)]),
        (RunningChild(200, 10, 20), Killed(200, 50, "hangs"), [Kill(200)]),
        (ASKED, Killed(200, 50, "hangs"), [Kill(200)]),
        (KILLED, KILLED, []),
    ],
)
def test_what_a_kill_does_in_each_state(before: ChildState, after: ChildState, effects: list[ChildEffect]) -> None:
    given = with_pipeline(before)
    assert given.kill(PIPELINE, "hangs", 50) == effects
    assert state(given, PIPELINE) == after


def test_an_unwanted_child_that_hangs_is_killed_within_the_bound() -> None:
    given = with_pipeline(RunningChild(200, 0, 0))
    given.heard("shard-0", 100, 1_000)
    assert given.want(PIPELINE, False, 1_000) == [Terminate(200)]
    assert ticks(given, 1_000, 6_000) == [(4_000, Kill(200))]


def test_an_optional_child_never_stops_the_node_and_its_pauses_grow_to_a_bound() -> None:
    given = with_pipeline(StartPending(0))
    now, pauses = 0, []
    for number in range(20):
        given.spawned(PIPELINE, 200 + number, now)
        given.exited(PIPELINE, 200 + number, "ended with status 1", now + 10)
        waiting = state(given, PIPELINE)
        assert isinstance(waiting, StartPending)
        pauses.append(waiting.due_ms - now - 10)
        now = waiting.due_ms
    assert pauses[:7] == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000]
    assert set(pauses[7:]) == {60_000}
    assert given.gave_up is None
    assert given.children[PIPELINE].exits_total == 20


def test_a_child_that_ran_for_long_is_started_again_soon() -> None:
    given = with_pipeline(StartPending(0))
    for number in range(5):
        given.spawned(PIPELINE, 200 + number, 0)
        given.exited(PIPELINE, 200 + number, "ended", 0)
    given.spawned(PIPELINE, 300, 1_000)
    given.exited(PIPELINE, 300, "ended", 61_000)
    assert state(given, PIPELINE) == StartPending(62_000)


def test_a_command_that_is_missing_is_tried_with_growing_pauses() -> None:
    given = with_pipeline(StartPending(0))
    given.spawn_failed(PIPELINE, "no such file", 100_000)
    given.spawn_failed(PIPELINE, "no such file", 101_000)
    assert state(given, PIPELINE) == StartPending(103_000)
    assert given.gave_up is None


def test_a_stop_takes_optional_children_along_and_nothing_is_wanted_after_it() -> None:
    given = with_pipeline()
    assert given.stop(1_000) == [Terminate(100)]
    assert state(given, PIPELINE) == Finished()
    assert given.want(PIPELINE, True, 1_100) == []
    assert given.tick(1_100) == []
    given.exited("shard-0", 100, "ended", 1_200)
    assert finished(given)
    given = with_pipeline(RunningChild(200, 0, 0))
    assert given.stop(1_000) == [Terminate(100), Terminate(200)]
    given.exited("shard-0", 100, "ended", 1_200)
    assert not finished(given)
    given.exited(PIPELINE, 200, "ended", 1_300)
    assert finished(given)
