"""`ebla settings …`: reads and changes the settings of the cluster, and purges deleted ones."""

import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ebla.cli.command import NodeFlags, TableFlags, add_command
from ebla.cli.output import print_json, print_records
from ebla.control.settings.cluster import duration_text
from ebla.model.errors import DeadlineExceeded, EblaError, InvalidRequest
from ebla.runtime.system_clock import SystemClock
from ebla.runtime.system_rng import SystemRng
from ebla.settings_store.entry import Entry
from ebla.settings_store.merge import NEVER_PURGED, merge
from ebla.settings_store.notation import EXAMPLE, format_entry, parse_entry
from ebla.settings_store.purge import PurgeResult
from ebla.wire.settings_messages import (
    PurgeReport,
    SettingChange,
    SettingHistoryView,
    SettingsGetRequest,
    SettingsHistoryRequest,
    SettingsListAnswer,
    SettingsListRequest,
    SettingsPurgeRequest,
    SettingsPurgeStatusAnswer,
    SettingsPurgeStatusRequest,
    SettingsWatchRequest,
    SettingsWriteAnswer,
    SettingsWriteRequest,
    SettingView,
)
from ebla.wire.verbs import (
    SETTINGS_GET,
    SETTINGS_HISTORY,
    SETTINGS_LIST,
    SETTINGS_PURGE,
    SETTINGS_PURGE_STATUS,
    SETTINGS_WATCH,
    SETTINGS_WRITE,
)

HELP = """
Settings of the cluster. Every node has them; any node changes them, even without a quorum.

  ebla settings list                               all settings, and the values in effect
  ebla settings set settings_purge.age_ms 60000    change one field of a setting
  ebla settings delete settings_purge              back to the default
  ebla settings history settings_purge             its last changes
  ebla settings purge                              purge deleted settings now

An error states the outcome of the operation: not applied, or unknown. See docs/settings.md.
"""

app = typer.Typer(name="settings", no_args_is_help=True, help=HELP, rich_markup_mode="rich")

TIMEOUT_MS = 5_000
WAIT_MS = 1_000
WAIT_ALL_MS = 30_000
WATCH_MS = 10_000
FOLLOW_MS = 1_000
RETRY_S = 0.2
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def parse_duration(text: str) -> int:
    """In milliseconds."""
    found = re.fullmatch(r"(\d{1,9})(ms|s|m|h)", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; write it like 500ms, 60s, 5m or 1h")
    return int(found[1]) * _UNITS_MS[found[2]]


def parse_notation(text: str) -> Entry | None:
    try:
        return parse_entry(text)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from None


NameArgument = Annotated[str, typer.Argument(metavar="NAME")]
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="Only names that begin so.")]


# ---- reads


@add_command(app, "list", is_change=False)
def list_settings(
    flags: TableFlags,
    prefix: Prefix = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Deleted ones too, until they are purged.")] = False,
) -> None:
    """List settings: the value in effect, and who changed it when."""
    views = [view for page in _pages(flags, prefix, deleted=deleted) for view in page.settings]
    if flags.as_json:
        print_json([_view_json(view) for view in views])
        return
    rows = [(view.name, _when(view.changed_wall_us), view.changed_at, _value_and_remark(view)) for view in views]
    flags.print_records(("name", "changed", "by", "value"), rows, missing="-", less_important=("by", "changed"))


@add_command(app, is_change=False)
def get(flags: NodeFlags, name: NameArgument) -> int:
    """Print the value in effect. NAME.FIELD prints one field. The exit status is 1 if there is none."""
    view = flags.call(SETTINGS_GET, SettingsGetRequest(name), TIMEOUT_MS)
    if flags.as_json:
        print_json(_view_json(view))
    elif view.value is not None:
        typer.echo(_value(view.value))
    if view.value is None:
        sys.stderr.write(f"ebla: {name} has no value\n")
    if view.problem:
        sys.stderr.write(f"ebla: the newest value is not in effect: {view.problem}\n")
    return 1 if view.value is None else 0


