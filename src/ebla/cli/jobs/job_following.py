"""Submits a job and follows it to its end: with a progress bar in a terminal, line by line elsewhere."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

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

from ebla.cli.cluster.status_details import pipeline
from ebla.cli.command import NodeFlags
from ebla.cli.figures import format_bytes
from ebla.cli.flags import DATA_DEFAULT
from ebla.cli.jobs.job_context import JobCommandContext, with_job_context
from ebla.cli.jobs.job_output import as_json, job_summary
from ebla.client.cluster_view import NOT_RUNNING
from ebla.client.job_client import LIFETIME_DEFAULT_MS
from ebla.model.errors import ConnectionLost, EblaError, NotFound
from ebla.model.identity import JobId
from ebla.model.records.jobs import ENDED_STATES, JobRecord, JobSpec, JobState

INTERRUPTED = 130
"""The exit status of a process that Ctrl-C ended."""
FOLLOW_TRIES = 5
FOLLOW_PAUSE_S = 1.0
"""All pauses together are longer than an election of group 0."""
BAR_WIDTH = 20
FIGURES_WIDTH = 36
"""Of the amount, rate and remaining time columns, with the space between them."""


@dataclass(frozen=True, kw_only=True)
class JobFlags(NodeFlags):
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; the job continues.")] = False


def submit_and_follow(flags: JobFlags, plan: Callable[[JobCommandContext], tuple[JobSpec, str]]) -> JobRecord:
    """Submits the job and follows it. `plan` raises for a job that makes no sense, before anything is written."""

    async def submit(access: JobCommandContext) -> JobRecord:
        spec, what = plan(access)
        job = await access.jobs.submit(spec, what, LIFETIME_DEFAULT_MS)
        _, view = await access.pipeline()
        if view == NOT_RUNNING:
            sys.stderr.write(f"pipeline {pipeline(view)}\n")
        return job

    job = with_job_context(flags.data, flags.node, submit)
    if flags.detach:
        _print_detached(flags, job)
        return job
    try:
        return follow_to_end(flags, job)
    except KeyboardInterrupt:
        return _interrupted(flags, job)


def follow_to_end(flags: NodeFlags, job: JobRecord) -> JobRecord:
    """If the node stops meanwhile, the next one that runs is called. If none answers, the error must not say "not
    applied": the job record is written."""
    for number in range(FOLLOW_TRIES):
        if number:
            time.sleep(FOLLOW_PAUSE_S)
        try:
            return follow(flags, job.id)
        except NotFound:
            raise
        except EblaError as error:
            cause = error
    advice = f"check with: ebla pipeline jobs --all{_data_flag(flags)}"
    raise ConnectionLost(f"job {job.id} was submitted, but its end was not observed: {cause}", advice=advice) from cause


def follow(flags: NodeFlags, job: JobId) -> JobRecord:
    console = Console(stderr=True)
    has_bar = console.is_terminal and not flags.as_json

    async def watch(access: JobCommandContext) -> JobRecord:
        display = JobProgressBar(console) if has_bar else _Lines(quiet=flags.as_json)
        with display:
            async for record in access.jobs.follow(job):
                display.update(record)
                if record.state in ENDED_STATES:
                    return record
        raise NotFound(f"job {job} does not exist any more")

    return with_job_context(flags.data, flags.node, watch)


def _interrupted(flags: NodeFlags, job: JobRecord) -> JobRecord:
    """On a terminal, asks whether to cancel. Elsewhere the job continues, since that loses nothing."""
    sys.stderr.write("\n")
    if sys.stdin.isatty() and sys.stderr.isatty() and not is_left_running():

        async def cancel(access: JobCommandContext) -> JobRecord:
            return await access.jobs.cancel(job.id)

        with_job_context(flags.data, flags.node, cancel)
        return follow_to_end(flags, job)
    sys.stderr.write(f"job {job.id} continues; {_how_to_cancel(flags, job)}\n")
    raise typer.Exit(INTERRUPTED)


def is_left_running() -> bool:
    try:
        return typer.confirm("Leave the job running?", True, err=True)
    except typer.Abort:
        # Ctrl-C again, or end of input: no answer.
        sys.stderr.write("\n")
        return True


def _print_detached(flags: NodeFlags, job: JobRecord) -> None:
    how = f"check it with `ebla pipeline jobs`, {_how_to_cancel(flags, job)}"
    flags.show(as_json(job), f"job {job.id}: {job.what}; {how}")


def _how_to_cancel(flags: NodeFlags, job: JobRecord) -> str:
    return f"cancel it with: ebla pipeline cancel {job.id}{_data_flag(flags)}"


def _data_flag(flags: NodeFlags) -> str:
    return "" if flags.data == DATA_DEFAULT else f" --data {flags.data}"


# ---- progress


class _Amount(ProgressColumn):
    """Bytes if they are known, else tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = DownloadColumn(binary_units=True)

    def render(self, task: Task) -> Text:
        if task.fields["by_bytes"]:
            return self._bytes.render(task)
        return Text(f"{task.completed:.0f}/{task.total:.0f} tasks" if task.total else "")


class _Rate(ProgressColumn):
    """In the unit of the amount."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{format_bytes(int(speed))}/s" if speed and task.fields["by_bytes"] else "")


def truncate_text(words: str, letters_max: int) -> str:
    return words if len(words) <= letters_max else f"{words[: letters_max - 1]}…"


def _step_or_summary(job: JobRecord) -> str:
    return job.progress.step if job.state is JobState.RUNNING and job.progress.step else job_summary(job)


class JobProgressBar:
    """One line at the bottom of the terminal while it is entered."""

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
        progress = job.progress
        by_bytes = progress.bytes_total > 0
        done, total = (
            (progress.bytes_done, progress.bytes_total) if by_bytes else (progress.tasks_done, progress.tasks_total)
        )
        self._progress.update(
            self._task,
            description=truncate_text(_step_or_summary(job), self._words_max),
            completed=min(done, total),
            total=total or None,
            by_bytes=by_bytes,
        )


class _Lines:
    """Prints only changes, so that a log stays readable."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._last_text = ""

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, job: JobRecord) -> None:
        words = _step_or_summary(job)
        if not self._quiet and job.state not in ENDED_STATES and words != self._last_text:
            self._last_text = words
            sys.stderr.write(f"{words}\n")
