"""`ebla leases` and `ebla activities`: who leads, which leases it holds, and what runs under them."""

from typing import Annotated

import msgspec
import typer

from ebla.cli.command import TableFlags, add_command
from ebla.cli.output import print_json
from ebla.client.leadership_view import has_majority, headline, leader_of
from ebla.leadership.messages import LeaseState
from ebla.model.identity import HostId
from ebla.wire.leadership_messages import (
    ClusterLeadershipAnswer,
    ClusterLeadershipRequest,
    HeldLeaseReport,
    LeadershipReport,
)
from ebla.wire.verbs import CLUSTER_LEADERSHIP

CALL_MS = 5_000
DASH = "–"

app = typer.Typer()
"""Unnamed, so that its commands are added to the parent."""


@add_command(app, is_change=False)
def leases(flags: TableFlags) -> int:
    """Show who leads and the lease of each node. Exit status 1 if no leader holds a majority of leases."""
    answer = flags.call(CLUSTER_LEADERSHIP, ClusterLeadershipRequest(), CALL_MS)
    if flags.as_json:
        print_json(msgspec.to_builtins(_named(answer)))
    else:
        typer.echo(headline(answer.reports))
        names, rows = lease_rows(answer)
        flags.print_records(names, rows, less_important=("on disk", "rtt/timeout", "renewed"))
        for one in answer.reports:
            if one.slow_turns:
                slow = f"{one.slow_turns} turns above 100 ms, longest {one.longest_turn_ms} ms"
                typer.echo(f"control loop of {one.address}: {slow}")
    return 0 if has_majority(answer.reports) else 1


@add_command(app, is_change=False)
def activities(
    flags: TableFlags, ended: Annotated[bool, typer.Option("--ended", help="Show the last ones that ended.")] = False
) -> None:
    """Show what runs or waits under leases, on every node."""
    answer = flags.call(CLUSTER_LEADERSHIP, ClusterLeadershipRequest(), CALL_MS)
    if flags.as_json:
        found = [
            (report.address, one) for report in answer.reports for one in (report.ended if ended else report.activities)
        ]
        print_json(msgspec.to_builtins([{"node": address} | _named(one) for address, one in found]))
        return
    names, rows = ended_rows(answer) if ended else activity_rows(answer)
    flags.print_records(names, rows, less_important=("quorum", "domain", "leases"))


def _named(one: msgspec.Struct) -> dict[str, object]:
    """With the names of its fields: on the wire it is an array."""
    return {name: _with_names(getattr(one, name)) for name in one.__struct_fields__}


def _with_names(value: object) -> object:
    if isinstance(value, tuple):
        return [_with_names(one) for one in value]
    return _named(value) if isinstance(value, msgspec.Struct) else value


def activity_rows(answer: ClusterLeadershipAnswer) -> tuple[tuple[str, ...], list[list[str]]]:
    names = ("activity", "domain", "node", "quorum", "leases", "state", "age", "waits for")
    found = [(report.address, one) for report in answer.reports for one in report.activities]
    return names, [
        [
            one.name,
            one.domain,
            address,
            one.quorum,
            f"{one.leases_held} of {one.leases_needed}" if one.leases_needed else DASH,
            one.state,
            _seconds(one.age_ms),
            one.waits_for,
        ]
        for address, one in found
    ]


def ended_rows(answer: ClusterLeadershipAnswer) -> tuple[tuple[str, ...], list[list[str]]]:
    names = ("activity", "domain", "node", "reason", "ran", "ended")
    found = [(report.address, one) for report in answer.reports for one in report.ended]
    return names, [
        [one.name, one.domain, address, one.reason, _seconds(one.ran_ms), f"{_seconds(one.ended_ms_ago)} ago"]
        for address, one in found
    ]


def lease_rows(answer: ClusterLeadershipAnswer) -> tuple[tuple[str, ...], list[list[str]]]:
    leader = leader_of(answer.reports)
    held = {} if leader is None else {one.host: one for one in leader.held}
    addresses = {one.host: one.address for one in answer.reports}
    addresses |= {one.host: one.address for one in answer.silent}
    rows = [_row(one, held.get(one.host), addresses) for one in answer.reports]
    rows += [[one.address, "", "silent", "", "", "", "", one.cause] for one in answer.silent]
    return ("node", "held by", "state", "left", "rtt/timeout", "renewed", "on disk", "note"), sorted(rows)


def _row(report: LeadershipReport, held: HeldLeaseReport | None, addresses: dict[HostId, str]) -> list[str]:
    holder = report.lease.holder if report.lease is not None else None
    ending = [one for one in report.activities if one.state == "ending"]
    notes = [f"waits for {one.name} ({_seconds(one.ending_ms)})" for one in ending]
    if held is not None and held.trouble:
        notes.append(held.trouble)
    rtt_ms = None if held is None or held.rtt_us is None else f"{held.rtt_us / 1000:.1f}"
    renewed = None if held is None or held.renewed_ms_ago is None else f"{_seconds(held.renewed_ms_ago)} ago"
    is_promised = report.state is not LeaseState.NONE
    return [
        report.address,
        DASH if holder is None else addresses.get(holder, str(holder)),
        report.state,
        _seconds(report.left_ms) if is_promised else DASH,
        DASH if held is None or rtt_ms is None else f"{rtt_ms}/{held.timeout_ms} ms",
        renewed or DASH,
        _seconds(report.on_disk_ms),
        "; ".join(notes),
    ]


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s"
