"""Members, opinions and facts of a cluster whose hosts are numbered from 1."""

from tests.unit.topology.world import host

from ebla.group0.failover import FailoverFacts, Opinions
from ebla.group0.members import Member, MemberRole
from ebla.model.identity import Address, HostId
from ebla.model.opinions import Opinion, OpinionState
from ebla.topology.snapshot import Snapshot

DOWN, UP, NONE = OpinionState.DOWN, OpinionState.UP, OpinionState.NONE


def member(number: int, role: MemberRole = MemberRole.VOTER) -> Member:
    return Member(host=host(number), role=role, address=Address(f"10.0.0.{number}", 7000))


def say(voter: int, about: int, state: OpinionState = DOWN, for_ms: int = 40_000) -> Opinion:
    return Opinion(voter=host(voter), host=host(about), state=state, for_ms=for_ms)


def answers(voters: int, *down: tuple[int, int]) -> list[Opinion]:
    """Each voter says of each host that it is up, except for the pairs (voter, host)."""
    hosts = range(1, voters + 1)
    silent = {about for _, about in down}
    return [
        say(voter, about, DOWN if (voter, about) in down else UP)
        for voter in hosts
        if voter not in silent
        for about in hosts
    ]


def facts(snapshot: Snapshot, opinions: list[Opinion], voters: int = 3, leader: HostId | None = None) -> FailoverFacts:
    members = tuple(member(number) for number in range(1, voters + 1))
    return FailoverFacts(
        snapshot=snapshot,
        members=members,
        leader=leader or host(1),
        opinions=Opinions((one.host for one in members), opinions),
    )
