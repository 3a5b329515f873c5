"""What would happen next in a cluster and why; who serves a token and why.

    python -m ebla.topology.explain SNAPSHOT.json [--table KS.T --token N] [--down HOST …] [--now-ms N]

The file has the rows under their group 0 keys, as `to_json` writes it; `docs/diagrams/example-snapshot.json` is one.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ebla.model.errors import EblaError, InvalidRequest
from ebla.model.identity import HostId, TableId
from ebla.model.token import TOKEN_MAX, TOKEN_MIN
from ebla.topology import keys
from ebla.topology import next_step as steps
from ebla.topology.invariants import violations
from ebla.topology.keys import Row, tablet_rows
from ebla.topology.next_step import next_step, side_steps
from ebla.topology.node_states import node_row
from ebla.topology.request_queue import BlockedQueue, LivenessView, StartRequest, Verdict, choose_request
from ebla.topology.routing.replica_sets import token_replicas
from ebla.topology.routing.vnode_ring import ring_use
from ebla.topology.snapshot import Node, Snapshot
from ebla.topology.snapshot_builder import with_rows
from ebla.topology.states import NodeState
from ebla.topology.tablet_map import ReplicaSet
from ebla.topology.tablet_stages import stage_row

FORMAT = 1


def explain_next(snapshot: Snapshot, liveness: LivenessView) -> Iterator[str]:
    """The cluster, the next step and its reasons, line by line."""
    where = snapshot.transition or "at rest"
    yield f"version {snapshot.version}, fence {snapshot.fence}, topology {where}"
    for node in snapshot.members():
        yield f"  {_described(snapshot, node, liveness)}"
    left = sum(1 for _ in snapshot.nodes_in(NodeState.LEFT))
    if left:
        yield f"  and {left} that left"
    broken = violations(snapshot)
    if broken:
        yield from (f"BROKEN {violation}" for violation in broken)
        yield "next: cannot be told of a snapshot that is broken"
        return
    moving = snapshot.node_in_transition()
    row = node_row(moving.state if moving else None, snapshot.transition)
    if row is not None:
        yield f"holds now: {row.promise} ({row.label})"
    step = next_step(snapshot, liveness)
    yield f"next: {_named(step)}: {step.why}"
    yield from _details(step)
    if isinstance(step, steps.AskBalancer):
        then = next_step(snapshot, liveness, plan_is_empty=True)
        yield f"  if the balancer has no plan: {_named(then)}: {then.why}"
    if not isinstance(step, (StartRequest, BlockedQueue)):
        verdicts = getattr(choose_request(snapshot, liveness), "verdicts", ())
        yield from (f"waiting: {_judged(verdict)}" for verdict in verdicts)
    for side in side_steps(snapshot, liveness):
        yield f"beside that: {_named(side)}: {side.why}"


def _described(snapshot: Snapshot, node: Node, liveness: LivenessView) -> str:
    parts = [f"{node.host} {node.datacenter}/{node.rack} {node.state}", f"{len(node.tokens)} tokens"]
    if node.host not in liveness.alive:
        parts.append("down")
    if snapshot.exclusion_of(node.host) is not None:
        parts.append("excluded")
    elif node.host in snapshot.state.ignored_nodes:
        parts.append("ignored")
    if node.request is not None:
        request = snapshot.node_requests[node.request]
        parts.append(f"{request.kind} {request.outcome}{f' ({request.error})' if request.error else ''}")
    return ", ".join(parts)


def _named(step: steps.Step | steps.SideStep) -> str:
    """`StartRequest` as words."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(step).__name__).strip()


