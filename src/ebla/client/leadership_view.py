"""What the reports of nodes say about leases together, for `ebla leases` and `ebla status`. Pure."""

from collections.abc import Iterable, Sequence

from ebla.wire.leadership_messages import LeadershipReport


def leader_of(reports: Iterable[LeadershipReport]) -> LeadershipReport | None:
    """A former leader may not know yet that it lost the leadership."""
    return max((one for one in reports if one.leads), key=lambda one: one.term, default=None)


def headline(reports: Sequence[LeadershipReport]) -> str:
    leader = leader_of(reports)
    if leader is None:
        return "no leader is known"
    needed = ", ".join(str(len(voters) // 2 + 1) for voters in leader.voters)
    return (
        f"leader {leader.address}, term {leader.term}, lease {leader.lease_id[:8]}, "
        f"{lease_counts(reports)} voters ({needed} needed)"
    )


def lease_counts(reports: Sequence[LeadershipReport]) -> str:
    """How many leases of the voters the leader holds, as in `2 of 3`; empty: no leader is known."""
    leader = leader_of(reports)
    if leader is None:
        return ""
    held = {one.host for one in leader.held if one.is_held}
    return " and ".join(f"{sum(host in held for host in voters)} of {len(voters)}" for voters in leader.voters)


def has_majority(reports: Sequence[LeadershipReport]) -> bool:
    leader = leader_of(reports)
    if leader is None:
        return False
    held = {one.host for one in leader.held if one.is_held}
    return all(2 * sum(host in held for host in voters) > len(voters) for voters in leader.voters)


def leases_line(reports: Sequence[LeadershipReport]) -> str:
    """Who leads, the leases that it holds, and what runs or waits under them on the leader."""
    leader = leader_of(reports)
    activities = [] if leader is None else [f"{one.name} {one.state}" for one in leader.activities]
    return "; ".join((headline(reports), *activities))
