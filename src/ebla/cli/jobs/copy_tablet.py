"""`ebla copy-tablet`: copies the files of one replica of a tablet to another."""

import sys
from typing import Annotated

import typer

from ebla.cli.error_reporting import reporting_outcomes
from ebla.cli.flags import DATA_DEFAULT, Data, JsonFlag, NodeName, TableArgument
from ebla.cli.jobs.job_context import JobCommandContext
from ebla.cli.jobs.job_following import JobFlags, submit_and_follow
from ebla.cli.jobs.job_output import as_json as to_json
from ebla.cli.jobs.job_output import job_summary
from ebla.cli.output import print_json
from ebla.cli.tables.table_access import table_schema
from ebla.client.job_client import has_failed
from ebla.model.records.jobs import CopyTablets, JobRecord, JobSpec
from ebla.pipeline.job_plans import plan_job
from ebla.topology.routing.replica_sets import ReplicaSets

Detach = Annotated[bool, typer.Option("--detach", help="Return at once; the job continues.")]


app = typer.Typer()
"""Unnamed, so that `add_typer` adds its command to the parent."""


@app.command("copy-tablet")
def copy_tablet(
    table: TableArgument,
    tablets: Annotated[list[int], typer.Argument(metavar="TABLET…", help="Their numbers (see `ebla tablets`).")],
    source: Annotated[
        str, typer.Option("--from", metavar="NODE", help="Address, host id or the first letters of a host id.")
    ],
    target: Annotated[str, typer.Option("--to", metavar="NODE", help="Another replica of them.")],
    short_cut: Annotated[
        bool,
        typer.Option("--short-cut/--no-short-cut", help="Link files where both nodes are on one machine."),
    ] = True,
    detach: Detach = False,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy the files of one replica of tablets to another of their replicas, while both serve.

    The target keeps its rows; of cells that both have, the newer one wins. The exit status is 1 if the job failed.
    """

    def plan(access: JobCommandContext) -> tuple[JobSpec, str]:
        schema = table_schema(access.snapshot, table)
        spec = CopyTablets(
            schema.id, tuple(dict.fromkeys(tablets)), access.host(source), access.host(target), short_cut
        )
        plan_job(ReplicaSets(access.snapshot), spec, access.down)
        places = f"{access.address(spec.source)} to {access.address(spec.target)}"
        named = f"tablet {spec.tablets[0]}" if len(spec.tablets) == 1 else f"{len(spec.tablets)} tablets"
        return spec, f"copy {named} of {table} from {places}"

    with reporting_outcomes(as_json=as_json):
        flags = JobFlags(data=data, node=node, as_json=as_json, detach=detach)
        job = submit_and_follow(flags, plan)
        if not detach:
            print_job_result(job, as_json=as_json)
    raise typer.Exit(1 if has_failed(job) else 0)


def print_job_result(job: JobRecord, *, as_json: bool) -> None:
    if as_json:
        print_json(to_json(job))
    elif has_failed(job):
        sys.stderr.write(f"ebla: {job.what}: {job_summary(job)}\n")
    else:
        typer.echo(f"{job.what}: {job_summary(job)}")
