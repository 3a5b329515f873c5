"""`ebla copy-tablet`: the files of one replica of a tablet to another."""

import sys
from typing import Annotated

import typer

from ebla.cli.job_access import JobAccess
from ebla.cli.job_following import Asked, carry_out
from ebla.cli.shown_jobs import as_json as shown
from ebla.cli.shown_jobs import job_words
from ebla.cli.shown_rows import print_json
from ebla.cli.table import DATA_DEFAULT, Data, JsonFlag, NodeName, TableArgument, table_schema
from ebla.cli.telling import errors_told, outcomes_told
from ebla.client.jobs import has_failed
from ebla.pipeline.plan_jobs import plan_job
from ebla.topology.replica_sets import ReplicaSets
from ebla.wire.jobs import CopyTablets, Job, Wish

Detach = Annotated[bool, typer.Option("--detach", help="Return at once; the job goes on.")]


app = typer.Typer()
"""Without a name: its command stands among those of whoever takes it in."""


@app.command("copy-tablet")
def copy_tablet(
    table: TableArgument,
    tablets: Annotated[list[int], typer.Argument(metavar="TABLET…", help="Their numbers (see `ebla tablets`).")],
    source: Annotated[str, typer.Option("--from", metavar="NODE", help="Address, host id or the first letters of it.")],
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

    What the target has stays; of cells that both have the newer one counts. The exit status is 1 if it failed.
    """

    def plan(access: JobAccess) -> tuple[Wish, str]:
        schema = table_schema(access.snapshot, table)
        wish = CopyTablets(
            schema.id, tuple(dict.fromkeys(tablets)), access.host(source), access.host(target), short_cut
        )
        plan_job(ReplicaSets(access.snapshot), wish, access.down)
        places = f"{access.address(wish.source)} to {access.address(wish.target)}"
        named = f"tablet {wish.tablets[0]}" if len(wish.tablets) == 1 else f"{len(wish.tablets)} tablets"
        return wish, f"copy {named} of {table} from {places}"

    with errors_told(), outcomes_told(as_json=as_json):
        asked = Asked(data, node, as_json, detach)
        job = carry_out(asked, plan)
        if not detach:
            tell_end(job, as_json=as_json)
    raise typer.Exit(1 if has_failed(job) else 0)


def tell_end(job: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(shown(job))
    elif has_failed(job):
        sys.stderr.write(f"ebla: {job.what}: {job_words(job)}\n")
    else:
        typer.echo(f"{job.what}: {job_words(job)}")
