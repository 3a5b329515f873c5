"""`ebla pipeline …`: the state of the pipeline and its jobs."""

import sys
from typing import Annotated

import typer

from ebla.cli.cluster.status_details import pipeline as pipeline_words
from ebla.cli.command import NodeFlags, TableFlags, add_command
from ebla.cli.figures import duration
from ebla.cli.jobs.job_context import JobCommandContext, with_job_context
from ebla.cli.jobs.job_following import follow_to_end
from ebla.cli.jobs.job_output import as_json as to_json
from ebla.cli.jobs.job_output import job_summary
from ebla.cli.output import print_json
from ebla.client.cluster_view import PipelineView
from ebla.model.records.jobs import ENDED_STATES, JobRecord, JobState, PipelineState
from ebla.ports.transfer_engine import EngineState
from ebla.runtime.system_clock import SystemClock

HELP = """
The pipeline: Spark, started by the leader, moves data between nodes. Its work is organised in jobs.

Other commands submit jobs: ebla copy-tablet, ebla compare.

  ebla pipeline status         where it runs, and whether it is ready
  ebla pipeline jobs           waiting and running jobs; --all: also ended ones
  ebla pipeline cancel 3f2a    by the id of a job, or its first letters
"""

app = typer.Typer(name="pipeline", no_args_is_help=True, help=HELP, rich_markup_mode="rich")


@add_command(app, is_change=False)
def status(flags: NodeFlags) -> int:
    """Show where the pipeline runs and whether it is ready. The exit status is 1 if it is not."""

    async def work(
        access: JobCommandContext,
    ) -> tuple[PipelineState | None, PipelineView, list[JobRecord], JobCommandContext]:
        return *await access.pipeline(), await access.jobs.jobs(), access

    state, view, jobs, access = with_job_context(flags.data, flags.node, work)
    counts = {each.value: sum(job.state is each for job in jobs) for each in JobState}
    ready = view.state == EngineState.READY
    lines = [f"pipeline  {pipeline_words(view)}"]
    if view.host is not None and state is not None:
        since = duration(SystemClock().wall_us() // 1000 - state.reported_ms)
        lines.append(f"node      {access.address(view.host)}, process {view.pid}, {view.state} for {since}")
    lines.append("jobs      " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    flags.show({"ready": ready, "pipeline": to_json(view), "jobs": counts}, "\n".join(lines))
    return 0 if ready else 1


@add_command(app, is_change=False)
def jobs(
    flags: TableFlags, everything: Annotated[bool, typer.Option("--all", help="Also jobs that have ended.")] = False
) -> None:
    """List jobs and their progress."""

    async def work(access: JobCommandContext) -> list[JobRecord]:
        return await access.jobs.jobs()

    known = with_job_context(flags.data, flags.node, work)
    found = [job for job in known if everything or job.state not in ENDED_STATES]
    if flags.as_json:
        print_json([to_json(job) for job in found])
    elif found:
        now_ms = SystemClock().wall_us() // 1000
        rows = [
            (str(job.id), job.what, f"{duration(now_ms - job.submitted_ms)} ago", job_summary(job)) for job in found
        ]
        flags.print_records(("job", "what", "submitted", "state"), rows, less_important=("submitted", "job"))
    else:
        typer.echo("no jobs" if everything else "no jobs wait or run; --all shows ended ones")


@add_command(app, is_change=True)
def cancel(
    flags: NodeFlags,
    job: Annotated[str, typer.Argument(help="The id of the job, or its first letters.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return once it has ended.")] = True,
) -> int:
    """Cancel a job. Once it is cancelled, tasks of it that still run have no effect."""

    async def work(access: JobCommandContext) -> JobRecord:
        return await access.jobs.cancel((await access.jobs.find(job)).id)

    record = with_job_context(flags.data, flags.node, work)
    if wait:
        record = follow_to_end(flags, record)
    had_ended = record.state in ENDED_STATES and record.state is not JobState.CANCELLED
    if had_ended and not flags.as_json:
        sys.stderr.write(f"ebla: job {record.id} had ended before: {job_summary(record)}\n")
    else:
        done = "cancelled" if record.state is JobState.CANCELLED else "cancel requested for"
        flags.show(to_json(record), f"{done} {record.id}: {record.what}")
    return 1 if had_ended else 0
