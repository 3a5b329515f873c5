"""How far the commit of a write job has come with each copy, and what an answer changes. Pure.

A copy is what was staged for one stack. The table says what becomes of it:

    STAGED --sealed--> SEALED --adopted--> ADOPTED
    STAGED --damaged--> DAMAGED            SEALED, ADOPTED --outdated--> OUTDATED

The staging of a copy that is MISSING, DAMAGED or OUTDATED has to be opened again and filled from another copy.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ebla.broker.write_layout import ReplicaStack, StagedRuns, WriteRoute, has_all_rows
from ebla.model.errors import (
    Corruption,
    EblaError,
    Outcome,
    Overloaded,
    Refused,
    Stale,
    Unavailable,
    WriteFailed,
    WriteTimeout,
)
from ebla.model.identity import HostId
from ebla.model.token import TokenRange
from ebla.wire.transfer_messages import AdoptAnswer

HasRows = Callable[[ReplicaStack], bool]


class CopyState(enum.Enum):
    MISSING = "no staging is open for the stack"
    STAGED = "rows are staged"
    SEALED = "the node has checked the rows and made a layer of them"
    ADOPTED = "the rows are part of the stack"
    DAMAGED = "the staged rows are gone, or not what was sent"
    OUTDATED = "sealed for an incarnation of the stack that is gone"


class CopyAnswer(enum.Enum):
    SEALED = "sealed"
    DAMAGED = "the node does not have the rows as they were sent, as after a crash of its machine"
    ADOPTED = "adopted"
    REFUSED = "stale: the node knows a newer topology, or the stack is another incarnation"
    OUTDATED = "refused several times, though there is no newer topology: the stack is another incarnation"
    FAILED = "no answer, or an error that another attempt may not meet"


TRANSITIONS: Mapping[tuple[CopyState, CopyAnswer], CopyState] = MappingProxyType(
    {
        (CopyState.MISSING, CopyAnswer.FAILED): CopyState.MISSING,
        (CopyState.STAGED, CopyAnswer.SEALED): CopyState.SEALED,
        (CopyState.STAGED, CopyAnswer.DAMAGED): CopyState.DAMAGED,
        (CopyState.STAGED, CopyAnswer.FAILED): CopyState.STAGED,
        (CopyState.SEALED, CopyAnswer.ADOPTED): CopyState.ADOPTED,
        (CopyState.SEALED, CopyAnswer.REFUSED): CopyState.SEALED,
        (CopyState.SEALED, CopyAnswer.OUTDATED): CopyState.OUTDATED,
        (CopyState.SEALED, CopyAnswer.FAILED): CopyState.SEALED,
        (CopyState.ADOPTED, CopyAnswer.ADOPTED): CopyState.ADOPTED,
        (CopyState.ADOPTED, CopyAnswer.REFUSED): CopyState.ADOPTED,
        (CopyState.ADOPTED, CopyAnswer.OUTDATED): CopyState.OUTDATED,
        (CopyState.ADOPTED, CopyAnswer.FAILED): CopyState.ADOPTED,
        (CopyState.DAMAGED, CopyAnswer.FAILED): CopyState.DAMAGED,
        (CopyState.OUTDATED, CopyAnswer.FAILED): CopyState.OUTDATED,
    }
)
"""FAILED is also the answer of a node that could not open new staging. A route that goes again under a newer version is
adopted again by all its copies, also by those that have adopted: adopting twice changes nothing."""

SEALED_STATES = (CopyState.SEALED, CopyState.ADOPTED, CopyState.OUTDATED)
UNUSABLE_STATES = (CopyState.DAMAGED, CopyState.OUTDATED)


class RowVisibility(enum.Enum):
    """Whether rows of the job may be visible: some call of some run has tried to adopt them."""

    UNKNOWN = "whether rows of the job are visible is not known"
    NONE = "no row of the job is visible"
    SOME = "rows of the job may be visible already"


@dataclass(slots=True, kw_only=True)
class CopyProgress:
    state: CopyState
    error: EblaError | None = None
    """The last one, until the copy is adopted."""
    adopted: AdoptAnswer | None = None
    """Layers and rows over all attempts."""
    is_refused: bool = False
    """As stale, since the topology was last checked."""
    refusals: int = 0
    """How often it was refused as stale though there was no newer topology."""

    def note(self, answer: CopyAnswer, error: EblaError | None = None) -> None:
        self.state = TRANSITIONS[self.state, answer]
        self.error = error if answer is not CopyAnswer.ADOPTED else None
        self.is_refused |= answer is CopyAnswer.REFUSED


@dataclass(slots=True, kw_only=True)
class CommitProgress:
    """How far one call has come."""

    staged: StagedRuns
    copies: dict[ReplicaStack, CopyProgress] = field(default_factory=dict)
    met: dict[TokenRange, WriteRoute] = field(default_factory=dict)
    """Routes acknowledged at the level, as they were routed then. They stay acknowledged, like any write."""
    visibility: RowVisibility = RowVisibility.UNKNOWN
    incomplete: frozenset[ReplicaStack] = frozenset()
    """Stacks that lack rows of some route that they belong to. They count as copies of no route."""

    def of(self, stack: ReplicaStack) -> CopyProgress:
        known = self.copies.get(stack)
        if known is None:
            state = CopyState.STAGED if stack in self.staged.targets else CopyState.MISSING
            known = self.copies[stack] = CopyProgress(state=state)
        return known

    # ---- answers

    def note_sealed(self, answers: Iterable[ReplicaStack], failures: Mapping[ReplicaStack, EblaError]) -> None:
        for stack in answers:
            self.of(stack).note(CopyAnswer.SEALED, self.of(stack).error)
        for stack, error in failures.items():
            self.of(stack).note(CopyAnswer.DAMAGED if is_damage(error) else CopyAnswer.FAILED, error)

    def note_adopted(
        self, answers: Mapping[ReplicaStack, AdoptAnswer], failures: Mapping[ReplicaStack, EblaError]
    ) -> None:
        for stack, answer in answers.items():
            copy = self.of(stack)
            before = copy.adopted or AdoptAnswer(0, 0)
            copy.adopted = AdoptAnswer(before.layers + answer.layers, max(before.rows, answer.rows))
            copy.note(CopyAnswer.ADOPTED)
        for stack, error in failures.items():
            self.of(stack).note(CopyAnswer.REFUSED if isinstance(error, Stale) else CopyAnswer.FAILED, error)

    def note_not_opened(self, failures: Mapping[ReplicaStack, EblaError]) -> None:
        for stack, error in failures.items():
            self.of(stack).note(CopyAnswer.FAILED, error)

    def note_topology(self, *, is_newer: bool, refusals_max: int) -> None:
        """A stack that refuses under the newest topology is not the incarnation that the staging was opened for."""
        for copy in self.copies.values():
            if copy.is_refused:
                copy.is_refused = False
                copy.refusals = 0 if is_newer else copy.refusals + 1
                if copy.refusals >= refusals_max:
                    copy.note(CopyAnswer.OUTDATED, copy.error)

    # ---- questions

    def is_met(self, route: WriteRoute) -> bool:
        return route.range in self.met or any(one.covers(route.range) for one in self.met)

    def is_usable(self, stack: ReplicaStack) -> bool:
        return self.of(stack).state not in UNUSABLE_STATES

    def is_copy(self, route: WriteRoute, stack: ReplicaStack) -> bool:
        """Whether it has all rows of the route staged, and they can still be adopted."""
        return has_all_rows(route, stack, self.staged) and self.is_usable(stack)

    def has_nothing_to_adopt(self, stack: ReplicaStack) -> bool:
        """The job has no rows for it."""
        is_complete = stack in self.staged.targets and stack not in self.incomplete
        return is_complete and not self.staged.runs_of(stack)

    def can_be_sealed(self, stack: ReplicaStack) -> bool:
        return self.of(stack).state is CopyState.STAGED

    def is_sealed(self, stack: ReplicaStack) -> bool:
        return self.of(stack).state in SEALED_STATES

    def is_ready(self, stack: ReplicaStack) -> bool:
        return self.is_sealed(stack) or self.has_nothing_to_adopt(stack)

    def is_adopted(self, stack: ReplicaStack) -> bool:
        return self.of(stack).adopted is not None

    def stacks_to_adopt(self, routes: Iterable[WriteRoute]) -> list[ReplicaStack]:
        found = {
            stack: None
            for route in routes
            for stack in route.stacks
            if self.is_copy(route, stack) and stack not in self.incomplete and self.staged.runs_of(stack)
        }
        return sorted(found)

    def missing_stacks(self, routes: Iterable[WriteRoute]) -> list[ReplicaStack]:
        """Those whose staging has to be opened, or opened again."""
        found = {stack: None for route in routes for stack in route.stacks if not self.is_copy(route, stack)}
        return sorted(found)

    def behind(self) -> list[ReplicaStack]:
        """Of the routes that are met, the stacks that have not adopted yet."""
        stacks = {stack: None for route in self.met.values() for stack in route.stacks}
        return sorted(stack for stack in stacks if not self.is_adopted(stack) and not self.has_nothing_to_adopt(stack))

    def is_overloaded(self, routes: Iterable[WriteRoute]) -> bool:
        """A shard with as many layers as it may have adopts more once they are compacted: the commit waits for that."""
        return any(isinstance(self.of(stack).error, Overloaded) for route in routes for stack in route.stacks)

    def first_error(self, route: WriteRoute, has: HasRows) -> tuple[HostId, EblaError] | None:
        """Of a stack that the route lacks."""
        for stack in route.stacks:
            error = self.of(stack).error
            if error is not None and not has(stack):
                return stack.replica.host, error
        return None

    def totals(self) -> AdoptAnswer:
        adopted = [copy.adopted for copy in self.copies.values() if copy.adopted is not None]
        return AdoptAnswer(sum(one.layers for one in adopted), sum(one.rows for one in adopted))


def is_damage(error: EblaError) -> bool:
    """Of a seal: the staged rows are not there, or not as they were sent. Another replica may have them."""
    return isinstance(error, Corruption | Refused) and not isinstance(error, Stale)


def with_visibility(error: EblaError, job: str, visibility: RowVisibility) -> EblaError:
    """Says what became of the rows. If the class of the error says otherwise, it becomes one that does not."""
    rerun = f"run it again with the job id {job!r}: that is safe"
    advice = f"{error.advice}; {rerun}" if error.advice else rerun
    text = f"{error.message}; {visibility.value}"
    if visibility is not RowVisibility.NONE:
        kind = WriteTimeout if error.outcome is Outcome.UNKNOWN else WriteFailed
        return kind(text, advice=advice)
    return Unavailable(text, advice=advice) if error.outcome is Outcome.UNKNOWN else type(error)(text, advice=advice)


# ---- routes that are decided together


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """Routes that share stacks: one of a tablet, or all of a table on vnodes."""

    routes: tuple[WriteRoute, ...]

    def stacks(self) -> tuple[ReplicaStack, ...]:
        return tuple(sorted({stack: None for route in self.routes for stack in route.stacks}))


def group_routes(routes: Sequence[WriteRoute]) -> tuple[RouteGroup, ...]:
    """In the order of their first routes."""
    group_of: dict[ReplicaStack, int] = {}
    members: dict[int, list[WriteRoute]] = {}
    for number, route in enumerate(routes):
        joined = sorted({group_of[stack] for stack in route.stacks if stack in group_of})
        own = joined[0] if joined else number
        members.setdefault(own, []).append(route)
        for other in joined[1:]:
            members[own] += members.pop(other)
            for stack in [stack for stack, group in group_of.items() if group == other]:
                group_of[stack] = own
        for stack in route.stacks:
            group_of[stack] = own
    return tuple(RouteGroup(tuple(members[number])) for number in sorted(members))
