"""A QUORUM write and a QUORUM read share a replica through node operations while one more node is excluded.

Nobody sends to an excluded node once its own view says so; before that, it acknowledges writes and answers reads like
any other. A range that has fewer live replicas than a quorum may lose writes whatever is done, and is left out.
Exhaustive like `test_quorums_meet.py`: every path, every moment of the exclusion, every pair of views in use at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import msgspec
import pytest
from tests.properties.quorum_model import Commit, Copy, View, lost_writes
from tests.properties.ring_changes import (
    SUBJECT,
    RingChange,
    dead_host,
    host_id,
    name_of,
    ring_changes,
    ring_paths,
    ring_snapshot,
    ring_view,
)

from ebla.model.identity import HostId, RequestId
from ebla.topology.frozen_map import FrozenMap
from ebla.topology.node_states import StatePair
from ebla.topology.routing.replica_sets import ReplicaSets
from ebla.topology.routing.vnode_streams import stream_sources
from ebla.topology.snapshot import NodeRequest, Snapshot
from ebla.topology.states import NodeRequestKind, NodeState, RequestOutcome, TransitionState

KINDS = (NodeRequestKind.JOIN, NodeRequestKind.REPLACE, NodeRequestKind.LEAVE, NodeRequestKind.REMOVE)
FACTORS = (3, 4)
"""With fewer replicas, one that is dead or excluded leaves less than a quorum."""
REQUEST = RequestId(host_id(999))
EXCLUDED = " with an excluded node"
Step = tuple[StatePair, StatePair, bool, bool]


@dataclass(frozen=True)
class Case:
    """One token of a ring change, and the host that is excluded meanwhile."""

    change: RingChange
    excluded: int
    views: Mapping[str, View]
    """By place; with the suffix `EXCLUDED`, of who knows of the exclusion."""

    def hosts_at(self, transition: TransitionState) -> tuple[int, ...]:
        """That a router would read from in this state, if none were excluded."""
        place = next(
            one for step in ring_paths(self.change.kind)[0] for one in step[:2] if one.transition is transition
        )
        return self.views[name_of(place)].read_hosts

    @property
    def gains(self) -> bool:
        before = self.hosts_at(TransitionState.WRITE_BOTH_READ_OLD)
        return self.excluded in self.hosts_at(TransitionState.WRITE_BOTH_READ_NEW) and self.excluded not in before

    def is_readable(self) -> bool:
        """Enough replicas live that no acknowledged write is lost by the deaths alone."""
        at_rest = self.views[name_of(ring_paths(self.change.kind)[0][0][0])]
        gone = (self.excluded, dead_host(self.change))
        return sum(host not in gone for host in at_rest.read_hosts) >= at_rest.read_needed


def with_request(snapshot: Snapshot, excluded: tuple[HostId, ...]) -> Snapshot:
    """While a remove runs that excluded nodes were no part of from its start on."""
    request = NodeRequest(
        id=REQUEST,
        kind=NodeRequestKind.REMOVE,
        host=host_id(SUBJECT),
        initiator=host_id(SUBJECT),
        start_ms=1,
        outcome=RequestOutcome.RUNNING,
        excluded_at_start=excluded,
    )
    subject = msgspec.structs.replace(snapshot.node(host_id(SUBJECT)), request=REQUEST)
    return replace(
        snapshot, nodes=snapshot.nodes.put(subject.host, subject), node_requests=FrozenMap({REQUEST: request})
    )


@cache
def cases(factor: int, kind: NodeRequestKind, *, at_start: bool) -> tuple[Case, ...]:
    """`at_start`: the host was excluded before the operation. A remove then does without it from its start on."""
    return tuple(_cases(factor, kind, at_start))


def _cases(factor: int, kind: NodeRequestKind, at_start: bool) -> Iterator[Case]:
    seen: dict[tuple[object, ...], None] = {}
    for change in ring_changes(factor, kind):
        places = dict.fromkeys(place for path in ring_paths(kind) for step in path for place in step[:2])
        for excluded in range(1, len(change.racks)):
            snapshots = {name_of(place): ring_snapshot(change, place) for place in places}
            if at_start and kind is NodeRequestKind.REMOVE:
                snapshots = {
                    name: with_request(one, (host_id(excluded),)) if one.node_in_transition() is not None else one
                    for name, one in snapshots.items()
                }
            sets = {name: ReplicaSets(one) for name, one in snapshots.items()}
            for token in range(-5, len(change.racks) * 10, 10):
                case = case_of(change, excluded, {name: ring_view(one, token) for name, one in sets.items()})
                pattern = pattern_of(case)
                if pattern not in seen and case.is_readable():
                    seen[pattern] = None
                    yield case


def case_of(change: RingChange, excluded: int, views: Mapping[str, View]) -> Case:
    knowing = {
        name + EXCLUDED: replace(
            view,
            write_hosts=tuple(host for host in view.write_hosts if host != excluded),
            read_hosts=tuple(host for host in view.read_hosts if host != excluded),
        )
        for name, view in views.items()
    }
    return Case(change, excluded, {**views, **knowing})


def pattern_of(case: Case) -> tuple[object, ...]:
    """Renames hosts in order of appearance; those with a role keep it."""
    names = {SUBJECT: 0, case.excluded: 1, dead_host(case.change): 2}
    rows = (hosts for view in case.views.values() for hosts in (view.write_hosts, view.read_hosts))
    counted = tuple(number for view in case.views.values() for number in (view.write_needed, view.read_needed))
    return (counted, *(tuple(names.setdefault(host, len(names)) for host in hosts) for hosts in rows))


def commits_of(case: Case, path: Sequence[Step], excluded_before: int, *, counted: bool) -> list[Commit]:
    """The exclusion is a commit of its own, just before this step; no barrier belongs to it."""
    commits: list[Commit] = []
    for number, (source, target, barrier, streams) in enumerate(path):
        knows = number >= excluded_before
        if number == excluded_before:
            commits.append(
                Commit(source=name_of(source), target=name_of(source) + EXCLUDED, after_barrier=False, effect=None)
            )
        suffix = EXCLUDED if knows else ""
        done = streams and target.transition is TransitionState.WRITE_BOTH_READ_NEW
        effect = streamed(case, excluded=knows, counted=counted) if done else None
        commits.append(
            Commit(
                source=name_of(source) + suffix,
                target=name_of(target) + suffix,
                after_barrier=barrier,
                effect=effect,
            )
        )
    return commits


def streamed(case: Case, *, excluded: bool, counted: bool) -> Copy:
    before = case.hosts_at(TransitionState.WRITE_BOTH_READ_OLD)
    after = case.hosts_at(TransitionState.WRITE_BOTH_READ_NEW)
    dead = dead_host(case.change)
    gone = [*(() if dead is None else (dead,)), *((case.excluded,) if excluded else ())]
    sources = stream_sources(tuple(map(host_id, before)), tuple(map(host_id, after)), tuple(map(host_id, gone)))
    gaining = tuple(host for host in after if host not in before and (counted or host != case.excluded))
    return Copy(tuple(host.int for host in sources), gaining)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", FACTORS)
def test_quorums_meet_around_a_node_that_was_excluded_before(factor: int, kind: NodeRequestKind) -> None:
    """A join or leave by which it would gain the range cannot run."""
    checked = 0
    for case in cases(factor, kind, at_start=True):
        if case.gains and kind in (NodeRequestKind.JOIN, NodeRequestKind.LEAVE):
            continue
        checked += 1
        for path in ring_paths(kind):
            commits = commits_of(case, path, 0, counted=False)
            assert next(lost_writes(commits, case.views), None) is None, case
    assert checked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", FACTORS)
def test_quorums_meet_around_a_node_that_is_excluded_meanwhile(factor: int, kind: NodeRequestKind) -> None:
    """It stays counted. If it is to get the range and its stream has not ended, the operation takes its failure
    edge."""
    checked = 0
    for case in cases(factor, kind, at_start=False):
        checked += 1
        for path in ring_paths(kind):
            switch = next((number for number, step in enumerate(path) if switches_reads(step)), None)
            for number in range(1, len(path)):
                if case.gains and switch is not None and number <= switch:
                    continue
                commits = commits_of(case, path, number, counted=True)
                assert next(lost_writes(commits, case.views), None) is None, (case, number)
    assert checked


def switches_reads(step: Step) -> bool:
    return step[1].transition is TransitionState.WRITE_BOTH_READ_NEW


def removals_by_which_it_gains(factor: int) -> list[Case]:
    found = [case for case in cases(factor, NodeRequestKind.REMOVE, at_start=True) if case.gains]
    assert found
    return found


@pytest.mark.parametrize("factor", FACTORS)
def test_a_node_that_was_excluded_before_a_remove_is_not_waited_for(factor: int) -> None:
    for case in removals_by_which_it_gains(factor):
        old = case.views[name_of(ring_paths(NodeRequestKind.REMOVE)[0][0][0])]
        for transition in (TransitionState.WRITE_BOTH_READ_OLD, TransitionState.WRITE_BOTH_READ_NEW):
            both = case.views[name_of(StatePair(NodeState.REMOVING, transition))]
            assert case.excluded not in both.write_hosts
            assert both.write_needed == old.write_needed


def test_an_incomplete_node_that_served_would_lose_writes() -> None:
    """INV-NODE-23: in the end it is a replica, and quorums rely on rows that it never got."""
    lost = 0
    for case in removals_by_which_it_gains(3):
        (path,) = [path for path in ring_paths(NodeRequestKind.REMOVE) if any(map(switches_reads, path))]
        commits = commits_of(case, path, 0, counted=False)
        last = commits[-1].target
        serving = {**case.views, last: case.views[last.removesuffix(EXCLUDED)]}
        lost += next(lost_writes(commits, serving), None) is not None
    assert lost


def test_the_steps_of_a_path_follow_each_other() -> None:
    case = removals_by_which_it_gains(3)[0]
    for path in ring_paths(NodeRequestKind.REMOVE):
        for number in range(len(path)):
            commits = commits_of(case, path, number, counted=False)
            assert all(one.target == two.source for one, two in pairwise(commits))
