"""`ebla compare`: whether the replicas of a table hold the same, and making it so."""

from typing import Annotated

import typer

from ebla.cli.copy_tablet import Detach, tell_end
from ebla.cli.job_access import JobAccess, with_jobs
from ebla.cli.job_following import Asked, carry_out
from ebla.cli.shown_jobs import counted
from ebla.cli.shown_rows import print_table
from ebla.cli.table import DATA_DEFAULT, Data, JsonFlag, NodeName, TableArgument, table_schema
from ebla.cli.telling import errors_told, outcomes_told
from ebla.client.jobs import has_failed
from ebla.model.errors import InvalidRequest
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, Token, TokenRange
from ebla.pipeline.plan_jobs import plan_job
from ebla.topology.replica_sets import ReplicaSets
from ebla.wire.jobs import Compare, Job, Wish

HASH_LETTERS = 8


app = typer.Typer()
"""Without a name: its command stands among those of whoever takes it in."""


@app.command()
def compare(
    table: TableArgument,
    heal: Annotated[bool, typer.Option("--heal", help="Bring to each replica what it lacks of the others.")] = False,
    within: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar="AFTER:UPTO",
            help="Tokens above AFTER, up to UPTO: --range=-100:200. Round the ring if UPTO is no greater.",
        ),
    ] = None,
    detach: Detach = False,
    data: Data = DATA_DEFAULT,
    node: NodeName = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare all replicas of a table by hashes of its ranges, and tell which differ.

    Writes may go on meanwhile: what differs is looked at again before it is called different.
    The exit status is 1 if replicas differ (with --heal: still differ), or if the job failed.
    """

    def plan(access: JobAccess) -> tuple[Wish, str]:
        schema = table_schema(access.snapshot, table)
        wish = Compare(schema.id, None if within is None else parse_range(within), heal)
        plan_job(ReplicaSets(access.snapshot), wish, access.down)
        where = "" if within is None else f" in {within}"
        return wish, f"compare{' and heal' if heal else ''} {table}{where}"

    with errors_told(), outcomes_told(as_json=as_json):
        asked = Asked(data, node, as_json, detach)
        job = carry_out(asked, plan)
        if not detach:
            tell_end(job, as_json=as_json)
            if not as_json:
                _print_differences(asked, job)
    differs = job.result is not None and job.result.differences_total > 0
    raise typer.Exit(1 if has_failed(job) or differs else 0)


def parse_range(text: str) -> TokenRange:
    after, colon, upto = text.partition(":")
    try:
        tokens = Token(int(after)), Token(int(upto))
    except ValueError:
        colon = ""
    if not colon:
        raise InvalidRequest(f"{text!r} is no range of tokens", advice="write it as AFTER:UPTO, as in --range=-100:200")
    if any(not TOKEN_MIN <= token <= TOKEN_MAX for token in tokens):
        raise InvalidRequest(f"{text!r} has a token that is none", advice=f"they are {TOKEN_MIN} to {TOKEN_MAX}")
    return TokenRange(*tokens)


def _print_differences(asked: Asked, job: Job) -> None:
    if job.result is None or not job.result.differences:
        return

    async def look(access: JobAccess) -> JobAccess:
        return access

    access = with_jobs(asked.data, asked.node, look)
    rows = []
    for one in job.result.differences:
        replicas = " ".join(
            f"{access.address(host)}:{digest[:HASH_LETTERS]}({rows_there})" for host, digest, rows_there in one.replicas
        )
        rows.append((int(one.range.start), int(one.range.end), replicas))
    print_table(("after", "up_to", "replicas: address:hash(rows)"), rows)
    more = job.result.differences_total - len(rows)
    if more:
        typer.echo(f"and {counted(more, 'more range')}")