@add_command(app, is_change=False)
def watch(
    flags: NodeFlags,
    prefix: Prefix = "",
    count: Annotated[int | None, typer.Option("--count", metavar="N", help="End after this many changes.")] = None,
) -> None:
    """Print changes as this node sees them, until Ctrl-C."""
    seen = 0
    try:
        for view in _changes(flags, prefix):
            if flags.as_json:
                print_json(_view_json(view))
            else:
                by = f" by {view.changed_at}" if view.changed_at else ""
                remark = f" ({_remark(view)})" if _remark(view) else ""
                when, value = _when(view.changed_wall_us) or "-", _value(view.value) or "-"
                typer.echo(f"{when} {view.name} = {value}{by}{remark}")
            seen += 1
            if seen == count:
                return
    except KeyboardInterrupt:
        sys.stderr.write("\n")


@add_command(app, is_change=False)
def history(flags: NodeFlags, name: NameArgument) -> None:
    """Show the last changes that this node saw, the newest last."""
    changes = flags.call(SETTINGS_HISTORY, SettingsHistoryRequest(name), TIMEOUT_MS).changes
    if flags.as_json:
        print_json([_history_json(one) for one in changes])
        return
    rows = [(_when(one.changed_wall_us), one.changed_at, _change_text(one)) for one in changes]
    print_records(("changed", "by", "change"), rows, as_json=False, missing="-")


@add_command(app, is_change=False)
def explain(
    flags: NodeFlags,
    local: Annotated[
        str, typer.Argument(metavar="LOCAL", help=f"An entry, like '{EXAMPLE}'; D is a tombstone, - none.")
    ],
    remote: Annotated[str, typer.Argument(metavar="REMOTE", help="The entry that is merged into it.")],
    purged_until: Annotated[
        int, typer.Option("--purged-until", metavar="N", help="Tombstones up to this timestamp are purged here.")
    ] = NEVER_PURGED,
) -> None:
    """Merge two versions of a setting as a node would, and name the row of the decision table."""
    merged = merge(parse_notation(local), parse_notation(remote), purged_until)
    shown = {"row": merged.row, "result": format_entry(merged.entry), "pushed": merged.pushed}
    flags.show(shown, "\n".join(f"{name:<7} {_word(value)}" for name, value in shown.items()))


# ---- changes


@add_command(app, "set", is_change=True)
def set_setting(
    flags: NodeFlags,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A setting, or NAME.FIELD for one field of it.")],
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    expected: Annotated[
        str | None, typer.Option("--if", metavar="VALUE", help="Only if it has this value on the node that is asked.")
    ] = None,
    on: Annotated[
        str, typer.Option("--on", metavar="HOST", help="The own value of one node: its address or host id.")
    ] = "",
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait up to 30 s for every node that is up; the exit status is 1 if one is missing."
        ),
    ] = False,
) -> int:
    """Set a setting. It is durable on one node when the command returns, and reaches the others from there."""
    request = SettingsWriteRequest(
        changes=(SettingChange(name, value),),
        expected=() if expected is None else (SettingChange(name, expected),),
        on=on,
        wait_ms=WAIT_ALL_MS if wait else WAIT_MS,
    )
    answer = flags.call(SETTINGS_WRITE, request, request.wait_ms + TIMEOUT_MS)
    _show_written(flags, answer)
    return 1 if wait and any(one.is_up for one in answer.missing) else 0


@add_command(app, is_change=True)
def delete(flags: NodeFlags, name: NameArgument) -> None:
    """Delete a setting: its default is in effect again."""
    request = SettingsWriteRequest(changes=(SettingChange(name, None),), wait_ms=WAIT_MS)
    _show_written(flags, flags.call(SETTINGS_WRITE, request, WAIT_MS + TIMEOUT_MS))


# ---- purge


