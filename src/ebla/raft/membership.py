"""Membership changes: one voter at a time, or through a joint phase in which two majorities must agree."""

import enum
from collections.abc import Iterable, Sequence

import msgspec

from ebla.model.errors import Refused
from ebla.raft.messages import NO_PEER, Entry, EntryKind, Membership, PeerId


class MemberChangeKind(enum.IntEnum):
    ADD_VOTER = 0
    """Also promotes a learner."""
    REMOVE = 1
    UPDATE = 2
    """Changes nothing here; the layer above sends data about a member through the log."""
    ADD_LEARNER = 3
    """Also demotes a voter."""


class MemberChange(msgspec.Struct, frozen=True, array_like=True):
    kind: MemberChangeKind
    peer: PeerId


class Transition(enum.IntEnum):
    """How the joint phase is entered and left."""

    AUTO = 0
    """A joint phase only for more than one change; the leader ends it."""
    JOINT_IMPLICIT = 1
    """Always joint; the leader ends it."""
    JOINT_EXPLICIT = 2
    """Always joint; another, empty change ends it."""


class MembershipChange(msgspec.Struct, frozen=True, array_like=True):
    """What an entry of kind MEMBER or MEMBERS carries. `context` belongs to the layer above."""

    changes: tuple[MemberChange, ...] = ()
    transition: Transition = Transition.AUTO
    context: bytes = b""

    @property
    def leaves_joint(self) -> bool:
        return not self.changes and self.transition is Transition.AUTO

    @property
    def enters_joint(self) -> bool:
        return self.transition is not Transition.AUTO or len(self.changes) > 1

    @property
    def auto_leave(self) -> bool:
        return self.transition is not Transition.JOINT_EXPLICIT


class MembershipRule(enum.Enum):
    """Which rule a refused change would have broken."""

    ALREADY_JOINT = "the membership is joint already"
    NOT_JOINT = "only a joint membership can be left"
    NO_VOTERS_TO_JOIN = "a membership without voters cannot become joint"
    LAST_VOTER = "the change would leave no voter"
    JOINT_IN_THE_WAY = "a single-step change cannot happen while the membership is joint"
    TOO_MANY_AT_ONCE = "more than one voter would change without a joint phase"


class MembershipRefused(Refused):
    """The change breaks a rule; the membership stays as it was."""

    def __init__(self, rule: MembershipRule) -> None:
        super().__init__(rule.value)
        self.rule = rule


LEAVE_JOINT = MembershipChange()

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(MembershipChange)


def encode_change(change: MembershipChange) -> bytes:
    """Leaving the joint phase is encoded as no bytes, so that a leader whose log is at its limit can still do it."""
    return b"" if change == LEAVE_JOINT else _encoder.encode(change)


def decode_change(data: bytes) -> MembershipChange:
    return _decoder.decode(data) if data else LEAVE_JOINT


def change_of(entry: Entry) -> MembershipChange:
    assert entry.kind is not EntryKind.COMMAND, "a command is not a membership change"
    return decode_change(entry.data)


def apply_change(membership: Membership, change: MembershipChange) -> Membership:
    """The next membership. Raises `MembershipRefused`."""
    if change.leaves_joint:
        return leave_joint(membership)
    if change.enters_joint:
        return enter_joint(membership, change.changes, auto_leave=change.auto_leave)
    return change_one_voter(membership, change.changes)


def enter_joint(membership: Membership, changes: Sequence[MemberChange], *, auto_leave: bool) -> Membership:
    if membership.is_joint:
        raise MembershipRefused(MembershipRule.ALREADY_JOINT)
    if not membership.voters:
        raise MembershipRefused(MembershipRule.NO_VOTERS_TO_JOIN)
    draft = _Draft(membership, outgoing=membership.voters)
    draft.run(changes)
    return draft.finish(auto_leave=auto_leave)


def leave_joint(membership: Membership) -> Membership:
    if not membership.is_joint:
        raise MembershipRefused(MembershipRule.NOT_JOINT)
    return _checked(
        Membership(voters=membership.voters, learners=_sorted({*membership.learners, *membership.learners_next}))
    )


def change_one_voter(membership: Membership, changes: Sequence[MemberChange]) -> Membership:
    """Old and new majority overlap as long as at most one voter is added or removed."""
    if membership.is_joint:
        raise MembershipRefused(MembershipRule.JOINT_IN_THE_WAY)
    draft = _Draft(membership, outgoing=())
    draft.run(changes)
    changed = set(membership.voters) ^ draft.voters
    if len(changed) > 1:
        raise MembershipRefused(MembershipRule.TOO_MANY_AT_ONCE)
    return draft.finish(auto_leave=False)


class _Draft:
    """A membership being changed. `outgoing` stays as it was when the change began."""

    def __init__(self, base: Membership, outgoing: tuple[PeerId, ...]) -> None:
        self.voters = set(base.voters)
        self.learners = set(base.learners)
        self.learners_next = set(base.learners_next)
        self.outgoing = outgoing

    def run(self, changes: Sequence[MemberChange]) -> None:
        for change in changes:
            if change.peer != NO_PEER:
                self._run_one(change)
        if not self.voters:
            raise MembershipRefused(MembershipRule.LAST_VOTER)

    def _run_one(self, change: MemberChange) -> None:
        if change.kind is MemberChangeKind.UPDATE:
            return
        self.voters.discard(change.peer)
        self.learners.discard(change.peer)
        self.learners_next.discard(change.peer)
        if change.kind is MemberChangeKind.ADD_VOTER:
            self.voters.add(change.peer)
        elif change.kind is MemberChangeKind.ADD_LEARNER:
            # A voter of the outgoing majority cannot be a learner yet: it would count and not count at once.
            staged = self.learners_next if change.peer in self.outgoing else self.learners
            staged.add(change.peer)

    def finish(self, *, auto_leave: bool) -> Membership:
        return _checked(
            Membership(
                voters=_sorted(self.voters),
                outgoing=self.outgoing,
                learners=_sorted(self.learners),
                learners_next=_sorted(self.learners_next),
                auto_leave=auto_leave,
            )
        )


def _sorted(peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    return tuple(sorted(peers))


def _checked(membership: Membership) -> Membership:
    """Invariants of every membership."""
    for learner in membership.learners:
        assert learner not in membership.voters, "a learner is not a voter"
        assert learner not in membership.outgoing, "a learner is not an outgoing voter"
    for staged in membership.learners_next:
        assert staged in membership.outgoing, "only an outgoing voter becomes a learner later"
        assert staged not in membership.voters, "a voter that becomes a learner is not in the new majority"
    if not membership.is_joint:
        assert not membership.learners_next, "only a joint phase has future learners"
        assert not membership.auto_leave, "only a joint phase can be left"
    return membership
