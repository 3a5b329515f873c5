"""One view of a cluster from the answers of some of its nodes."""

import uuid

import msgspec
import pytest

from ebla.cli.cluster.node_calls import parse_contact
from ebla.cli.cluster.status_details import group0 as group0_details
from ebla.cli.cluster.status_details import pipeline, processes, ring, round_trip
from ebla.cli.cluster.status_table import status_fingerprint, status_lines
from ebla.cli.figures import duration
from ebla.client.cluster_view import ClusterView, Group0View, NodeProbe, NodeStatus, build_cluster_view
from ebla.group0.members import Member, MemberRole
from ebla.leadership.messages import LeaseState
from ebla.model.errors import InvalidRequest
from ebla.model.identity import Address, ClusterId, HistoryId, HostId, TopologyVersion
from ebla.model.records.jobs import PipelineState
from ebla.options import DEFAULT_LIMITS, NodePorts
from ebla.wire.group0_messages import Group0Report, MemberReport
from ebla.wire.leadership_messages import ActivityReport, HeldLeaseReport, LeadershipReport
from ebla.wire.verbs import PeerStatus, ProcessState, ProcessStatus, StatusAnswer, TopologyStatus

HOSTS = [HostId(uuid.UUID(int=number)) for number in range(4)]
CLUSTER = ClusterId(uuid.UUID(int=99))
HISTORY = HistoryId(uuid.UUID(int=98))


def at(number: int) -> str:
    return f"127.0.0.{number}:7000"


def answer(number: int, *peers: PeerStatus, child: ProcessState = ProcessState.RUNNING) -> StatusAnswer:
    processes = (
        ProcessStatus(name="control", pid=100 + number, started_wall_us=0, state=ProcessState.RUNNING),
        ProcessStatus(
            name="shard-0", pid=200 + number, started_wall_us=0, state=child, version=TopologyVersion(7), serving=True
        ),
        ProcessStatus(
            name="bulk", pid=300 + number, started_wall_us=0, state=ProcessState.RUNNING, version=TopologyVersion(7)
        ),
    )
    ring = TopologyStatus(
        version=TopologyVersion(7), fence=TopologyVersion(6), nodes=((HOSTS[1], "normal"), (HOSTS[2], "normal"))
    )
    return StatusAnswer(
        host=HOSTS[number],
        cluster=CLUSTER,
        cluster_name="ebla",
        address=at(number),
        started_wall_us=0,
        processes=processes,
        peers=peers,
        uptime_ms=65_000,
        group0=group0(number),
        topology=ring,
    )


def group0(number: int) -> Group0Report:
    """The answer of node `number`; node 1 leads and knows that node 2 lags by three entries."""
    members = tuple(
        MemberReport(
            Member(host=HOSTS[one], role=MemberRole.VOTER, address=Address(f"127.0.0.{one}", 7000)), 3 * (one - 1)
        )
        if number == 1
        else MemberReport(Member(host=HOSTS[one], role=MemberRole.VOTER, address=Address(f"127.0.0.{one}", 7000)))
        for one in (1, 2)
    )
    role = "leader" if number == 1 else "follower"
    return Group0Report(
        history=HISTORY,
        role=role,
        term=4,
        leader=HOSTS[1],
        commit=90,
        applied=90 - number,
        first=1,
        last=90,
        members=members,
    )


def peer(number: int, up: bool = True, trip: int | None = 500) -> PeerStatus:
    return PeerStatus(host=HOSTS[number], address=at(number), up=up, heard_ms_ago=10, round_trip_us=trip)


def asked(number: int, *peers: PeerStatus, child: ProcessState = ProcessState.RUNNING) -> NodeProbe:
    return NodeProbe(
        name=f"node{number}", address=at(number), host=HOSTS[number], answer=answer(number, *peers, child=child)
    )


def shown(view: ClusterView) -> list[str]:
    return [line.plain for line in status_lines(view)]


def test_a_healthy_cluster_is_all_up() -> None:
    view = build_cluster_view([asked(1, peer(2)), asked(2, peer(1, trip=700))])
    assert view.all_up
    assert (view.cluster, view.cluster_name) == (str(CLUSTER), "ebla")
    assert [(node.state, node.held_up_by, node.asked_others, node.round_trip_us) for node in view.nodes] == [
        (NodeStatus.UP, 1, 1, 700),
        (NodeStatus.UP, 1, 1, 500),
    ]