@add_command(app, is_change=True)
def purge(
    flags: NodeFlags,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="TIME", help="Purge what was deleted before; by default settings_purge.age_ms."
        ),
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="Deadline of the round.")] = "60s",
) -> int:
    """Purge deleted settings now. Every member must be up. An unfinished round is finished first."""
    request = SettingsPurgeRequest(
        round=SystemRng().uuid(),
        timeout_ms=parse_duration(timeout),
        older_than_ms=None if older_than is None else parse_duration(older_than),
        wait_ms=FOLLOW_MS,
    )
    report = _follow_round(flags, request)
    is_done = report.result in (PurgeResult.PURGED, PurgeResult.NOTHING_TO_PURGE)
    if flags.as_json:
        print_json(_report_json(report))
    elif report.result == PurgeResult.PURGED:
        typer.echo(f"purged: {report.tombstones} tombstone{'' if report.tombstones == 1 else 's'}")
    elif is_done:
        typer.echo(_report_text(report))
    else:
        sys.stderr.write(f"ebla: {_OUTCOMES.get(report.outcome, report.outcome)}: {_report_text(report)}\n")
    return 0 if is_done else 1


@add_command(app, "purge-status", is_change=False)
def purge_status(flags: NodeFlags) -> None:
    """Show up to when deleted settings are purged, what waits, and how the last round ended."""
    status = flags.call(SETTINGS_PURGE_STATUS, SettingsPurgeStatusRequest(), TIMEOUT_MS)
    flags.show(_status_json(status), "\n".join(_status_lines(status)))


# ---- calls


def _pages(flags: NodeFlags, prefix: str, *, deleted: bool) -> Iterator[SettingsListAnswer]:
    after, more = "", True
    while more:
        request = SettingsListRequest(prefix=prefix, deleted=deleted, after=after)
        page = flags.call(SETTINGS_LIST, request, TIMEOUT_MS)
        yield page
        after, more = page.settings[-1].name if page.settings else after, page.more and bool(page.settings)


def _changes(flags: NodeFlags, prefix: str) -> Iterator[SettingView]:
    """Begins with the next change. If the node does not know what changed meanwhile, everything is listed again."""
    serial = next(_pages(flags, prefix, deleted=False)).serial
    while True:
        request = SettingsWatchRequest(after=serial, prefix=prefix, wait_ms=WATCH_MS)
        answer = flags.call(SETTINGS_WATCH, request, WATCH_MS + TIMEOUT_MS)
        if not answer.reset:
            serial = answer.serial
            yield from answer.settings
            continue
        pages = list(_pages(flags, prefix, deleted=True))
        serial = pages[0].serial
        for page in pages:
            yield from page.settings


def _follow_round(flags: NodeFlags, request: SettingsPurgeRequest) -> PurgeReport:
    """Prints each step. The round ends by its own deadline, and an answer that gets lost is asked for again."""
    clock = SystemClock()
    expires_ms = clock.boot_ms() + request.timeout_ms + TIMEOUT_MS
    seen, has_begun = 0, False
    while True:
        asked = SettingsPurgeRequest(
            round=request.round,
            timeout_ms=request.timeout_ms,
            older_than_ms=request.older_than_ms,
            seen=seen,
            wait_ms=request.wait_ms,
        )
        try:
            answer = flags.call(SETTINGS_PURGE, asked, FOLLOW_MS + TIMEOUT_MS)
        except EblaError as error:
            if not has_begun:
                raise
            if clock.boot_ms() >= expires_ms:
                raise DeadlineExceeded(
                    f"the end of the round was not observed: {error.message}", advice="see ebla settings purge-status"
                ) from error
            time.sleep(RETRY_S)
            continue
        has_begun = True
        seen += len(answer.steps)
        for step in () if flags.as_json else answer.steps:
            typer.echo(step)
        if answer.report is not None:
            return answer.report
        if clock.boot_ms() >= expires_ms:
            raise DeadlineExceeded("the round did not end in time", advice="see ebla settings purge-status")


# ---- output

_OUTCOMES = {"not_applied": "not applied", "unknown": "unknown whether it was applied"}


def _show_written(flags: NodeFlags, answer: SettingsWriteAnswer) -> None:
    missing = [{"host": str(one.host), "address": one.address, "cause": one.cause} for one in answer.missing]
    have = answer.members - len(missing)
    text = "done; nothing changed"
    if answer.changed:
        causes = "".join(f", {one.address} {_verbal(one.cause)}" for one in answer.missing)
        text = f"done; {have} of {answer.members} nodes have it{causes}"
    shown = {"outcome": "done", "changed": answer.changed, "members": answer.members, "have": have, "missing": missing}
    flags.show(shown, text)