def _details(step: steps.Step) -> Iterator[str]:
    match step:
        case steps.DriveNode() | steps.DriveGlobal() | steps.FinishResize():
            row = step.row
            yield f"  {'barrier, then ' if row.barrier else ''}{row.action}{', under a session' if row.session else ''}"
            yield f"  then {row.next.state or 'the topology'} {row.next.transition or 'at rest'}"
            failure = row.on_failure
            back = f"{failure.state} {failure.transition or 'at rest'}" if failure else "repeated until it succeeds"
            yield f"  on failure {back}"
        case StartRequest() | BlockedQueue():
            yield from (f"  {_judged(verdict)}" for verdict in step.verdicts)
        case steps.MoveTablets():
            yield f"  {len(step.tablets)} in transition{', more may be started' if step.ask_balancer else ''}"
            yield from (f"  draining {host}" for host in step.draining)
        case _:
            return


def _judged(verdict: Verdict) -> str:
    request = verdict.request
    why = "may run" if verdict.viable else "; ".join(str(each) for each in verdict.objections)
    return f"{request.kind} of {request.host} (request {request.id}): {why}"


def explain_token(snapshot: Snapshot, table: TableId, token: int) -> Iterator[str]:
    """Who reads and writes this token, and which rule says so."""
    found = token_replicas(snapshot, table, token)
    yield f"token {token} of {snapshot.tables[table].full_name}"
    tablets = snapshot.tablets.get(table)
    if tablets is None:
        use = ring_use(snapshot)
        where = snapshot.transition or "at rest"
        yield f"on vnodes, {where}: reads go by the {use.reads} ring, writes by {use.writes}"
    else:
        number = tablets.number_of(token)
        after, last = tablets.after_token(number), tablets.last_token(number)
        yield f"tablet {number} of {tablets.tablet_count}, tokens after {after} up to {last}"
        transition = tablets.transition(number)
        if transition is None:
            yield "not in transition: reads and writes go to its replicas"
        else:
            row = stage_row(transition)
            yield f"{transition.kind} in stage {transition.stage}: reads {row.reads}, writes {row.writes}"
            yield f"holds now: {row.promise}"
    yield from _listed(snapshot, "read from", found.reading)
    yield from _listed(snapshot, "write to", found.natural)
    yield from _listed(snapshot, "write also to (pending)", found.pending)


def _listed(snapshot: Snapshot, title: str, replicas: ReplicaSet) -> Iterator[str]:
    for replica in replicas:
        node = snapshot.node(replica.host)
        gone = ", which left" if node.state is NodeState.LEFT else ""
        yield f"{title}: {replica.host} shard {replica.shard} ({node.datacenter}/{node.rack}){gone}"


def _table_of(snapshot: Snapshot, full_name: str) -> TableId:
    keyspace, _, name = full_name.partition(".")
    table = snapshot.table_named(keyspace, name)
    if table is None:
        known = ", ".join(sorted(each.full_name for each in snapshot.tables.values())) or "none"
        raise InvalidRequest(f"there is no table {full_name}", advice=f"known: {known}")
    return table.id


def _member(snapshot: Snapshot, text: str) -> HostId:
    found = next((node.host for node in snapshot.members() if str(node.host) == text.lower()), None)
    if found is None:
        known = ", ".join(str(node.host) for node in snapshot.members()) or "none"
        raise InvalidRequest(f"there is no member {text}", advice=f"known: {known}")
    return found


class SnapshotFile(msgspec.Struct, frozen=True):
    format: int
    rows: dict[str, Row]


def rows_of(snapshot: Snapshot) -> dict[str, Row]:
    """Every row, by key; the snapshot can be made from them again."""
    rows: dict[str, Row] = {keys.STATE: snapshot.state}
    rows.update({keys.node_key(each.host): each for each in snapshot.nodes.values()})
    rows.update({keys.request_key(each.id): each for each in snapshot.node_requests.values()})
    rows.update({keys.request_key(each.id): each for each in snapshot.global_requests.values()})
    rows.update({keys.session_key(each.id): each for each in snapshot.sessions.values()})
    rows.update({keys.keyspace_key(each.name): each for each in snapshot.keyspaces.values()})
    rows.update({keys.table_key(each.id): each for each in snapshot.tables.values()})
    rows.update({keys.generation_key(each.id): each for each in snapshot.cdc_generations.values()})
    rows.update({keys.part_key(*identity): part for identity, part in snapshot.cdc_parts.items()})
    for table, tablets in snapshot.tablets.items():
        rows.update(tablet_rows(tablets))
        rows.update({keys.transition_key(table, number): each for number, each in tablets.transitions()})
    return {key: rows[key] for key in sorted(rows)}


