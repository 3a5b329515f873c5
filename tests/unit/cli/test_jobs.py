"""Commands that submit, follow, list and cancel jobs."""

import io
import json

import pytest
import typer
from rich.console import Console
from tests.unit.cli.jobs_shell import JobsShell
from tests.unit.pipeline.jobs_rig import HOSTS, a_job
from tests.unit.topology.small_cluster import TABLE

from ebla.cli.figures import format_bytes
from ebla.cli.jobs import job_following
from ebla.cli.jobs.job_following import INTERRUPTED, JobProgressBar
from ebla.cli.jobs.job_output import job_summary, progress_summary
from ebla.cli.jobs.transfers import parse_range
from ebla.model.errors import InvalidRequest, Unreachable
from ebla.model.identity import JobId
from ebla.model.records.jobs import (
    CompareReplicas,
    CopyTablets,
    Difference,
    JobProgress,
    JobRecord,
    JobResult,
    JobState,
)
from ebla.model.token import Token, TokenRange
from ebla.ports.transfer_engine import EngineState, EngineStatus
from ebla.wire.verbs import StatusAnswer

A, B, C = HOSTS
COPY = ("copy-tablet", "ks.t", "0", "--from", "127.0.0.1", "--to", "127.0.0.2")
DIFFERENCE = Difference(TokenRange(Token(10), Token(20)), ((A, "ab" * 16, 3), (B, "cd" * 16, 2)))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> JobsShell:
    return JobsShell(monkeypatch)


# ---- copying


def test_a_copy_is_followed_to_its_end(shell: JobsShell) -> None:
    shell.outcomes.next = [JobResult(bytes_moved=3 << 20, layers=1, short_cut=True)]
    output = shell.run(*COPY)
    assert output.exit_code == 0
    assert output.stdout == (
        "copy tablet 0 of ks.t from 127.0.0.1 to 127.0.0.2: done: 3.0 MiB, 1 layer, by links on this machine, 2 s\n"
    )
    assert "copying files" in output.stderr


def test_for_programs_the_whole_record_is_printed_and_nothing_else(shell: JobsShell) -> None:
    shell.outcomes.next = [JobResult(bytes_moved=7)]
    output = shell.run(*COPY, "--no-short-cut", "--json")
    assert output.exit_code == 0
    assert not output.stderr
    job = json.loads(output.stdout)
    assert (job["state"], job["result"]["bytes_moved"]) == ("done", 7)
    assert job["spec"] == {
        "kind": "copy_tablets",
        "table": str(TABLE),
        "tablets": [0],
        "source": str(A),
        "target": str(B),
        "short_cut": False,
    }


@pytest.mark.parametrize("name", ["node1", "127.0.0.1", str(A), str(A).upper()])
def test_a_node_has_several_names(shell: JobsShell, name: str) -> None:
    shell.outcomes.next = [JobResult()]
    job = shell.json("copy-tablet", "ks.t", "0", "--from", name, "--to", "127.0.0.2")
    assert job["spec"]["source"] == str(A)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ks.t", "9", "--from", "127.0.0.1", "--to", "127.0.0.2"), "ks.t has no tablet 9"),
        (("ks.none", "0", "--from", "127.0.0.1", "--to", "127.0.0.2"), "there is no table ks.none"),
        (("ks.t", "0", "--from", "127.0.0.1", "--to", "127.0.0.9"), "'127.0.0.9' is no node"),
        (("ks.t", "0", "--from", "127.0.0.1", "--to", "0000"), "3 nodes begin with '0000'"),
        (("ks.t", "0", "--from", "127.0.0.1", "--to", "127.0.0.1"), "to itself"),
        (("ks.t", "0", "--from", "127.0.0.1", "--to", "127.0.0.3"), "is no replica of tablet 0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_job_is_written(
    shell: JobsShell, arguments: tuple[str, ...], words: str
) -> None:
    assert words in shell.failed("copy-tablet", *arguments)
    assert not [key for key in shell.group0.values if key.startswith("jobs/")]


def test_a_node_that_is_down_is_told_at_once(shell: JobsShell) -> None:
    shell.down = (B,)
    assert "127.0.0.2" in shell.failed(*COPY)


def test_a_job_that_fails_says_why(shell: JobsShell) -> None:
    shell.outcomes.next = [InvalidRequest("the tablet was split meanwhile")]
    assert "failed: the tablet was split meanwhile" in shell.failed(*COPY)


def test_one_that_breaks_is_tried_again_while_it_is_followed(shell: JobsShell) -> None:
    shell.outcomes.next = [Unreachable("no way to 127.0.0.2"), JobResult(bytes_moved=1)]
    output = shell.run(*COPY)
    assert output.exit_code == 0
    assert "waiting: no way to 127.0.0.2" in output.stderr


def test_detached_it_goes_on_alone(shell: JobsShell) -> None:
    shell.outcomes.next = [JobResult(bytes_moved=1)]
    output = shell.ok(*COPY, "--detach")
    assert "cancel it with: ebla pipeline cancel " in output
    (job,) = shell.json("pipeline", "jobs")
    assert output.startswith(f"job {job['id']}: ")


