"""Commands about keyspaces, tables and the sessions of bulk jobs."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ebla.model.identity import Replica, SessionId, TopologyVersion
from ebla.model.schema import KEYSPACE_NAME_CHARACTERS_MAX, TABLE_NAME_CHARACTERS_MAX
from ebla.topology import keys
from ebla.topology.apply.draft import CommandHandlers, TopologyDraft
from ebla.topology.apply.nodes import mark_incomplete
from ebla.topology.apply.resize import drop_stream_sets, with_new_stream_set
from ebla.topology.commands import (
    AlterKeyspace,
    AlterTable,
    CloseSessions,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropStreamSets,
    DropTable,
    OpenBulkSession,
)
from ebla.topology.keys import Row, map_row, tablet_rows
from ebla.topology.routing.gained_ranges import excluded_hosts_gaining
from ebla.topology.snapshot import Keyspace, Replication, Snapshot
from ebla.topology.states import NodeState, SessionKind, Strategy
from ebla.topology.tablet_map import TABLETS_PER_COMMIT_MAX, tablet_map

KEYSPACE_NAME = re.compile(rf"\w{{1,{KEYSPACE_NAME_CHARACTERS_MAX}}}", re.ASCII)
TABLE_NAME = re.compile(rf"\w{{1,{TABLE_NAME_CHARACTERS_MAX}}}", re.ASCII)
BULK_SESSIONS_MAX = 1024
BULK_CLOSED_KEPT = 16


def _create_keyspace(draft: TopologyDraft, command: CreateKeyspace) -> None:
    keyspace = command.keyspace
    draft.require(KEYSPACE_NAME.fullmatch(keyspace.name) is not None, f"{keyspace.name!r} is no name for a keyspace")
    draft.require(keyspace.name not in draft.base.keyspaces, f"keyspace {keyspace.name} exists")
    _put_keyspace(draft, keyspace)


def _put_keyspace(draft: TopologyDraft, keyspace: Keyspace) -> None:
    _check_replication(draft, keyspace)
    draft.put_all({keys.keyspace_key(keyspace.name): keyspace})
    draft.step()


def _check_replication(draft: TopologyDraft, keyspace: Keyspace) -> None:
    replication = keyspace.replication
    draft.require(replication.total > 0, "a keyspace needs a replica somewhere")
    draft.require(replication.factors == tuple(sorted(replication.factors)), "factors are sorted by datacenter")
    negative = any(factor < 0 for _, factor in replication.factors)
    draft.require(not negative, "a replication factor is not negative")
    if replication.strategy is Strategy.SIMPLE:
        draft.require(
            [name for name, _ in replication.factors] == [""], "SimpleStrategy has one factor, for no datacenter"
        )
        draft.require(not keyspace.on_tablets, "tablets need NetworkTopologyStrategy")
        return
    known = {node.datacenter for node in draft.base.members()}
    unknown = [name for name, _ in replication.factors if name not in known]
    draft.require(not unknown, f"there is no datacenter {unknown[0] if unknown else ''}")


def _alter_keyspace(draft: TopologyDraft, command: AlterKeyspace) -> None:
    keyspace = command.keyspace
    old = draft.found(draft.base.keyspaces.get(keyspace.name), f"there is no keyspace {keyspace.name}")
    draft.require(old.on_tablets == keyspace.on_tablets, "a keyspace stays on tablets or on vnodes")
    by_request = old.on_tablets and old.replication != keyspace.replication
    draft.require(not by_request, "replication on tablets changes by a global request")
    if old.replication != keyspace.replication:
        # A running operation streams between the replica sets of two rings, which it planned with the old factors.
        # With new ones in the middle of it, reads would switch to replicas that nobody streamed to.
        draft.require_idle(f"the replication of keyspace {keyspace.name} changes")
        mark_incomplete(draft, excluded_hosts_gaining(draft.base, old.replication, keyspace))
    _put_keyspace(draft, keyspace)


def _drop_keyspace(draft: TopologyDraft, command: DropKeyspace) -> None:
    name = command.name
    draft.require(name in draft.base.keyspaces, f"there is no keyspace {name}")
    tables = sorted(table.name for table in draft.base.tables.values() if table.keyspace == name)
    draft.require(not tables, f"keyspace {name} still has table {tables[0] if tables else ''}")
    waiting = any(draft.base.global_requests[each].keyspace == name for each in draft.base.state.global_requests)
    draft.require(not waiting, f"a change of keyspace {name} is waiting; abort it first")
    draft.put_all({keys.keyspace_key(name): None})
    draft.step()


def _create_table(draft: TopologyDraft, command: CreateTable) -> None:
    table = command.table
    keyspace = draft.found(draft.base.keyspaces.get(table.keyspace), f"there is no keyspace {table.keyspace}")
    draft.require(TABLE_NAME.fullmatch(table.name) is not None, f"{table.name!r} is no name for a table")
    draft.require(draft.base.table_named(table.keyspace, table.name) is None, f"table {table.full_name} exists")
    draft.require(table.id not in draft.base.tables, f"table id {table.id} is in use")
    rows: dict[str, Row | None] = {keys.table_key(table.id): table}
    sets = command.replica_sets
    if keyspace.on_tablets:
        count = len(sets)
        even = 1 <= count <= TABLETS_PER_COMMIT_MAX and count & (count - 1) == 0
        draft.require(even, f"a table has a power of two of tablets, at most {TABLETS_PER_COMMIT_MAX}, not {count}")
        for replicas in dict.fromkeys(sets):
            _check_replica_set(draft, keyspace.replication, replicas)
        tablets = tablet_map(table.id, sets)
        if table.cdc:
            tablets = replace(tablets, streams=with_new_stream_set(draft, tablets, command.streams))
        rows.update(tablet_rows(tablets))
    else:
        draft.require(not sets, f"keyspace {keyspace.name} is on vnodes: its tables have no tablets")
    draft.put_all(rows)
    draft.step()


def _check_replica_set(draft: TopologyDraft, replication: Replication, replicas: tuple[Replica, ...]) -> None:
    """A new replica set: on distinct nodes that are there, on shards they have, as many per datacenter as asked."""
    per_datacenter: dict[str, int] = {}
    for replica in replicas:
        node = draft.member(replica.host)
        settled = node.state in (NodeState.NORMAL, NodeState.REBUILDING)
        draft.require(settled, f"{node.host} is {node.state} and takes no tablets")
        draft.require(node.host not in draft.base.state.ignored_nodes, f"{node.host} is ignored and takes no tablets")
        draft.require(0 <= replica.shard < node.shard_count, f"{node.host} has no shard {replica.shard}")
        per_datacenter[node.datacenter] = per_datacenter.get(node.datacenter, 0) + 1
    distinct = len({replica.host for replica in replicas}) == len(replicas)
    draft.require(distinct, "a host has at most one replica of a tablet")
    wanted = {name: factor for name, factor in replication.factors if factor}
    draft.require(per_datacenter == wanted, f"replicas per datacenter are {per_datacenter}, not {wanted}")


def _alter_table(draft: TopologyDraft, command: AlterTable) -> None:
    table = command.table
    old = draft.found(draft.base.tables.get(table.id), f"there is no table {table.id}")
    draft.require((old.keyspace, old.name) == (table.keyspace, table.name), "a table keeps its name")
    rows: dict[str, Row | None] = {keys.table_key(table.id): table}
    tablets = draft.base.tablets.get(table.id)
    # When capture is turned off, its streams stay for their readers and still follow the tablet count.
    if tablets is not None and table.cdc and not tablets.streams:
        streams = with_new_stream_set(draft, tablets, command.streams)
        rows[keys.map_key(table.id)] = map_row(replace(tablets, streams=streams))
    draft.put_all(rows)
    draft.step()


def _drop_table(draft: TopologyDraft, command: DropTable) -> None:
    table = draft.found(draft.base.tables.get(command.table), f"there is no table {command.table}")
    rows: dict[str, Row | None] = {keys.table_key(table.id): None}
    tablets = draft.base.tablets.get(table.id)
    if tablets is not None:
        rows[keys.map_key(table.id)] = None
        rows.update({keys.chunk_key(table.id, index): None for index in range(len(tablets.chunks))})
        rows.update({keys.transition_key(table.id, number): None for number, _ in tablets.transitions()})
    for session in draft.base.sessions.values():
        if session.table == table.id:
            rows[keys.session_key(session.id)] = None
    draft.put_all(rows)
    draft.step()


def _open_bulk_session(draft: TopologyDraft, command: OpenBulkSession) -> None:
    session = command.session
    draft.require(session.kind is SessionKind.BULK_JOB, "stages and requests open their sessions themselves")
    draft.require(session.deadline_ms is not None, "a bulk job has a deadline")
    draft.require(
        session.table is not None and session.table in draft.base.tables, f"there is no table {session.table}"
    )
    assert session.table is not None
    count = sum(each.kind is SessionKind.BULK_JOB for each in draft.base.sessions.values())
    draft.require(count < BULK_SESSIONS_MAX, f"{count} bulk jobs are open; wait for some to end")
    draft.require(not may_be_closed(draft.base, session.id, command.known_version), f"session {session.id} was closed")
    draft.open_session(session)
    # INV-XFER-1. On the state, since this is how a session stays closed: of two attempts to open it, the
    # second is still in flight. The first opens it, its job ends, it is closed; then the second commits. It was
    # decided before the close, which was a step.
    draft.require_unchanged(keys.STATE)
    draft.require_unchanged(keys.session_key(session.id))
    draft.require_unchanged(keys.table_key(session.table))


def may_be_closed(snapshot: Snapshot, session: SessionId, known_version: TopologyVersion | None) -> bool:
    """Whether an unlisted bulk session that was requested at this version may have been opened and closed already."""
    forgotten = known_version is not None and known_version < snapshot.state.bulk_forgotten
    return session in snapshot.state.bulk_closed or forgotten


def _close_sessions(draft: TopologyDraft, command: CloseSessions) -> None:
    """A step, because waiting for the end of all work under a session means waiting for a version (INV-XFER-1). A
    session known to be closed needs no step, so closing again changes nothing. An unlisted session is closed all the
    same: its opening may still be in flight, and then only its deadline would close it."""
    ending = [each for each in dict.fromkeys(command.sessions) if each not in draft.base.state.bulk_closed]
    for session in [draft.base.sessions[each] for each in ending if each in draft.base.sessions]:
        draft.require(session.kind is SessionKind.BULK_JOB, f"the session of a {session.kind} ends with it")
        draft.close_session(session.id)
    if ending:
        draft.step(**_remembered(draft, ending))


def _remembered(draft: TopologyDraft, ending: Sequence[SessionId]) -> dict[str, Any]:
    """For sessions dropped from the list, what counts is when they were closed, not when they were dropped: otherwise a
    session that opens while many others are closed would be taken for a dropped one each time."""
    state = draft.base.state
    unknown = len(state.bulk_closed) - len(state.bulk_closed_at)
    closed = (*state.bulk_closed, *ending)
    closed_at = (draft.base.version,) * unknown + state.bulk_closed_at + (draft.next_version,) * len(ending)
    fallen_at = closed_at[:-BULK_CLOSED_KEPT]
    return {
        "bulk_closed": closed[-BULK_CLOSED_KEPT:],
        "bulk_closed_at": closed_at[-BULK_CLOSED_KEPT:],
        "bulk_forgotten": fallen_at[-1] if fallen_at else state.bulk_forgotten,
    }


SCHEMA_COMMANDS: CommandHandlers = {
    CreateKeyspace: _create_keyspace,
    AlterKeyspace: _alter_keyspace,
    DropKeyspace: _drop_keyspace,
    CreateTable: _create_table,
    AlterTable: _alter_table,
    DropStreamSets: drop_stream_sets,
    DropTable: _drop_table,
    OpenBulkSession: _open_bulk_session,
    CloseSessions: _close_sessions,
}
