"""`ebla group0 …`: reads and changes the replicated store of the cluster."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from ebla.cli.cluster.operations import new_operation_id, resolve_host, run_operation
from ebla.cli.command import NodeFlags, TableFlags, add_command
from ebla.group0.commands import CommandAnswer, ConditionFailed, Done, Forgotten, LockRevoked, Rejected
from ebla.group0.keys import prefix_of
from ebla.group0.operations import Operation, OperationKind
from ebla.model.errors import InvalidRequest, Refused
from ebla.model.identity import HostId
from ebla.model.transaction import Change, Condition, DeleteKey, KeyMissing, KeyUnchanged, PutKey, Revision, Transaction
from ebla.wire.group0_messages import (
    ExecuteRequest,
    Group0ReadRequest,
    Group0Report,
    KeyValue,
    LockRequest,
    MembersRequest,
    TransferLeadershipRequest,
    WatchedChange,
)
from ebla.wire.group0_pages import ReadPager, WatchPager
from ebla.wire.verbs import (
    GROUP0_EXECUTE,
    GROUP0_LOCK,
    GROUP0_MEMBERS,
    GROUP0_READ,
    GROUP0_TRANSFER,
    GROUP0_WATCH,
)

HELP = """
Group 0: the small replicated store (Raft) that holds the cluster's state.

  ebla group0 members                  its members and its leader
  ebla group0 put user/colour blue     write a key (operators' keys begin with user/)
  ebla group0 get user/colour          read it, linearizable
  ebla group0 watch user/              follow its changes
  ebla group0 txn change.json          several keys at once, under conditions
  ebla group0 check-quorum             does a majority answer?

An error states the outcome of the operation: not applied, or unknown. See docs/group0.md.
"""

app = typer.Typer(name="group0", no_args_is_help=True, help=HELP, rich_markup_mode="rich")

TIMEOUT_DEFAULT_MS = 5_000
Force = Annotated[
    bool, typer.Option("--force", help="Allow keys that the cluster itself owns. This can break the cluster.")
]
LockText = Annotated[str | None, typer.Option("--lock", metavar="HEX", help="Only if this lock is the newest.")]


class KeyJson(msgspec.Struct, frozen=True, kw_only=True):
    """A key in JSON output. `text` if the bytes are UTF-8, else `hex`."""

    key: str
    index: int
    text: str | None = None
    hex: str | None = None


@dataclass(frozen=True, kw_only=True)
class TimedFlags(NodeFlags):
    timeout_ms: Annotated[int, typer.Option("--timeout-ms", metavar="N", min=1, help="Timeout of the call.")] = (
        TIMEOUT_DEFAULT_MS
    )


@add_command(app, is_change=False)
def get(
    flags: TimedFlags,
    keys: Annotated[list[str], typer.Argument(help="Keys, or prefixes that end with a slash.")],
    local: Annotated[bool, typer.Option("--local", help="Read from this node, without a quorum.")] = False,
) -> int:
    """Read keys. Linearizable unless --local. The exit status is 1 if a key does not exist."""
    exact = tuple(key for key in keys if not key.endswith("/"))
    prefixes = tuple(key for key in keys if key.endswith("/"))
    pages = ReadPager(Group0ReadRequest(keys=exact, prefixes=prefixes, quorum=not local))
    while (answer := pages.take(flags.call(GROUP0_READ, pages.request(), flags.timeout_ms))) is None:
        pass
    if flags.as_json:
        _print_json({"index": answer.revision.index, "found": [_key_json(found) for found in answer.found]})
    else:
        for found in answer.found:
            sys.stdout.write(f"{found.key} @{found.revision.index} {_text(found.value)}\n")
    there = {found.key for found in answer.found}
    missing = [key for key in exact if key not in there]
    for key in missing:
        sys.stderr.write(f"ebla: {key} does not exist\n")
    return 1 if missing else 0


@add_command(app, is_change=True)
def put(
    flags: TimedFlags,
    key: str,
    value: str,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Only if the key does not exist.")] = False,
    if_index: Annotated[
        int | None, typer.Option("--if-index", metavar="N", help="Only if its last change has this index.")
    ] = None,
    lock: LockText = None,
    force: Force = False,
) -> int:
    """Write a key. It is durable on a majority when the command returns."""
    conditions = _conditions(flags, key, if_missing=if_missing, if_index=if_index)
    return _execute(flags, Transaction(conditions, (PutKey(key, value.encode()),), _lock_bytes(lock)), force=force)


@add_command(app, is_change=True)
def delete(flags: TimedFlags, key: str, lock: LockText = None, force: Force = False) -> int:
    """Delete a key. Does nothing if the key does not exist."""
    return _execute(flags, Transaction((), (DeleteKey(key),), _lock_bytes(lock)), force=force)


class TxnCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    missing: bool = False
    index: int | None = None


class TxnChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    value: str | None = None
    """None deletes the key."""


class TxnFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """{"conditions": [{"key": "user/a", "missing": true}], "changes": [{"key": "user/a", "value": "1"}]}"""

    changes: tuple[TxnChange, ...]
    conditions: tuple[TxnCondition, ...] = ()
    lock: str | None = None


@add_command(app, is_change=True)
def txn(
    flags: TimedFlags,
    file: Annotated[Path, typer.Argument(help="JSON; - for standard input.")],
    force: Force = False,
) -> int:
    """Apply all changes of a file if every condition holds, else none.

    {"conditions": [{"key": "user/a", "missing": true}, {"key": "user/b", "index": 7}],
     "changes": [{"key": "user/a", "value": "1"}, {"key": "user/b", "value": null}]}
    """
    raw = sys.stdin.buffer.read() if str(file) == "-" else _read_file(file)
    try:
        file_content = msgspec.json.decode(raw, type=TxnFile)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{file} is no transaction: {error}", advice="see ebla group0 txn --help") from error
    conditions: tuple[Condition, ...] = ()
    for one in file_content.conditions:
        conditions += _conditions(flags, one.key, if_missing=one.missing, if_index=one.index)
    changes: tuple[Change, ...] = tuple(
        DeleteKey(one.key) if one.value is None else PutKey(one.key, one.value.encode()) for one in file_content.changes
    )
    return _execute(flags, Transaction(conditions, changes, _lock_bytes(file_content.lock)), force=force)


@add_command(app, is_change=False)
def watch(
    flags: NodeFlags,
    prefix: Annotated[str, typer.Argument(help="Watch keys with this prefix.")] = "",
    after: Annotated[int | None, typer.Option("--after", metavar="N", help="Resume after this index.")] = None,
    count: Annotated[int | None, typer.Option("--count", metavar="N", help="End after this many changes.")] = None,
) -> None:
    """Follow changes, in order, until Ctrl-C. Starts with the current keys, unless resumed after an index."""
    seen = 0
    pages = WatchPager(prefix, None if after is None else Revision(_report(flags).history, after))
    try:
        while count is None or seen < count:
            answer = pages.take(flags.call(GROUP0_WATCH, pages.request(5_000), 10_000))
            changes = () if answer is None else answer.changes
            for change in changes[: None if count is None else count - seen]:
                _print_change(change, reset=answer is not None and answer.reset, as_json=flags.as_json)
                seen += 1
    except KeyboardInterrupt:
        sys.stderr.write("\n")


@add_command(app, is_change=False)
def members(flags: TableFlags) -> None:
    """Show the members of group 0: voters, leader, and how far each one lags behind."""
    report = _report(flags)
    if flags.as_json:
        _print_json(_members_json(report))
    else:
        typer.echo(f"group 0, term {report.term}, index {report.applied} of {report.commit}")
        flags.print_records(*member_rows(report), less_important=("release", "host"))


@add_command(app, is_change=True)
def remove(
    flags: NodeFlags,
    host: Annotated[str, typer.Argument(help="Its host id, its address, or the name of a local node.")],
) -> int:
    """Remove a member permanently: its host id can never return. The node notices and stops."""
    removed = resolve_host(flags, host)
    operation = Operation(
        id=new_operation_id(), kind=OperationKind.REMOVE, hosts=(removed,), reason="removed by an operator"
    )
    return run_operation(flags, operation, f"{removed} was removed")


@add_command(app, "transfer-leader", is_change=True)
def transfer_leader(
    flags: TimedFlags, host: Annotated[UUID, typer.Argument(help="The voter that should lead.")]
) -> None:
    """Transfer leadership to a voter; returns once it leads."""
    flags.call(GROUP0_TRANSFER, TransferLeadershipRequest(HostId(host)), flags.timeout_ms)
    _show(flags, {"leader": str(host)}, f"{host} leads")


@add_command(app, "lock", is_change=True)
def acquire_lock(flags: TimedFlags) -> None:
    """Acquire the lock, a fencing token: it revokes the previous one, and is valid until the next one is acquired."""
    answer = flags.call(GROUP0_LOCK, LockRequest(), flags.timeout_ms)
    _show(flags, {"lock": answer.lock.hex(), "index": answer.revision.index}, answer.lock.hex())


@add_command(app, "check-quorum", is_change=False)
def check_quorum(flags: TimedFlags) -> None:
    """Check that a majority of the voters answers, by a linearizable read. The exit status is 1 if not."""
    index = flags.call(GROUP0_READ, Group0ReadRequest(), flags.timeout_ms).revision.index
    _show(flags, {"quorum": True, "index": index}, f"a majority answers, at index {index}")


# ---- calls


def _report(flags: NodeFlags) -> Group0Report:
    return flags.call(GROUP0_MEMBERS, MembersRequest(), TIMEOUT_DEFAULT_MS)


def _execute(flags: TimedFlags, transaction: Transaction, *, force: bool) -> int:
    for change in transaction.changes:
        if not force and not change.key.startswith("user/"):
            owner = prefix_of(change.key)
            whose = f"belongs to: {owner.owner}" if owner is not None else "has no known kind"
            raise Refused(f"the key {change.key} {whose}", advice="use a key below user/, or --force if you are sure")
    return _show_answer(flags, flags.call(GROUP0_EXECUTE, ExecuteRequest(transaction), flags.timeout_ms).answer)


def _conditions(flags: NodeFlags, key: str, *, if_missing: bool, if_index: int | None) -> tuple[Condition, ...]:
    if if_missing and if_index is not None:
        raise InvalidRequest(f"{key} cannot be missing and have an index at once")
    if if_missing:
        return (KeyMissing(key),)
    if if_index is None:
        return ()
    return (KeyUnchanged(key, Revision(_report(flags).history, if_index)),)


def _lock_bytes(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidRequest(f"{text!r} is no lock", advice="use the text that `ebla group0 lock` prints") from None


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror}") from error


# ---- output


def _show(flags: NodeFlags, value: Any, text: str) -> None:
    if flags.as_json:
        _print_json(value)
    else:
        typer.echo(text)


def _show_answer(flags: NodeFlags, answer: CommandAnswer) -> int:
    """Returns the exit status."""
    applied = isinstance(answer, Done)
    if flags.as_json:
        outcome = "done" if applied else "unknown" if isinstance(answer, Forgotten) else "not_applied"
        fields = {name: _plain(value) for name, value in msgspec.structs.asdict(answer).items()}
        _print_json({"outcome": outcome, "answer": type(answer).__name__, **fields})
    elif isinstance(answer, Done):
        typer.echo(f"done at index {answer.revision.index}")
    else:
        sys.stderr.write(f"ebla: {_refusal(answer)}\n")
    return 0 if applied else 1


def _refusal(answer: ConditionFailed | LockRevoked | Rejected | Forgotten) -> str:
    match answer:
        case ConditionFailed(key=key, actual=None):
            return f"not applied: {key} does not exist"
        case ConditionFailed(key=key, actual=actual):
            assert actual is not None
            return f"not applied: {key} is at index {actual.index}"
        case LockRevoked():
            return "not applied: the lock was revoked by a later one"
        case Rejected(reason=reason):
            return f"not applied: {reason}"
        case Forgotten(reason=reason):
            return f"unknown whether it was applied: {reason}"


def _key_json(found: KeyValue) -> KeyJson:
    try:
        return KeyJson(key=found.key, index=found.revision.index, text=found.value.decode())
    except UnicodeDecodeError:
        return KeyJson(key=found.key, index=found.revision.index, hex=found.value.hex())


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _print_change(change: WatchedChange, *, reset: bool, as_json: bool) -> None:
    if as_json:
        value = None if change.value is None else _text(change.value)
        line = {"key": change.key, "index": change.index, "value": value, "reset": reset}
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    else:
        what = "deleted" if change.value is None else _text(change.value)
        sys.stdout.write(f"{change.key} @{change.index} {what}\n")
    sys.stdout.flush()


def member_rows(report: Group0Report) -> tuple[tuple[str, ...], list[list[str]]]:
    names = ("address", "host", "role", "dc/rack", "release", "lag")
    rows = []
    for each in report.members:
        member = each.member
        role = "leader" if member.host == report.leader else str(member.role)
        lag = "" if each.lag is None else str(each.lag)
        place = f"{member.datacenter}/{member.rack}"
        rows.append([str(member.address), str(member.host), role, place, member.release, lag])
    return names, rows


def _members_json(report: Group0Report) -> dict[str, Any]:
    fields = {name: getattr(report, name) for name in report.__struct_fields__ if name != "members"}
    listed = []
    for each in report.members:
        member = each.member
        place = {"address": str(member.address), "datacenter": member.datacenter, "rack": member.rack}
        code = {"release": member.release, "features": member.features}
        listed.append({"host": member.host, "role": member.role, **place, **code, "lag": each.lag})
    return {**fields, "members": listed}


def _plain(value: Any) -> Any:
    if isinstance(value, Revision):
        return {"history": value.history, "index": value.index}
    return value.hex() if isinstance(value, bytes) else value


def _print_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
