"""What was sealed is adopted, as a write: by all replicas that one version of the topology names, under that version.

The version is held from the look at it until the last of the replicas has answered or its time is over, whatever
becomes of who asked. Without that: a commit is routed by a version; a replica joins under the next one, is filled from
another that has not adopted yet, and takes over; what is adopted after that is on too few of those that are read.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ebla.broker.broker_deps import BrokerDeps
from ebla.broker.write_layout import ReplicaStack, WriteRoute
from ebla.model.errors import EblaError, InternalError, Stale
from ebla.model.identity import TableId, TopologyVersion
from ebla.model.transfers import TransferTarget
from ebla.wire.transfer_messages import AdoptAnswer, AdoptRequest
from ebla.wire.verbs import ADOPT

ANY_FENCE = TopologyVersion(0)
"""What is brought is a write: it needs no fence, and is fenced itself."""


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """Routes that share places, and so are decided together: a tablet's one, or all of a table on vnodes."""

    routes: tuple[WriteRoute, ...]

    def places(self) -> tuple[ReplicaStack, ...]:
        found = dict.fromkeys(place for route in self.routes for copy in route.copies for place in copy.places)
        return tuple(sorted(found))


def group_routes(routes: Sequence[WriteRoute]) -> tuple[RouteGroup, ...]:
    """In the order of their first routes."""
    by_place: dict[ReplicaStack, int] = {}
    members: dict[int, list[WriteRoute]] = {}
    for number, route in enumerate(routes):
        places = [place for copy in route.copies for place in copy.places]
        joined = sorted({by_place[place] for place in places if place in by_place})
        own = joined[0] if joined else number
        members.setdefault(own, []).append(route)
        for other in joined[1:]:
            members[own] += members.pop(other)
            for place in [place for place, group in by_place.items() if group == other]:
                by_place[place] = own
        for place in places:
            by_place[place] = own
    return tuple(RouteGroup(tuple(members[number])) for number in sorted(members))


@dataclass(slots=True)
class AdoptResults:
    """What one attempt came to, by place."""

    version: TopologyVersion
    found: dict[ReplicaStack, AdoptAnswer] = field(default_factory=dict)
    failures: dict[ReplicaStack, EblaError] = field(default_factory=dict)

    @property
    def was_stale(self) -> bool:
        return any(isinstance(error, Stale) for error in self.failures.values())


class AdoptCalls:
    def __init__(self, parts: BrokerDeps) -> None:
        self._parts = parts

    async def attempt(
        self, table: TableId, targets: Mapping[ReplicaStack, TransferTarget], version: TopologyVersion
    ) -> AdoptResults:
        """To be called in the step in which the version was looked at. INV-BULKW-1: all of these at this version."""
        adopted = AdoptResults(version)
        asked = [
            self._send(
                place,
                AdoptRequest(
                    session=target.session,
                    transfer=target.transfer,
                    table=table,
                    range=target.range,
                    fence=ANY_FENCE,
                    version=version,
                ),
            )
            for place, target in targets.items()
        ]
        for place, answer in zip(targets, asked):
            try:
                adopted.found[place] = await asyncio.shield(answer)
            except EblaError as error:
                adopted.failures[place] = error
        return adopted

    def _send(self, place: ReplicaStack, request: AdoptRequest) -> "asyncio.Future[AdoptAnswer]":
        """The version is held for it before this returns."""
        parts = self._parts
        answer: asyncio.Future[AdoptAnswer] = asyncio.get_running_loop().create_future()
        assert request.version is not None
        parts.view.hold(request.version)
        work = self._ask(place, request, answer)
        try:
            parts.tasks.create_task(work)
        except RuntimeError:  # the group takes no more tasks
            work.close()
            parts.view.release(request.version)
            answer.set_exception(InternalError("this shard is stopping"))
        return answer

    async def _ask(self, place: ReplicaStack, request: AdoptRequest, answer: "asyncio.Future[AdoptAnswer]") -> None:
        """In the shard's group: it must not raise, and is not ended with who waits for it."""
        parts = self._parts
        assert request.version is not None
        try:
            found = await parts.doors.shard(place.replica, ADOPT, request, parts.limits.adopt_ms)
        except EblaError as error:
            answer.set_exception(error)
            answer.exception()  # nobody may be left to look at it
        else:
            answer.set_result(found)
        finally:
            parts.view.release(request.version)


def total_layers_and_rows(answers: Iterable[AdoptAnswer]) -> tuple[int, int]:
    layers = rows = 0
    for answer in answers:
        layers += answer.layers
        rows += answer.rows
    return layers, rows
