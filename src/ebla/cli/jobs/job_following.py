"""A command that asks for a job and follows it to its end: with a bar in a terminal, line by line elsewhere."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ebla.cli.cluster.status_table import pipeline
from ebla.cli.jobs.job_context import JobCommandContext, with_job_context
from ebla.cli.jobs.job_output import as_json, format_bytes, job_summary
from ebla.cli.output import print_json
from ebla.client.cluster_view import NOT_RUNNING
from ebla.client.job_client import LIFETIME_DEFAULT_MS
from ebla.model.errors import ConnectionLost, EblaError, NotFound
from ebla.model.identity import JobId
from ebla.model.records.jobs import ENDED_STATES, JobRecord, JobSpec, JobState

INTERRUPTED = 130
"""What shells take for "ended by Ctrl-C"."""
FOLLOW_TRIES = 5
FOLLOW_PAUSE_S = 1.0
"""Together longer than group 0 takes to elect another leader."""
BAR_WIDTH = 20
FIGURES_WIDTH = 36
"""Of amount, rate and time left, with the space between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFlags:
    """How a command was called."""

    data: Path
    node: str | None
    as_json: bool
    detach: bool


def submit_and_follow(asked: JobFlags, plan: Callable[[JobCommandContext], tuple[JobSpec, str]]) -> JobRecord:
    """Asks for the job and follows it. `plan` refuses what makes no sense, before anything is written."""

    async def submit(access: JobCommandContext) -> JobRecord:
        spec, what = plan(access)
        job = await access.jobs.submit(spec, what, LIFETIME_DEFAULT_MS)
        _, view = await access.pipeline()
        if view == NOT_RUNNING:
            sys.stderr.write(f"pipeline {pipeline(view)}\n")
        return job

    job = with_job_context(asked.data, asked.node, submit)
    if asked.detach:
        _tell_detached(asked, job)
        return job
    try:
        return follow_to_end(asked, job)
    except KeyboardInterrupt:
        return _interrupted(asked, job)


def follow_to_end(asked: JobFlags, job: JobRecord) -> JobRecord:
    """A node that ends while it is asked is no end of the job: the next that runs is asked. Where none answers, the
    error must not say "not applied": the job is written."""
    for number in range(FOLLOW_TRIES):
        if number:
            time.sleep(FOLLOW_PAUSE_S)
        try:
            return follow(asked, job.id)
        except NotFound:
            raise
        except EblaError as error:
            cause = error
    advice = f"look with: ebla pipeline jobs --all{_data_flag(asked)}"
    raise ConnectionLost(f"job {job.id} was asked for, but its end is not seen: {cause}", advice=advice) from cause


def follow(asked: JobFlags, job: JobId) -> JobRecord:
    console = Console(stderr=True)
    shows_bar = console.is_terminal and not asked.as_json

    async def watch(access: JobCommandContext) -> JobRecord:
        shown = JobProgressBar(console) if shows_bar else _Lines(quiet=asked.as_json)
        with shown:
            async for record in access.jobs.follow(job):
                shown.update(record)
                if record.state in ENDED_STATES:
                    return record
        raise NotFound(f"job {job} is not there any more")

    return with_job_context(asked.data, asked.node, watch)


def _interrupted(asked: JobFlags, job: JobRecord) -> JobRecord:
    """Whoever can be asked is asked; elsewhere it goes on, since that is what undoes nothing."""
    sys.stderr.write("\n")
    if sys.stdin.isatty() and sys.stderr.isatty() and not is_left_running():

        async def cancel(access: JobCommandContext) -> JobRecord:
            return await access.jobs.cancel(job.id)

        with_job_context(asked.data, asked.node, cancel)
        return follow_to_end(asked, job)
    sys.stderr.write(f"job {job.id} goes on; {_how_to_cancel(asked, job)}\n")
    raise typer.Exit(INTERRUPTED)


def is_left_running() -> bool:
    try:
        return typer.confirm("Leave the job running?", True, err=True)
    except typer.Abort:
        # Ctrl-C again, or the end of input: no answer.
        sys.stderr.write("\n")
        return True


def _tell_detached(asked: JobFlags, job: JobRecord) -> None:
    if asked.as_json:
        print_json(as_json(job))
    else:
        typer.echo(f"job {job.id}: {job.what}; look with `ebla pipeline jobs`, {_how_to_cancel(asked, job)}")


def _how_to_cancel(asked: JobFlags, job: JobRecord) -> str:
    return f"cancel it with: ebla pipeline cancel {job.id}{_data_flag(asked)}"


def _data_flag(asked: JobFlags) -> str:
    return "" if asked.data == Path("data") else f" --data {asked.data}"


# ---- while it runs


class _Amount(ProgressColumn):
    """Bytes where they are known, tasks elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = DownloadColumn(binary_units=True)

    def render(self, task: Task) -> Text:
        if task.fields["by_bytes"]:
            return self._bytes.render(task)
        return Text(f"{task.completed:.0f}/{task.total:.0f} tasks" if task.total else "")


class _Rate(ProgressColumn):
    """In the units of the amount beside it."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{format_bytes(int(speed))}/s" if speed and task.fields["by_bytes"] else "")


def truncate_text(words: str, letters_max: int) -> str:
    return words if len(words) <= letters_max else f"{words[: letters_max - 1]}…"


class JobProgressBar:
    """As long as it is entered, one line at the foot of the terminal."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(BAR_WIDTH), _Amount(), _Rate(), TimeRemainingColumn())
        self._words_max = max(console.width - BAR_WIDTH - FIGURES_WIDTH, 10)
        self._progress = Progress(*columns, console=console, transient=True)
        self._task: TaskID = self._progress.add_task("waiting", total=None, by_bytes=False)

    def __enter__(self) -> "JobProgressBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def refresh(self) -> None:
        self._progress.refresh()

    def update(self, job: JobRecord) -> None:
        told = job.progress
        by_bytes = told.bytes_total > 0
        done, total = (told.bytes_done, told.bytes_total) if by_bytes else (told.tasks_done, told.tasks_total)
        words = told.step if job.state is JobState.RUNNING and told.step else job_summary(job)
        self._progress.update(
            self._task,
            description=truncate_text(words, self._words_max),
            completed=min(done, total),
            total=total or None,
            by_bytes=by_bytes,
        )


class _Lines:
    """Only what is new, so that a log of it stays readable."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._told = ""

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, job: JobRecord) -> None:
        words = job.progress.step if job.state is JobState.RUNNING and job.progress.step else job_summary(job)
        if not self._quiet and job.state not in ENDED_STATES and words != self._told:
            self._told = words
            sys.stderr.write(f"{words}\n")