def test_each_node_shows_its_place_in_group_0_and_the_lag_its_leader_knows() -> None:
    view = build_cluster_view([asked(1, peer(2)), asked(2, peer(1))])
    places = [node.group0 for node in view.nodes]
    assert places == [
        Group0View(role="leader", votes=True, leads=True, term=4, commit=90, applied=89, lag=0),
        Group0View(role="follower", votes=True, leads=False, term=4, commit=90, applied=88, lag=3),
    ]
    assert [group0_details(node) for node in view.nodes] == [
        "group0:leader term 4 index 89/90 lag 0",
        "group0:follower term 4 index 88/90 lag 3",
    ]
    assert [node.group0_role for node in view.nodes] == ["leader", "voter"]
    assert view.leases == "no leader is known", "no node has told of any"
    assert pipeline(view.pipeline).startswith("not running: the leader runs none")


def test_one_line_tells_of_the_leases_that_the_newest_leader_holds() -> None:
    def report(number: int, term: int, *held: int) -> LeadershipReport:
        return LeadershipReport(
            host=HOSTS[number],
            address=at(number),
            state=LeaseState.ACTIVE,
            lease=None,
            left_ms=1,
            on_disk_ms=1,
            leads=term > 0,
            term=term,
            held=tuple(
                HeldLeaseReport(host=HOSTS[one], is_held=True, rtt_us=None, timeout_ms=1, renewed_ms_ago=None)
                for one in held
            ),
            voters=((HOSTS[1], HOSTS[2], HOSTS[3]),),
            lease_id="5f0c9a1e-0000",
            activities=(ActivityReport(name="admit", domain="coordinator", quorum="", state="running", age_ms=1),),
        )

    def told(number: int, term: int, *held: int) -> NodeProbe:
        node = asked(number, peer(3 - number))
        assert node.answer is not None
        status = msgspec.structs.replace(node.answer, leases=report(number, term, *held))
        return msgspec.structs.replace(node, answer=status)

    view = build_cluster_view([told(1, 4, 1, 2, 3), told(2, 5, 2, 3)])
    assert view.leases == f"leader {at(2)}, term 5, lease 5f0c9a1e, 2 of 3 voters (2 needed); admit running"
    assert view.lease_counts == "2 of 3"
    follower = build_cluster_view([told(1, 0)])
    assert status_fingerprint(view) != status_fingerprint(build_cluster_view([told(1, 0), told(2, 5, 2)]))
    assert follower.leases == "no leader is known"


def test_the_pipeline_is_told_of_by_the_leader_alone_and_nothing_waits_for_it() -> None:
    leaders = PipelineState(host=HOSTS[1], pid=77, state="ready", master="local[*]", version="4.1")
    nodes = [
        with_process(asked(1, peer(2)), ProcessStatus(name="pipeline", pid=77, started_wall_us=0)),
        asked(2, peer(1)),
    ]
    ready = build_cluster_view(nodes, leaders)
    assert pipeline(ready.pipeline) == "ready on local[*], Spark 4.1"
    assert status_fingerprint(ready) != status_fingerprint(build_cluster_view(nodes))
    former = msgspec.structs.replace(leaders, host=HOSTS[2])
    assert build_cluster_view(nodes, former).pipeline.state == "not started"
    away = build_cluster_view(nodes, msgspec.structs.replace(leaders, state="unavailable", cause="no Java was found"))
    assert pipeline(away.pipeline) == "unavailable on local[*], Spark 4.1: no Java was found"
    assert "! pipeline: no Java was found" in shown(away)

    waiting = ProcessStatus(name="pipeline", pid=0, started_wall_us=0, state=ProcessState.WAITING)
    again = build_cluster_view([with_process(asked(1, peer(2)), waiting), nodes[1]], leaders)
    assert again.all_up
    assert again.pipeline.state == "not started", "what one said that has ended counts for nothing"
    off = build_cluster_view([asked(1, peer(2)), nodes[1]], leaders)
    assert (off.pipeline.state, off.pipeline.master) == ("not running", "")


@pytest.mark.parametrize(
    ("clocks_ms", "expected"),
    [
        ((0, 0, 0), {}),
        ((0, 0, 3_600_000), {3: "its clock is 3600.0 s ahead of the clocks of the others"}),
        ((0, 20, -5_000), {3: "its clock is 5.0 s behind the clocks of the others"}),
        ((9_000, 10, 0), {1: "its clock is 9.0 s ahead of the clocks of the others"}),
    ],
)
def test_the_node_whose_clock_is_away_is_named(clocks_ms: tuple[int, ...], expected: dict[int, str]) -> None:
    def seen(number: int, by: int) -> PeerStatus:
        offset_ms = clocks_ms[number - 1] - clocks_ms[by - 1]
        return msgspec.structs.replace(
            peer(number), clock_offset_ms=offset_ms, is_clock_skewed=abs(offset_ms) > DEFAULT_LIMITS.clock_skew_warn_ms
        )

    numbers = (1, 2, 3)
    for first in numbers:
        order = [first, *(number for number in numbers if number != first)]
        view = build_cluster_view([asked(by, *(seen(one, by) for one in numbers if one != by)) for by in order])
        found = {number: node.warnings for number, node in zip(order, view.nodes)}
        assert found == {number: (expected[number],) if number in expected else () for number in numbers}


