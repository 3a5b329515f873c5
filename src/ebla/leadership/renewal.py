"""Lease renewal on the leader: one worker for each present member, under one lease id."""

from collections.abc import Sequence

from ebla.leadership.lease_worker import DropCall, LeaseLost, LeaseWorker, WorkerEffect
from ebla.leadership.messages import LeaseId
from ebla.leadership.quorum import Deadlines
from ebla.model.identity import HostId
from ebla.model.lease_settings import LeaseSettings


class LeaseRenewal:
    """Runs while this node leads, with a new lease id each time."""

    def __init__(self, lease_id: LeaseId, term: int) -> None:
        self.lease_id = lease_id
        self.term = term
        self.workers: dict[HostId, LeaseWorker] = {}
        self._next_numbers: dict[HostId, int] = {}
        """Of hosts that had a worker before: a number is never used for two leases."""

    def set_members(self, hosts: Sequence[HostId], now_ms: int) -> list[WorkerEffect]:
        """The newest set counts."""
        effects = [effect for host in list(self.workers) if host not in hosts for effect in self._stop(host, "removed")]
        for host in hosts:
            if host not in self.workers:
                self._start(host, now_ms)
        return effects

    def worker_failed(self, host: HostId, why: str, now_ms: int) -> list[WorkerEffect]:
        """It is replaced at once. What it had counted is unknown."""
        effects = self._stop(host, why)
        self._start(host, now_ms)
        return effects

    def activities_ended(self) -> None:
        for worker in self.workers.values():
            worker.activities_ended()

    def poll(self, now_ms: int, settings: LeaseSettings) -> list[WorkerEffect]:
        polled = (worker.poll(now_ms, settings) for worker in self.workers.values())
        return [effect for effects in polled for effect in effects]

    def wake_ms(self) -> int | None:
        wakes = [wake for worker in self.workers.values() if (wake := worker.wake_ms()) is not None]
        return min(wakes, default=None)

    def deadlines(self) -> Deadlines:
        return {host: worker.deadline_ms for host, worker in self.workers.items()}

    def _start(self, host: HostId, now_ms: int) -> None:
        """In the place of another worker it waits, too, until what that one's lease kept alive has ended."""
        number, waits_for_ends = self._next_numbers.get(host, 1), host in self._next_numbers
        self.workers[host] = LeaseWorker(host, number, now_ms, waits_for_ends=waits_for_ends)

    def _stop(self, host: HostId, why: str) -> list[WorkerEffect]:
        worker = self.workers.pop(host)
        self._next_numbers[host] = worker.grant_number + 1
        return [DropCall(host), LeaseLost(host, why)]
