"""What the replicas of the example register say to each other and to clients, and what they keep on disk."""

import msgspec

from ebla.sim.checkers.models import RegisterCall


class LastAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The last change a client asked for and what it was told: a repeated request gets the same answer again."""

    client: str
    number: int
    result: int


class RegisterState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that a replica keeps, durably. Small enough to be sent and stored whole."""

    promised: int = 0
    """The newest epoch this replica follows; it takes part in nothing older."""
    epoch: int = 0
    """Whose state this is: the primary of that epoch sent it."""
    sequence: int = 0
    value: int = 0
    answers: tuple[LastAnswer, ...] = ()

    @property
    def age(self) -> tuple[int, int]:
        return (self.epoch, self.sequence)


class RegisterRequest(msgspec.Struct, frozen=True, tag="ask", array_like=True):
    client: str
    number: int
    call: RegisterCall


class RegisterAnswer(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    client: str
    number: int
    result: int


class NotPrimary(msgspec.Struct, frozen=True, tag="elsewhere", array_like=True):
    """Not the primary; `primary` is a guess, or empty."""

    client: str
    number: int
    primary: str


class PrepareEpoch(msgspec.Struct, frozen=True, tag="prepare", array_like=True):
    """Asks for a promise to follow `epoch` and nothing older."""

    epoch: int


class EpochPromise(msgspec.Struct, frozen=True, tag="promise", array_like=True):
    epoch: int
    held: RegisterState


class StoreState(msgspec.Struct, frozen=True, tag="store", array_like=True):
    epoch: int
    held: RegisterState


class StateStored(msgspec.Struct, frozen=True, tag="stored", array_like=True):
    epoch: int
    sequence: int


class ConfirmEpoch(msgspec.Struct, frozen=True, tag="confirm", array_like=True):
    """Do you still follow `epoch`? Also the primary's sign of life."""

    epoch: int
    round: int


class EpochConfirmed(msgspec.Struct, frozen=True, tag="confirmed", array_like=True):
    epoch: int
    round: int


class EpochOutdated(msgspec.Struct, frozen=True, tag="outdated", array_like=True):
    promised: int


RegisterMessage = (
    RegisterRequest
    | RegisterAnswer
    | NotPrimary
    | PrepareEpoch
    | EpochPromise
    | StoreState
    | StateStored
    | ConfirmEpoch
    | EpochConfirmed
    | EpochOutdated
)


class RegisterEnvelope(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    message: RegisterMessage
