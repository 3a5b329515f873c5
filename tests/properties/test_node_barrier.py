"""A barrier that holds on a node agrees with the reports of its processes, and keeps holding."""

import uuid

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ebla.control.topology.node_barrier import barrier_waits_for
from ebla.model.identity import SessionId, TopologyVersion
from ebla.topology.version_tracker import VersionTracker
from ebla.wire.feed_messages import ChildReport

V = TopologyVersion
NAMES = ("bulk", "shard-0", "shard-1")
VERSIONS = st.integers(1, 6).map(V)
SESSIONS = st.lists(st.integers(1, 3).map(lambda number: SessionId(uuid.UUID(int=number))), max_size=2).map(tuple)


@st.composite
def reports(draw: st.DrawFn) -> dict[str, ChildReport]:
    found = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        version = draw(VERSIONS)
        oldest = V(draw(st.integers(1, version)))
        found[name] = ChildReport(
            name=name,
            pid=1,
            version=version,
            fence=V(1),
            oldest_running=oldest,
            pending_replicas_open=draw(st.booleans()),
            closing_sessions=draw(SESSIONS),
        )
    return found


@given(reports(), VERSIONS)
def test_it_holds_exactly_when_every_report_says_so(given_reports: dict[str, ChildReport], version: V) -> None:
    holds = all(
        name in given_reports
        and given_reports[name].version >= version
        and given_reports[name].oldest_running >= version
        and given_reports[name].pending_replicas_open
        and not given_reports[name].closing_sessions
        for name in NAMES
    )
    assert (barrier_waits_for(version, NAMES, given_reports) == ()) == holds
    assert not holds or barrier_waits_for(version, NAMES, given_reports, drain=False) == ()


@given(reports(), VERSIONS, VERSIONS)
def test_one_of_a_later_version_implies_those_before(
    given_reports: dict[str, ChildReport], version: V, later: V
) -> None:
    if later >= version and not barrier_waits_for(later, NAMES, given_reports):
        assert barrier_waits_for(version, NAMES, given_reports) == ()


@given(reports(), VERSIONS, st.sampled_from(NAMES))
def test_a_process_it_does_not_hear_of_always_holds_it_up(
    given_reports: dict[str, ChildReport], version: V, silent: str
) -> None:
    given_reports.pop(silent, None)
    assert any(words.startswith(f"{silent} ") for words in barrier_waits_for(version, NAMES, given_reports))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
def test_what_a_process_routes_never_undoes_a_barrier(steps: list[tuple[bool, int]]) -> None:
    """A router takes the installed version, holds it for a while and releases it; versions are installed in between.
    Once a barrier holds by one report, it holds by every later one."""
    running, installed = VersionTracker(), V(1)
    held: list[V] = []
    passed = V(0)
    for begins, number in steps:
        if number == 0:
            installed = V(installed + 1)
        elif begins:
            running.hold(installed)
            held.append(installed)
        elif held:
            running.release(held.pop(number % len(held)))
        report = ChildReport(
            name="shard-0",
            pid=1,
            version=installed,
            fence=V(1),
            oldest_running=running.oldest(installed),
            pending_replicas_open=True,
        )
        now = max(v for v in range(installed + 1) if not barrier_waits_for(V(v), ("shard-0",), {"shard-0": report}))
        assert now >= passed
        passed = V(now)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=ChildReport) == report
