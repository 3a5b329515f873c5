"""What the replicas of the example register say to each other and to clients, and what they keep on disk."""

import msgspec

from ebla.sim.checkers.models import RegisterCall


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """The last change a client asked for and what it was told: a repeated request gets the same answer again."""

    client: str
    number: int
    result: int


class Held(msgspec.Struct, frozen=True, array_like=True):
    """All that a replica keeps, durably. Small enough to be sent and stored whole."""

    promised: int = 0
    """The newest epoch this replica follows; it takes part in nothing older."""
    epoch: int = 0
    """Whose state this is: the primary of that epoch sent it."""
    sequence: int = 0
    value: int = 0
    answers: tuple[Answered, ...] = ()

    @property
    def age(self) -> tuple[int, int]:
        return (self.epoch, self.sequence)


class Ask(msgspec.Struct, frozen=True, tag="ask", array_like=True):
    client: str
    number: int
    call: RegisterCall


class Answer(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    client: str
    number: int
    result: int


class Elsewhere(msgspec.Struct, frozen=True, tag="elsewhere", array_like=True):
    """Not the primary; `primary` is a guess, or empty."""

    client: str
    number: int
    primary: str


class Prepare(msgspec.Struct, frozen=True, tag="prepare", array_like=True):
    """Asks for a promise to follow `epoch` and nothing older."""

    epoch: int


class Promise(msgspec.Struct, frozen=True, tag="promise", array_like=True):
    epoch: int
    held: Held


class Store(msgspec.Struct, frozen=True, tag="store", array_like=True):
    epoch: int
    held: Held


class Stored(msgspec.Struct, frozen=True, tag="stored", array_like=True):
    epoch: int
    sequence: int


class Confirm(msgspec.Struct, frozen=True, tag="confirm", array_like=True):
    """Do you still follow `epoch`? Also the primary's sign of life."""

    epoch: int
    round: int


class Confirmed(msgspec.Struct, frozen=True, tag="confirmed", array_like=True):
    epoch: int
    round: int


class Outdated(msgspec.Struct, frozen=True, tag="outdated", array_like=True):
    promised: int


Message = Ask | Answer | Elsewhere | Prepare | Promise | Store | Stored | Confirm | Confirmed | Outdated


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    message: Message