def with_process(node: NodeProbe, process: ProcessStatus) -> NodeProbe:
    assert node.answer is not None
    answer = msgspec.structs.replace(node.answer, processes=(*node.answer.processes, process))
    return msgspec.structs.replace(node, answer=answer)


def without_group0(node: NodeProbe) -> NodeProbe:
    assert node.answer is not None
    answer = msgspec.structs.replace(node.answer, group0=None, waits_for="no answer yet from 127.0.0.2:7000")
    return msgspec.structs.replace(node, answer=answer)


def test_a_node_that_is_in_no_cluster_yet_says_what_it_waits_for() -> None:
    view = build_cluster_view([without_group0(asked(1, peer(2))), asked(2, peer(1))])
    assert not view.all_up
    assert "! node1: no answer yet from 127.0.0.2:7000" in shown(view)
    assert "control:" in processes(view.nodes[0]), "its processes run all the same"


def with_ring(ring: TopologyStatus | None) -> NodeProbe:
    node = asked(2, peer(1))
    assert node.answer is not None
    return msgspec.structs.replace(node, answer=msgspec.structs.replace(node.answer, topology=ring))


def with_shard(**changed: object) -> NodeProbe:
    node = asked(2, peer(1))
    assert node.answer is not None
    control, shard, bulk = node.answer.processes
    processes = (control, msgspec.structs.replace(shard, **changed), bulk)
    return msgspec.structs.replace(node, answer=msgspec.structs.replace(node.answer, processes=processes))


def ring_of(state: str, waits_for: str = "") -> TopologyStatus:
    nodes = ((HOSTS[1], "normal"), (HOSTS[2], state))
    return TopologyStatus(
        version=TopologyVersion(7), fence=TopologyVersion(6), nodes=nodes, transition="join_group0", waits_for=waits_for
    )


@pytest.mark.parametrize(
    ("node", "output"),
    [
        (with_ring(None), "not serving: it has not received the topology"),
        (with_ring(ring_of("bootstrapping")), "not serving: it is not in the ring yet"),
        (with_ring(ring_of("none", "the barrier of version 3")), "not serving: the barrier of version 3"),
        (with_shard(serving=False), "not serving: shard-0 does not serve yet"),
        (with_shard(state=ProcessState.STARTING), "not serving: shard-0 is starting"),
        (with_shard(trouble="the disk is full"), "not serving: shard-0: the disk is full"),
    ],
)
def test_a_node_that_does_not_serve_yet_says_what_it_waits_for(node: NodeProbe, output: str) -> None:
    view = build_cluster_view([asked(1, peer(2)), node])
    assert not view.all_up
    assert f"! node2: {output}" in shown(view)
    assert not any(line.startswith("! node1") for line in shown(view))


def test_each_node_shows_the_version_it_has_who_is_in_the_ring_and_which_shards_serve() -> None:
    _, node = build_cluster_view([asked(1, peer(2)), with_ring(ring_of("bootstrapping"))]).nodes
    assert processes(node) == "control:102 shard-0:202/v7 bulk:302/v7"
    assert ring(node) == "topology:v7 join_group0 nodes 1/2 shards 1/1"


@pytest.mark.parametrize(
    "nodes",
    [
        [asked(1, peer(2, up=False)), asked(2, peer(1))],
        [asked(1, peer(2)), asked(2, peer(1), child=ProcessState.STARTING)],
        [asked(1, peer(2)), NodeProbe(name="node2", address=at(2), host=HOSTS[2], trouble="not running")],
        [asked(1, peer(2)), asked(2)],
    ],
)
def test_a_missing_opinion_answer_or_child_is_not_all_up(nodes: list[NodeProbe]) -> None:
    assert not build_cluster_view(nodes).all_up


def test_a_node_that_does_not_answer_is_down_whatever_others_hold_of_it() -> None:
    view = build_cluster_view(
        [asked(1, peer(2)), NodeProbe(name="node2", address=at(2), trouble="process 7 does not answer")]
    )
    silent = view.nodes[1]
    assert (silent.state, silent.held_up_by, silent.host) == (NodeStatus.DOWN, 1, HOSTS[2])
    assert "! node2: process 7 does not answer" in shown(view)


def test_a_node_whose_folder_has_left_is_shown_as_left() -> None:
    gone = NodeProbe(name="node2", address=at(2), host=HOSTS[2], trouble="has left the cluster", has_left=True)
    lines = shown(build_cluster_view([asked(1), gone]))
    assert "! node2: has left the cluster" in lines
    assert any(line.startswith("DL node2") for line in lines)