def to_json(snapshot: Snapshot) -> bytes:
    return msgspec.json.format(msgspec.json.encode(SnapshotFile(FORMAT, rows_of(snapshot))), indent=1)


def from_json(text: bytes) -> Snapshot:
    try:
        file = msgspec.json.decode(text, type=SnapshotFile)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"this is no snapshot of a topology: {error}") from error
    if file.format != FORMAT:
        raise InvalidRequest(f"the snapshot has format {file.format}, and this release reads {FORMAT}")
    snapshot = with_rows(Snapshot(), dict(file.rows))
    _check_references(snapshot)
    return snapshot


def _check_references(snapshot: Snapshot) -> None:
    """The file may be edited by hand, so check that every row a row refers to is present."""
    hosts = [
        *(("a request", request.host) for request in snapshot.node_requests.values()),
        *(("a tablet", each) for each in _tablet_hosts(snapshot)),
    ]
    missing = [f"{what} names node {host}" for what, host in hosts if host not in snapshot.nodes]
    missing += [
        f"node {node.host} names request {node.request}"
        for node in snapshot.nodes.values()
        if node.request is not None and node.request not in snapshot.node_requests
    ]
    missing += [
        f"the queue names request {each}"
        for each in snapshot.state.global_requests
        if each not in snapshot.global_requests
    ]
    missing += [
        f"table {table.full_name} names keyspace {table.keyspace}"
        for table in snapshot.tables.values()
        if table.keyspace not in snapshot.keyspaces
    ]
    missing += [f"tablets are those of table {table}" for table in snapshot.tablets if table not in snapshot.tables]
    if missing:
        raise InvalidRequest(f"{missing[0]}, which is not in the file")


def _tablet_hosts(snapshot: Snapshot) -> dict[HostId, None]:
    found: dict[HostId, None] = {}
    for tablets in snapshot.tablets.values():
        found.update(dict.fromkeys(host for chunk in tablets.chunks for host in chunk.hosts))
        found.update(dict.fromkeys(each.host for _, moving in tablets.transitions() for each in moving.new_replicas))
    return found


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ebla.topology.explain", description=__doc__.splitlines()[0])
    parser.add_argument("snapshot", type=Path, help="a snapshot as JSON")
    parser.add_argument("--table", metavar="KS.T", help="with --token: who serves it")
    parser.add_argument("--token", type=int)
    parser.add_argument("--down", metavar="HOST", action="append", default=[], help="a host id that does not answer")
    parser.add_argument("--now-ms", type=int, default=0, help="wall time, for deadlines of bulk jobs")
    return parser


def run(arguments: list[str]) -> Iterator[str]:
    options = _arguments().parse_args(arguments)
    snapshot = from_json(options.snapshot.read_bytes())
    if (options.table is None) is not (options.token is None):
        raise InvalidRequest("--table and --token go together")
    if options.table is not None:
        if not TOKEN_MIN <= options.token <= TOKEN_MAX:
            raise InvalidRequest(f"a token is from {TOKEN_MIN} to {TOKEN_MAX}")
        return explain_token(snapshot, _table_of(snapshot, options.table), options.token)
    down = {_member(snapshot, each) for each in options.down}
    alive = frozenset(node.host for node in snapshot.members() if node.host not in down)
    return explain_next(snapshot, LivenessView(alive, options.now_ms))


def main() -> int:
    try:
        for line in run(sys.argv[1:]):
            sys.stdout.write(f"{line}\n")
    except (EblaError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
