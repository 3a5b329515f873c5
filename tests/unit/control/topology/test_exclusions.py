"""Whether a node treats itself as excluded: by group 0, or by what another member says."""

from dataclasses import dataclass, field

from tests.unit.topology.world import World, cluster, host

from ebla.control.topology.exclusions import Exclusions
from ebla.model.identity import TopologyVersion
from ebla.topology.commands import AbortRequest, ExcludeHosts, IncludeHost
from ebla.topology.snapshot import Exclusion
from ebla.topology.states import NodeRequestKind


@dataclass
class Node:
    """Host 3 of a cluster of three; what it has seen of the topology lags behind until it follows."""

    world: World = field(default_factory=lambda: cluster(3)[0])
    events: list[str] = field(default_factory=list)
    woken: int = 0

    def __post_init__(self) -> None:
        self.snapshot = self.world.snapshot
        self.exclusions = Exclusions(host(3), self, lambda event, _details: self.events.append(event))
        self.exclusions.on_change = self.wake

    def wake(self) -> None:
        self.woken += 1

    def exclude(self) -> None:
        self.world.do(ExcludeHosts((Exclusion(host=host(3), since_ms=1, by=host(1)),)))


def test_it_learns_of_its_exclusion_from_group_0() -> None:
    node = Node()
    assert node.exclusions.hosts() == ()
    node.exclude()
    node.snapshot = node.world.snapshot
    assert node.exclusions.hosts() == (host(3),)
    assert "by an operator" in node.exclusions.why_own()
    node.world.do(IncludeHost(host(3)))
    node.snapshot = node.world.snapshot
    assert node.exclusions.hosts() == ()
    assert node.exclusions.why_own() == ""
    assert node.events == ["node.excluded", "node.included"]


def test_it_believes_another_member_until_it_has_that_version() -> None:
    node, member = Node(), Node()
    member.world = node.world
    node.exclude()
    member.snapshot = node.world.snapshot
    said = member.exclusions.version_for(host(3))
    assert member.exclusions.version_for(host(2)) == 0
    node.exclusions.heard(said)
    node.exclusions.heard(said)
    assert node.woken == 1
    assert node.exclusions.hosts() == (host(3),)
    assert "another member" in node.exclusions.why_own()
    node.snapshot = node.world.snapshot
    assert node.exclusions.hosts() == (host(3),)
    node.world.do(IncludeHost(host(3)))
    node.snapshot = node.world.snapshot
    node.exclusions.heard(said)
    assert node.exclusions.hosts() == (), "an answer from before its recovery is overtaken"
    assert TopologyVersion(0) < said < node.snapshot.version


def test_a_request_excludes_as_well_and_its_failure_ends_that() -> None:
    node = Node()
    request = node.world.ask(NodeRequestKind.REMOVE, 2, ignored_nodes=(host(3),))
    member = Exclusions(host(1), node.world, lambda _event, _details: None)
    node.exclusions.heard(member.version_for(host(3)))
    assert node.exclusions.hosts() == (host(3),), "it may be cut off from group 0"
    node.snapshot = node.world.snapshot
    assert node.exclusions.hosts() == (host(2), host(3))
    assert "by a request to remove or replace" in node.exclusions.why_own()
    node.world.do(AbortRequest(request.id, "", node.world.now_ms))
    node.snapshot = node.world.snapshot
    assert node.exclusions.hosts() == ()