def test_without_a_terminal_an_interrupt_leaves_the_job_and_says_how_to_cancel_it(
    shell: JobsShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> JobRecord:
        raise KeyboardInterrupt

    monkeypatch.setattr(job_following, "follow", interrupted)
    output = shell.run(*COPY)
    assert output.exit_code == INTERRUPTED
    (job,) = shell.json("pipeline", "jobs")
    assert f"job {job['id']} continues; cancel it with: ebla pipeline cancel {job['id']}" in output.stderr
    assert not job["cancel_requested"]


def test_a_terminal_shows_a_bar_by_bytes_or_else_by_tasks() -> None:
    screen = io.StringIO()
    copy = CopyTablets(table=TABLE, tablets=(0,), source=A, target=B)
    with JobProgressBar(Console(file=screen, force_terminal=True, width=120)) as bar:
        for progress in (
            JobProgress(),
            JobProgress(step="copying files", bytes_done=512, bytes_total=1024),
            JobProgress(step="comparing", bytes_done=0, bytes_total=0, tasks_done=1, tasks_total=8),
            JobProgress(step="sealing", bytes_done=2048, bytes_total=1024),
        ):
            bar.update(a_job(1, copy, state=JobState.RUNNING, progress=progress))
            bar.refresh()
    shown = screen.getvalue()
    for words in ("running", "copying files", "0.5/1.0 KiB", "comparing", "1/8 tasks", "1.0/1.0 KiB"):
        assert words in shown, shown


def test_long_words_leave_the_figures_their_place_on_one_line() -> None:
    screen = io.StringIO()
    step = "looking again at 114 ranges that differ (time 2 of 4) (0 of 99 ranges done): taking checkpoints"
    with JobProgressBar(Console(file=screen, force_terminal=True, color_system=None, width=80)) as bar:
        bar.update(
            a_job(
                1,
                CompareReplicas(TABLE),
                state=JobState.RUNNING,
                progress=JobProgress(step=step, bytes_done=0, bytes_total=0, tasks_done=11, tasks_total=12),
            )
        )
        bar.refresh()
    line = next(line for line in screen.getvalue().splitlines() if "looking again" in line)
    assert "…" in line
    assert "11/12 tasks" in line
    assert "-:--:--" in line


def test_a_job_is_followed_on_when_the_node_that_was_asked_ends(
    shell: JobsShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_following, "FOLLOW_PAUSE_S", 0.0)
    follow = job_following.follow
    broken = [Unreachable("node1 ended")]

    def follow_after_trouble(asked: job_following.JobFlags, job: JobId) -> JobRecord:
        if broken:
            raise broken.pop()
        return follow(asked, job)

    monkeypatch.setattr(job_following, "follow", follow_after_trouble)
    shell.outcomes.next = [JobResult(bytes_moved=1)]
    assert "done: 1 B" in shell.ok(*COPY)


def test_a_job_that_cannot_be_followed_is_not_said_to_be_undone(
    shell: JobsShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> JobRecord:
        raise Unreachable("no answer")

    monkeypatch.setattr(job_following, "FOLLOW_PAUSE_S", 0.0)
    monkeypatch.setattr(job_following, "follow", unreachable)
    output = shell.failed(*COPY)
    (job,) = shell.json("pipeline", "jobs")
    assert "not applied" not in output
    assert f"job {job['id']} was submitted, but its end was not observed: no answer; check with: " in output


def test_a_tablet_that_is_named_twice_is_copied_once(shell: JobsShell) -> None:
    shell.outcomes.next = [JobResult()]
    job = shell.json("copy-tablet", "ks.t", "0", "0", "--from", "127.0.0.1", "--to", "127.0.0.2")
    assert (job["spec"]["tablets"], job["what"]) == ([0], "copy tablet 0 of ks.t from 127.0.0.1 to 127.0.0.2")


def test_no_answer_to_the_question_after_an_interrupt_leaves_the_job(
    shell: JobsShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object, **__: object) -> bool:
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", no_answer)
    assert job_following.is_left_running()


# ---- comparing


def test_equal_replicas_are_a_success(shell: JobsShell) -> None:
    shell.outcomes.next = [JobResult(ranges_compared=2, rows=1)]
    assert shell.ok("compare", "ks.t") == "compare ks.t: done: no difference in 2 ranges, 1 row, 2 s\n"


def test_a_table_with_one_replica_has_nothing_to_compare(shell: JobsShell) -> None:
    shell.copies = 1
    assert shell.ok("compare", "ks.t") == "nothing to compare: ks.t has one replica\n"
    assert shell.json("compare", "ks.t") == {"table": "ks.t", "replicas": 1, "differences_total": 0}
    assert shell.json("pipeline", "jobs", "--all") == [], "no job was written"


def test_replicas_that_differ_are_shown_with_exit_status_1(shell: JobsShell) -> None:
    shell.outcomes.next = [JobResult(ranges_compared=2, rows=9, differences=(DIFFERENCE,), differences_total=3)]
    output = shell.run("compare", "ks.t")
    assert output.exit_code == 1
    assert "3 differences in 2 ranges, 9 rows" in output.stdout
    assert "10     20     127.0.0.1:abababab(3) 127.0.0.2:cdcdcdcd(2)" in output.stdout
    assert "and 2 more ranges" in output.stdout


def test_what_was_healed_is_a_success(shell: JobsShell) -> None:
    shell.outcomes.next = [JobResult(ranges_compared=2, rows=9, healed_rows=4)]
    output = shell.ok("compare", "ks.t", "--heal", "--range=-5:7")
    assert "compare and heal ks.t in -5:7: done: no difference in 2 ranges" in output
    assert "4 rows copied to replicas that lacked them" in output


@pytest.mark.parametrize("text", ["", "5", "a:b", "1:", "1:99999999999999999999"])
def test_a_range_has_two_tokens(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_range(text)
    assert parse_range("-5:7") == TokenRange(Token(-5), Token(7))


# ---- the pipeline


def test_the_pipeline_is_shown_with_its_jobs(shell: JobsShell) -> None:
    shell.outcomes.next = [JobResult()]
    shell.ok(*COPY)
    output = shell.ok("pipeline", "status")
    assert "pipeline  ready on local[2], Spark 4" in output
    assert "node      127.0.0.1, process 7" in output
    assert "jobs      0 waiting, 0 running, 1 done, 0 failed, 0 cancelled" in output


def test_a_pipeline_that_cannot_is_told_with_the_cause(shell: JobsShell) -> None:
    shell.engine.state = EngineStatus(state=EngineState.UNAVAILABLE, cause="no Java was found", master="local[2]")
    shell.run(*COPY, "--detach")
    shell.with_jobs_for(5)
    output = shell.run("pipeline", "status")
    assert output.exit_code == 1
    assert "unavailable on local[2]: no Java was found" in output.stdout
    assert "waiting: pipeline unavailable: no Java was found" in shell.ok("pipeline", "jobs")


def test_what_a_pipeline_said_last_is_not_told_where_the_leader_runs_none(shell: JobsShell) -> None:
    shell.engine.state = EngineStatus(state=EngineState.UNAVAILABLE, cause="no Java was found", master="local[2]")
    shell.with_jobs_for(5)
    shell.leader_status = StatusAnswer(
        host=A, cluster=None, cluster_name="", address="127.0.0.1:7000", started_wall_us=0
    )
    output = shell.run("pipeline", "status")
    assert output.exit_code == 1
    assert "pipeline  not running: the leader runs none" in output.stdout
    assert "no Java" not in output.stdout
    assert "pipeline not running: the leader runs none and jobs wait" in shell.run(*COPY, "--detach").stderr


def test_a_job_is_cancelled_by_the_first_letters_of_its_id(shell: JobsShell) -> None:
    shell.engine.state = EngineStatus(state=EngineState.STARTING)
    shell.run(*COPY, "--detach")
    (job,) = shell.json("pipeline", "jobs")
    assert shell.ok("pipeline", "cancel", job["id"][:6]) == f"cancelled {job['id']}: {job['what']}\n"
    assert "no jobs wait or run" in shell.ok("pipeline", "jobs")
    assert "cancelled" in shell.ok("pipeline", "jobs", "--all")
    assert "has ended: it is cancelled" in shell.failed("pipeline", "cancel", job["id"])


def test_a_job_that_is_not_there_cannot_be_cancelled(shell: JobsShell) -> None:
    assert "there is no job 'abcdef'" in shell.failed("pipeline", "cancel", "abcdef")


# ---- words


def test_sizes_have_units() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1024, 5 << 20, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]


def test_progress_is_told_by_bytes_or_else_by_tasks() -> None:
    assert (
        progress_summary(JobProgress(step="copying", bytes_done=1024, bytes_total=2048, tasks_done=1, tasks_total=2))
        == "copying, 1.0 KiB of 2.0 KiB"
    )
    assert (
        progress_summary(JobProgress(step="comparing", bytes_done=0, bytes_total=0, tasks_done=1, tasks_total=2))
        == "comparing, task 1 of 2"
    )


def test_a_job_stands_in_one_line() -> None:
    copy = CopyTablets(table=TABLE, tablets=(0,), source=A, target=B)
    assert job_summary(a_job(1, copy)) == "waiting"
    asked = a_job(1, copy, state=JobState.RUNNING, cancel_requested=True, progress=JobProgress(step="copying"))
    assert job_summary(asked) == "running, cancel requested: copying"
    assert job_summary(a_job(1, copy, state=JobState.FAILED, cause="no room")) == "failed: no room"
    assert job_summary(a_job(1, CompareReplicas(TABLE), state=JobState.DONE)) == "done: no result"
