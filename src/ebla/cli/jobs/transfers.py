"""`ebla copy-tablet` and `ebla compare`: copies tablets between replicas, and compares replicas."""

import sys
from typing import Annotated

import typer

from ebla.cli.command import add_command
from ebla.cli.flags import TableArgument
from ebla.cli.jobs.job_context import JobCommandContext, with_job_context
from ebla.cli.jobs.job_following import JobFlags, submit_and_follow
from ebla.cli.jobs.job_output import as_json as to_json
from ebla.cli.jobs.job_output import count_of, job_summary
from ebla.cli.output import print_table
from ebla.cli.tables.table_access import table_schema
from ebla.client.job_client import has_failed
from ebla.model.errors import InvalidRequest
from ebla.model.records.jobs import CompareReplicas, CopyTablets, JobRecord, JobSpec
from ebla.model.token import TOKEN_MAX, TOKEN_MIN, Token, TokenRange
from ebla.pipeline.job_plans import ComparePlan, plan_job
from ebla.topology.routing.replica_sets import ReplicaSets

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@add_command(app, "copy-tablet", is_change=True)
def copy_tablet(
    flags: JobFlags,
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
) -> int:
    """Copy the files of one replica of tablets to another of their replicas, while both serve.

    The target keeps its rows; of cells that both have, the newer one wins. The exit status is 1 if the job failed.
    """

    def plan(access: JobCommandContext) -> tuple[JobSpec, str]:
        schema = table_schema(access.snapshot, table)
        spec = CopyTablets(
            table=schema.id,
            tablets=tuple(dict.fromkeys(tablets)),
            source=access.host(source),
            target=access.host(target),
            short_cut=short_cut,
        )
        plan_job(ReplicaSets(access.snapshot), spec, access.down)
        places = f"{access.address(spec.source)} to {access.address(spec.target)}"
        named = f"tablet {spec.tablets[0]}" if len(spec.tablets) == 1 else f"{len(spec.tablets)} tablets"
        return spec, f"copy {named} of {table} from {places}"

    job = submit_and_follow(flags, plan)
    _print_result(flags, job)
    return 1 if has_failed(job) else 0


def _print_result(flags: JobFlags, job: JobRecord) -> None:
    if flags.detach:
        return
    if has_failed(job) and not flags.as_json:
        sys.stderr.write(f"ebla: {job.what}: {job_summary(job)}\n")
    else:
        flags.show(to_json(job), f"{job.what}: {job_summary(job)}")


HASH_LETTERS = 8


class NothingToCompare(InvalidRequest):
    """Each range of the table has one replica."""


@add_command(app, is_change=True)
def compare(
    flags: JobFlags,
    table: TableArgument,
    heal: Annotated[bool, typer.Option("--heal", help="Copy to each replica the rows it lacks.")] = False,
    within: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar="AFTER:UPTO",
            help="Tokens above AFTER, up to UPTO: --range=-100:200. Wraps around the ring if UPTO is not greater.",
        ),
    ] = None,
) -> int:
    """Compare all replicas of a table by hashes of token ranges, and list the ranges that differ.

    Writes may go on meanwhile: a range that differs is checked again before it is reported.
    The exit status is 1 if replicas differ (with --heal: still differ), or if the job failed.
    """

    def plan(access: JobCommandContext) -> tuple[JobSpec, str]:
        schema = table_schema(access.snapshot, table)
        spec = CompareReplicas(schema.id, None if within is None else parse_range(within), heal)
        planned = plan_job(ReplicaSets(access.snapshot), spec, access.down)
        if isinstance(planned, ComparePlan) and all(len(part.replicas) < 2 for part in planned.ranges):
            raise NothingToCompare(f"nothing to compare: {table} has one replica")
        where = "" if within is None else f" in {within}"
        return spec, f"compare{' and heal' if heal else ''} {table}{where}"

    try:
        job = submit_and_follow(flags, plan)
    except NothingToCompare as nothing:
        flags.show({"table": table, "replicas": 1, "differences_total": 0}, nothing.message)
        return 0
    _print_result(flags, job)
    if not (flags.detach or flags.as_json):
        _print_differences(flags, job)
    differs = job.result is not None and job.result.differences_total > 0
    return 1 if has_failed(job) or differs else 0


def parse_range(text: str) -> TokenRange:
    after, colon, upto = text.partition(":")
    try:
        tokens = Token(int(after)), Token(int(upto))
    except ValueError:
        colon = ""
    if not colon:
        raise InvalidRequest(f"{text!r} is no range of tokens", advice="write it as AFTER:UPTO, as in --range=-100:200")
    if any(not TOKEN_MIN <= token <= TOKEN_MAX for token in tokens):
        raise InvalidRequest(f"{text!r} has a token out of range", advice=f"they are {TOKEN_MIN} to {TOKEN_MAX}")
    return TokenRange(*tokens)


def _print_differences(flags: JobFlags, job: JobRecord) -> None:
    if job.result is None or not job.result.differences:
        return

    async def get_context(access: JobCommandContext) -> JobCommandContext:
        return access

    access = with_job_context(flags.data, flags.node, get_context)
    rows = []
    for one in job.result.differences:
        replicas = " ".join(
            f"{access.address(host)}:{digest[:HASH_LETTERS]}({rows_there})" for host, digest, rows_there in one.replicas
        )
        rows.append((int(one.range.start), int(one.range.end), replicas))
    print_table(("after", "up_to", "replicas: address:hash(rows)"), rows)
    more = job.result.differences_total - len(rows)
    if more:
        typer.echo(f"and {count_of(more, 'more range')}")