def test_nodes_that_only_others_mention_are_shown_as_those_see_them() -> None:
    view = build_cluster_view([asked(1, peer(2), peer(3, up=False))])
    assert [(node.address, node.state) for node in view.nodes] == [
        (at(1), NodeStatus.UP),
        (at(2), NodeStatus.UP),
        (at(3), NodeStatus.DOWN),
    ]
    assert not any(line.startswith("!") for line in shown(view) if "pipeline" not in line), "they were not asked"


def test_no_answer_at_all_gives_a_view_without_a_cluster() -> None:
    view = build_cluster_view([NodeProbe(name="node1", address=at(1), trouble="never started")])
    assert (view.cluster, view.nodes[0].state) == (None, NodeStatus.DOWN)


def test_only_changes_that_matter_are_news() -> None:
    before = build_cluster_view([asked(1, peer(2)), asked(2, peer(1))])
    moved = build_cluster_view([asked(1, peer(2, trip=9_000)), asked(2, peer(1))])
    fallen = build_cluster_view([asked(1, peer(2, up=False)), asked(2, peer(1))])
    assert status_fingerprint(before) == status_fingerprint(moved)
    assert status_fingerprint(before) != status_fingerprint(fallen)


def test_a_view_is_json() -> None:
    view = build_cluster_view([asked(1, peer(2)), asked(2, peer(1))])
    decoded = msgspec.json.decode(msgspec.json.encode(view))
    assert decoded["nodes"][0]["processes"][1] == {
        "name": "shard-0",
        "pid": 201,
        "state": "running",
        "restarts": 0,
        "last_exit": "",
        "version": 7,
        "serving": True,
        "trouble": "",
        "load_bytes": None,
    }
    assert decoded["nodes"][0]["ring"]["normal"] == 2


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (None, "–"),
        (999, "0 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h 0 min"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_durations_for_people(milliseconds: int | None, shown: str) -> None:
    assert duration(milliseconds) == shown


def test_round_trips_for_people() -> None:
    assert (round_trip(None), round_trip(1_234)) == ("–", "1.23 ms")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1", Address("127.0.0.1", 7000)),
        ("127.0.0.1:7005", Address("127.0.0.1", 7005)),
        ("/run/control.sock", Address("/run/control.sock")),
        ("::1", Address("::1", 7000)),
        ("[::1]", Address("::1", 7000)),
        ("[::1]:7005", Address("::1", 7005)),
    ],
)
def test_contacts_are_hosts_ports_and_paths(text: str, address: Address) -> None:
    assert parse_contact(text, NodePorts()) == address


@pytest.mark.parametrize("text", ["127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_wrong_contacts_are_told(text: str) -> None:
    with pytest.raises(InvalidRequest, match="has no valid port"):
        parse_contact(text, NodePorts())


def test_a_warning_of_a_node_that_serves_has_a_line_of_its_own() -> None:
    warned = msgspec.structs.replace(answer(1), warnings=("CQL on 192.0.2.1 is without TLS",))
    view = build_cluster_view([NodeProbe(name="node1", address=at(1), host=HOSTS[1], answer=warned)])
    assert "! node1: CQL on 192.0.2.1 is without TLS" in shown(view)
    assert status_fingerprint(view) != status_fingerprint(build_cluster_view([asked(1)]))


def test_an_excluded_node_is_marked_by_the_newest_topology_and_not_awaited() -> None:
    """Its own topology may be older, and its shard serves nothing."""
    behind = answer(2, PeerStatus(host=HOSTS[1], address=at(1), up=True))
    quiet = tuple(msgspec.structs.replace(process, serving=False) for process in behind.processes)
    behind = msgspec.structs.replace(behind, processes=quiet)
    first = answer(1, PeerStatus(host=HOSTS[2], address=at(2), up=True))
    assert first.topology is not None
    newest = msgspec.structs.replace(
        first.topology, version=TopologyVersion(8), excluded=((HOSTS[2], "automatically"),)
    )
    first = msgspec.structs.replace(first, topology=newest)
    probes = [NodeProbe(name=f"node{one.host.int}", address=one.address, answer=one) for one in (first, behind)]
    view = build_cluster_view(probes)
    assert [node.excluded for node in view.nodes] == ["", "automatically"]
    assert view.all_up
    assert "! node2: excluded automatically; ebla recover 127.0.0.2" in shown(view)
    lacking = msgspec.structs.replace(newest, excluded=((HOSTS[2], "by a request"),), incomplete=(HOSTS[2],))
    probes[0] = msgspec.structs.replace(probes[0], answer=msgspec.structs.replace(first, topology=lacking))
    view = build_cluster_view(probes)
    assert [node.is_incomplete for node in view.nodes] == [False, True]
    assert shown(view)[1] == (
        "! node2: excluded by a request; incomplete: it lacks rows and never serves again; remove or replace it: "
        "ebla removenode 127.0.0.2, or ebla add-node --replace 127.0.0.2"
    )