def _verbal(cause: str) -> str:
    return f"is {cause}" if cause.startswith("down") else cause


def _when(wall_us: int) -> str | None:
    return datetime.fromtimestamp(wall_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if wall_us else None


def _value(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _word(value: object) -> object:
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _value_and_remark(view: SettingView) -> str:
    value, remark = _value(view.value) or "-", _remark(view)
    return f"{value} ({remark})" if remark else value


def _remark(view: SettingView) -> str:
    remarks = [
        f"not in effect: {view.problem}" if view.problem else "",
        "deleted" if view.is_deleted else "",
        "default" if view.is_default else "",
        "of this node" if view.own_of is not None else "",
    ]
    return ", ".join(remark for remark in remarks if remark)


def _change_text(one: SettingHistoryView) -> str:
    old, new = (_value(value) or "-" for value in (one.old, one.new))
    return f"{new} lost a conflict against {old}" if one.lost else f"{old} -> {new}"


def _report_text(report: PurgeReport) -> str:
    hosts = ", ".join(f"{one.address} ({one.cause})" for one in report.problems)
    return ": ".join(part for part in (report.result, hosts or report.detail) if part)


def _status_lines(status: SettingsPurgeStatusAnswer) -> Iterator[str]:
    now_us = status.now_wall_us
    purged = f"purged up to {_ago(status.effective_us, now_us)} ago" if status.effective_us else "never purged"
    waiting = "no tombstone waits"
    if status.waiting:
        oldest = "" if status.oldest_wall_us is None else f", the oldest for {_ago(status.oldest_wall_us, now_us)}"
        waiting = f"{status.waiting} tombstone{'s wait' if status.waiting > 1 else ' waits'}{oldest}"
    yield f"{purged}; {waiting}"
    if status.tentative_us > status.effective_us:
        yield f"a round up to {_when(status.tentative_us)} is unfinished; the next one finishes it"
    if status.future:
        yield f"{status.future} dated in the future, by {', '.join(status.future_by)}"
    if status.in_reset:
        yield "this node is in reset: it looks for a copy of the settings"
    if status.last_round is not None:
        ago = _ago(status.last_round.ended_wall_us, now_us)
        yield f"last round {ago} ago: {_report_text(status.last_round)}"


def _ago(wall_us: int, now_us: int) -> str:
    return duration_text(max(0, now_us - wall_us) // 1_000)


def _view_json(view: SettingView) -> dict[str, Any]:
    return {
        "name": view.name,
        "value": _value(view.value),
        "default": view.is_default,
        "deleted": view.is_deleted,
        "changed_us": view.changed_wall_us or None,
        "changed_by": _host(view.changed_by),
        "changed_at": view.changed_at,
        "not_in_effect": view.problem,
        "own_of": _host(view.own_of),
    }


def _history_json(one: SettingHistoryView) -> dict[str, Any]:
    return {
        "seen_us": one.seen_wall_us,
        "changed_us": one.changed_wall_us,
        "changed_by": _host(one.changed_by),
        "changed_at": one.changed_at,
        "old": _value(one.old),
        "new": _value(one.new),
        "lost": one.lost,
    }


def _report_json(report: PurgeReport) -> dict[str, Any]:
    problems = [{"host": str(one.host), "address": one.address, "cause": one.cause} for one in report.problems]
    return {
        "result": report.result,
        "outcome": report.outcome or "done",
        "purged_us": report.purged_us,
        "tombstones": report.tombstones,
        "problems": problems,
        "detail": report.detail,
        "purger": _host(report.purger),
        "ended_us": report.ended_wall_us,
    }


def _status_json(status: SettingsPurgeStatusAnswer) -> dict[str, Any]:
    return {
        "now_us": status.now_wall_us,
        "tentative_us": status.tentative_us,
        "effective_us": status.effective_us,
        "watermark_us": status.watermark_us,
        "waiting": status.waiting,
        "oldest_us": status.oldest_wall_us,
        "future": status.future,
        "future_by": list(status.future_by),
        "in_reset": status.in_reset,
        "leader": _host(status.leader),
        "last_round": None if status.last_round is None else _report_json(status.last_round),
    }


def _host(host: object | None) -> str | None:
    return None if host is None else str(host)
