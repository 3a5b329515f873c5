"""The parts of one node together: its agent, its registry and, while it leads, its renewal.

The order of a step matters: a lease is requested again only after the registry has ended what the loss of it broke."""

from dataclasses import dataclass

from ebla.leadership.activities import ActivityEffect, ActivityRegistry, HeldLeases, LeadershipView
from ebla.leadership.lease_agent import EndedLease, LeaseAgent
from ebla.leadership.lease_worker import WorkerEffect
from ebla.leadership.quorum import VoterSets
from ebla.leadership.renewal import LeaseRenewal
from ebla.model.identity import HostId
from ebla.model.lease_settings import LeaseSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftFacts:
    """What this node's Raft core says now."""

    leads: bool
    term: int
    voters: VoterSets


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEffects:
    workers: tuple[WorkerEffect, ...]
    activities: tuple[ActivityEffect, ...]
    ended: tuple[EndedLease, ...]

    @property
    def is_empty(self) -> bool:
        return not (self.workers or self.activities or self.ended)


class LeadershipCore:
    def __init__(self, own: HostId) -> None:
        self.own = own
        self.registry = ActivityRegistry()
        self.agent = LeaseAgent(self.registry.runs_under)
        self.renewal: LeaseRenewal | None = None
        self.failed_renewal: LeaseRenewal | None = None
        """Ended by an unexpected error; the shell abolishes its lease id."""

    def view(self, raft: RaftFacts, now_ms: int) -> LeadershipView:
        held, renewal = None, self.renewal
        if renewal is not None and raft.leads and raft.term == renewal.term:
            held = HeldLeases(
                term=renewal.term,
                lease_id=renewal.lease_id,
                deadlines=renewal.deadlines(),
                troubles={host: worker.trouble for host, worker in renewal.workers.items()},
            )
        return LeadershipView(
            now_ms=now_ms,
            own=self.own,
            lease=self.agent.current(now_ms),
            lease_until_ms=now_ms + self.agent.left_ms(now_ms),
            held=held,
            voters=raft.voters,
        )

    def step(self, raft: RaftFacts, now_ms: int, settings: LeaseSettings) -> StepEffects:
        """After every event. To be repeated until it returns nothing: an effect that is carried out is an event."""
        self.agent.tick(now_ms)
        activities: list[ActivityEffect] = []
        workers: list[WorkerEffect] = []
        try:
            workers += [] if self.renewal is None else self.renewal.poll(now_ms, settings)
        except Exception:
            self.failed_renewal, self.renewal = self.renewal, None
            activities += self.registry.renewal_died(now_ms)
        activities += self.registry.check(self.view(raft, now_ms))
        if self.renewal is not None and not self.registry.has_ending:
            self.renewal.activities_ended()
            workers += self.renewal.poll(now_ms, settings)
        return StepEffects(workers=tuple(workers), activities=tuple(activities), ended=self.agent.take_ended())

    def wake_ms(self, settings: LeaseSettings) -> int | None:
        """When the next step has something to do by time; saves of the lease file have their own."""
        wakes = (
            self.agent.expires_ms(),
            self.registry.wake_ms(settings.activity_stop_ms),
            None if self.renewal is None else self.renewal.wake_ms(),
        )
        return min((wake for wake in wakes if wake is not None), default=None)
