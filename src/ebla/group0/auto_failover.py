"""Automatic failover: which hosts are due to be excluded, and why each other host that is down is not.

The leader evaluates once a second. A host is due when a majority of all voters reported it down at every evaluation for
`after_ms`. Evaluations that did not happen prove nothing, so the time starts again after a leader change and after a
stall of the event loop: the answers that were waiting then may be old.

INV-FAIL-2: at most `max_count` hosts are excluded automatically between two resets of the count.
"""

import enum
from dataclasses import dataclass

from ebla.group0.failover import CheckKind, FailoverFacts, check_exclusion, unmet_checks
from ebla.model.identity import HostId
from ebla.settings_store.registry import AutoFailoverSettings
from ebla.topology.states import NodeState

EVALUATE_MS = 1_000
ANSWER_AGE_MS_MAX = 2_000
"""Answers to older questions do not count."""
STALL_MS = 1_000
"""An evaluation that is later than this, or after a longer pause of the event loop, is one after a stall."""
GROUP_MS = 5_000
"""Hosts that went down within this time of the first one are excluded together or not at all: together they may be more
than is allowed, as when a switch fails."""


class WhyNot(enum.StrEnum):
    """Why a host that is down is not excluded."""

    DISABLED = "disabled"
    NOT_NORMAL = "not_normal"
    NO_MAJORITY = "no_majority"
    TOO_EARLY = "too_early"
    VOTERS_DOWN = "voters_down"
    COUNT_REACHED = "count_reached"
    LAST_REPLICA = "last_replica"
    IS_LEADER = "is_leader"
    NO_QUORUM = "no_quorum"
    """It is due, and waits for the quorum of leases."""


WHY_UNMET = {
    CheckKind.MEMBER: WhyNot.IS_LEADER,
    CheckKind.DOWN: WhyNot.NO_MAJORITY,
    CheckKind.VOTERS: WhyNot.VOTERS_DOWN,
    CheckKind.REPLICAS: WhyNot.LAST_REPLICA,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DownHost:
    """One host that is down and not excluded."""

    host: HostId
    why: WhyNot
    text: str
    remaining_ms: int = 0
    """Until it is due, if nothing else prevents it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    now_ms: int
    """By the leader's boot clock."""
    term: int
    settings: AutoFailoverSettings
    facts: FailoverFacts
    pause_ms: int
    """The longest pause of the event loop since the last evaluation. One that began between two evaluations makes the
    second late by less than it lasted."""


class AutoFailover:
    """One per node; only the leader evaluates."""

    def __init__(self) -> None:
        self._term = 0
        self._evaluated_ms: int | None = None
        self._down_since: dict[HostId, int] = {}
        """The first of an unbroken row of evaluations with a majority."""
        self.due: tuple[HostId, ...] = ()
        """The group to exclude now, sorted."""
        self.down: tuple[DownHost, ...] = ()

    def stop(self) -> None:
        """This node does not lead."""
        self._restart(0)
        self.due, self.down = (), ()

    def evaluate(self, evaluation: Evaluation) -> None:
        now_ms, last_ms = evaluation.now_ms, self._evaluated_ms
        is_late = last_ms is not None and now_ms - last_ms > EVALUATE_MS + STALL_MS
        has_stalled = is_late or evaluation.pause_ms > STALL_MS
        if evaluation.term != self._term or has_stalled or not evaluation.settings.enabled:
            self._restart(evaluation.term)
        self._evaluated_ms = now_ms
        facts = evaluation.facts
        candidates = [host for host in facts.opinions.suspected() if self._is_candidate(facts, host)]
        self._down_since = {host: self._down_since.get(host, now_ms) for host in candidates}
        verdicts: dict[HostId, DownHost] = {}
        self.due = ()
        for group in self._groups():
            found = self._judge(evaluation, group)
            if found is None and not self.due:
                self.due = group
            for host in group:
                why, text, remaining_ms = found or (WhyNot.NO_QUORUM, "it is due; waits for the quorum of leases", 0)
                verdicts[host] = DownHost(host=host, why=why, text=text, remaining_ms=remaining_ms)
        for host in facts.opinions.suspected():
            if host not in verdicts and (verdict := self._why_no_candidate(evaluation, host)) is not None:
                verdicts[host] = verdict
        self.down = tuple(verdicts[host] for host in sorted(verdicts))

    def _restart(self, term: int) -> None:
        self._term = term
        self._evaluated_ms = None
        self._down_since = {}

    @staticmethod
    def _is_candidate(facts: FailoverFacts, host: HostId) -> bool:
        node = facts.snapshot.nodes.get(host)
        is_normal = node is not None and node.state is NodeState.NORMAL
        return is_normal and facts.snapshot.exclusion_of(host) is None and facts.opinions.is_down(host)

    def _groups(self) -> list[tuple[HostId, ...]]:
        """By when they went down, the first ones first."""
        groups: list[list[HostId]] = []
        for host in sorted(self._down_since, key=lambda host: (self._down_since[host], host)):
            if groups and self._down_since[host] - self._down_since[groups[-1][0]] <= GROUP_MS:
                groups[-1].append(host)
            else:
                groups.append([host])
        return [tuple(sorted(group)) for group in groups]

    def _judge(self, evaluation: Evaluation, group: tuple[HostId, ...]) -> tuple[WhyNot, str, int] | None:
        """Why the group is not excluded now; None: it is due."""
        settings, facts = evaluation.settings, evaluation.facts
        if not settings.enabled:
            return WhyNot.DISABLED, "automatic failover is off: ebla settings set auto_failover.enabled true", 0
        down_voters = [voter for voter in facts.opinions.voters if facts.opinions.is_down(voter)]
        if len(down_voters) >= facts.opinions.majority:
            return WhyNot.VOTERS_DOWN, f"a majority of the voters is down: {facts.names(down_voters)}", 0
        left = settings.max_count - facts.snapshot.state.failover_count
        if len(group) > left:
            text = f"{len(group)} went down together and {max(0, left)} of max_count {settings.max_count} are left"
            return WhyNot.COUNT_REACHED, f"{text}; exclude by hand, or ebla failover --reset", 0
        last_ms = max(self._down_since[host] for host in group)
        remaining_ms = last_ms + settings.after_ms - evaluation.now_ms
        if remaining_ms > 0:
            return WhyNot.TOO_EARLY, f"excluded in {-(-remaining_ms // 1000)} s unless it comes back", remaining_ms
        unmet = unmet_checks(check_exclusion(facts, group), force=False)
        return (WHY_UNMET[unmet[0].kind], "; ".join(check.text for check in unmet), 0) if unmet else None

    def _why_no_candidate(self, evaluation: Evaluation, host: HostId) -> DownHost | None:
        """None: the host is excluded, or nothing that could be."""
        facts = evaluation.facts
        node = facts.snapshot.nodes.get(host)
        if node is None or node.state in (NodeState.NONE, NodeState.LEFT) or facts.snapshot.exclusion_of(host):
            return None
        if not evaluation.settings.enabled:
            return DownHost(host=host, why=WhyNot.DISABLED, text="automatic failover is off")
        if node.state is not NodeState.NORMAL:
            return DownHost(host=host, why=WhyNot.NOT_NORMAL, text=f"it is {node.state}, not normal")
        down = facts.opinions.down(host)
        text = (
            f"{len(down)} of {len(facts.opinions.voters)} voters report it down, {facts.opinions.majority} are needed"
        )
        return DownHost(host=host, why=WhyNot.NO_MAJORITY, text=text)
