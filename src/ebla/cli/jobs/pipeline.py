"""`ebla pipeline …`: the state of the pipeline and its jobs."""

import sys
from typing import Annotated

import typer

from ebla.cli.cluster.status_table import duration
from ebla.cli.cluster.status_table import pipeline as pipeline_words
from ebla.cli.flags import DATA_DEFAULT, Data, JsonFlag, NodeName
from ebla.cli.jobs.job_context import JobCommandContext, with_job_context
from ebla.cli.jobs.job_following import JobFlags, follow_to_end
from ebla.cli.jobs.job_output import as_json as to_json
from ebla.cli.jobs.job_output import job_summary
from ebla.cli.output import print_json, print_table, reporting_outcomes
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


@app.command()
def status(data: Data = DATA_DEFAULT, node: NodeName = None, as_json: JsonFlag = False) -> None:
    """Show where the pipeline runs and whether it is ready. The exit status is 1 if it is not."""

    async def work(
        access: JobCommandContext,
    ) -> tuple[PipelineState | None, PipelineView, list[JobRecord], JobCommandContext]:
        return *await access.pipeline(), await access.jobs.jobs(), access

    with reporting_outcomes(as_json=as_json, is_change=False):
        state, view, jobs, access = with_job_context(data, node, work)
        counts = {each.value: sum(job.state is each for job in jobs) for each in JobState}
        ready = view.state == EngineState.READY
        if as_json:
            print_json({"ready": ready, "pipeline": to_json(view), "jobs": counts})
        else:
            typer.echo(f"pipeline  {pipeline_words(view)}")
            if view.host is not None and state is not None:
                since_ms = SystemClock().wall_us() // 1000 - state.reported_ms
                typer.echo(
                    f"node      {access.address(view.host)}, process {view.pid}, {view.state} for {duration(since_ms)}"
                )
            typer.echo("jobs      " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    raise typer.Exit(0 if ready else 1)


@app.command()
def jobs(
    everything: Annotated[bool, typer.Option("--all", help="Also jobs that have ended.")] = False,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    as_json: JsonFlag = False,
) -> None:
    """List jobs and their progress."""

    async def work(access: JobCommandContext) -> list[JobRecord]:
        return await access.jobs.jobs()

    with reporting_outcomes(as_json=as_json, is_change=False):
        found = [job for job in with_job_context(data, node, work) if everything or job.state not in ENDED_STATES]
        if as_json:
            print_json([to_json(job) for job in found])
        elif found:
            now_ms = SystemClock().wall_us() // 1000
            rows = [
                (str(job.id), job.what, f"{duration(now_ms - job.submitted_ms)} ago", job_summary(job)) for job in found
            ]
            print_table(("job", "what", "submitted", "state"), rows)
        else:
            typer.echo("no jobs" if everything else "no jobs wait or run; --all shows ended ones")


@app.command()
def cancel(
    job: Annotated[str, typer.Argument(help="The id of the job, or its first letters.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return once it has ended.")] = True,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    as_json: JsonFlag = False,
) -> None:
    """Cancel a job. Once it is cancelled, tasks of it that still run have no effect."""

    async def work(access: JobCommandContext) -> JobRecord:
        return await access.jobs.cancel((await access.jobs.find(job)).id)

    with reporting_outcomes(as_json=as_json):
        record = with_job_context(data, node, work)
        if wait:
            record = follow_to_end(JobFlags(data=data, node=node, as_json=as_json, detach=False), record)
        if as_json:
            print_json(to_json(record))
        elif record.state is JobState.CANCELLED:
            typer.echo(f"cancelled {record.id}: {record.what}")
        elif record.state in ENDED_STATES:
            sys.stderr.write(f"ebla: job {record.id} had ended before: {job_summary(record)}\n")
        else:
            typer.echo(f"cancel requested for {record.id}: {record.what}")
    raise typer.Exit(1 if record.state in ENDED_STATES and record.state is not JobState.CANCELLED else 0)
