"""The pure core of the example register, step by step: cases that a random storm rarely reaches."""

from ebla.sim.checkers.models import RegisterAdd, RegisterRead, RegisterWrite
from ebla.sim.register import (
    ELECTION_MS_HIGH,
    BackupRole,
    ConfirmEpoch,
    EpochConfirmed,
    EpochOutdated,
    EpochPromise,
    LastAnswer,
    NotPrimary,
    PrepareEpoch,
    PrimaryRole,
    RegisterAnswer,
    RegisterMessage,
    RegisterReplica,
    RegisterRequest,
    RegisterState,
    StateStored,
    StoreState,
)
from ebla.sim.rng import SimRng

NAMES = ("a", "b", "c")


def replica(name: str = "a", held: RegisterState | None = None) -> RegisterReplica:
    return RegisterReplica(name, NAMES, held or RegisterState(), SimRng(name))


def step(
    subject: RegisterReplica, sender: str, message: RegisterMessage, now_ms: int = 0
) -> list[tuple[str, RegisterMessage]]:
    subject.receive(sender, message, now_ms)
    return subject.take().sends


def campaigning(held: RegisterState | None = None) -> RegisterReplica:
    subject = replica(held=held)
    subject.tick(0)
    subject.tick(ELECTION_MS_HIGH)
    return subject


def leading(held: RegisterState | None = None) -> tuple[RegisterReplica, int]:
    subject = campaigning(held)
    epoch = subject.held.promised
    subject.take()
    step(subject, "b", EpochPromise(epoch, RegisterState()))
    assert isinstance(subject.role, PrimaryRole)
    return subject, epoch


def is_primary(subject: RegisterReplica) -> bool:
    return isinstance(subject.role, PrimaryRole)


def test_a_silent_primary_is_replaced_under_an_epoch_of_ones_own() -> None:
    epochs = []
    for name in NAMES:
        subject = replica(name, RegisterState(promised=7))
        subject.tick(0)
        assert subject.take().sends == []
        subject.tick(ELECTION_MS_HIGH)
        effects = subject.take()
        assert effects.held is not None, "the promise to oneself is durable before anybody is asked"
        epochs.append(effects.held.promised)
        assert effects.sends == [(peer, PrepareEpoch(epochs[-1])) for peer in NAMES if peer != name]
    assert len(set(epochs)) == 3
    assert min(epochs) > 7


def test_a_promise_is_held_before_it_is_given_and_binds() -> None:
    subject = replica()
    subject.receive("b", PrepareEpoch(4), 0)
    effects = subject.take()
    assert effects.held == RegisterState(promised=4)
    assert effects.sends == [("b", EpochPromise(4, RegisterState(promised=4)))]
    assert step(subject, "b", PrepareEpoch(4)) == [("b", EpochPromise(4, RegisterState(promised=4)))], (
        "asked again, said again"
    )
    assert step(subject, "c", PrepareEpoch(3)) == [("c", EpochOutdated(4))]
    assert step(subject, "c", StoreState(3, RegisterState(promised=3, epoch=3, sequence=1, value=9))) == [
        ("c", EpochOutdated(4))
    ]
    assert step(subject, "c", ConfirmEpoch(3, 1)) == [("c", EpochOutdated(4))]
    assert subject.held == RegisterState(promised=4)


def test_the_newest_state_is_by_epoch_first() -> None:
    """A primary that was cut off may have a high sequence, but its changes were never answered."""
    own = RegisterState(promised=0, epoch=0, sequence=90, value=90)
    subject = campaigning(own)
    epoch = subject.held.promised
    subject.take()
    sent = step(subject, "b", EpochPromise(epoch, RegisterState(promised=epoch, epoch=1, sequence=5, value=5)))
    expected = RegisterState(promised=epoch, epoch=epoch, sequence=6, value=5)
    assert subject.held == expected
    assert sent == [("b", StoreState(epoch, expected)), ("c", StoreState(epoch, expected))]


def test_late_promises_change_nothing() -> None:
    subject, epoch = leading()
    held = subject.held
    assert step(subject, "c", EpochPromise(epoch, RegisterState(epoch=2, sequence=99, value=99))) == []
    assert step(subject, "c", EpochPromise(epoch + 3, RegisterState())) == []
    assert subject.held == held


def test_a_change_is_answered_once_a_majority_has_it() -> None:
    subject, epoch = leading()
    sent = step(subject, "k", RegisterRequest("k", 1, RegisterWrite(5)))
    assert sent == [(peer, StoreState(epoch, subject.held)) for peer in ("b", "c")]
    assert subject.held.value == 5
    assert step(subject, "b", StateStored(epoch, subject.held.sequence - 1)) == []
    assert step(subject, "b", StateStored(epoch - 1, subject.held.sequence)) == []
    assert step(subject, "b", StateStored(epoch, subject.held.sequence)) == [("k", RegisterAnswer("k", 1, 5))]
    assert step(subject, "c", StateStored(epoch, subject.held.sequence)) == [], "once"


def test_a_repeated_change_is_answered_again_and_not_made_again() -> None:
    subject, epoch = leading()
    step(subject, "k", RegisterRequest("k", 1, RegisterAdd(5)))
    sequence = subject.held.sequence
    assert step(subject, "k", RegisterRequest("k", 1, RegisterAdd(5))) == [], "not before a majority has it"
    assert step(subject, "b", StateStored(epoch, sequence)) == [("k", RegisterAnswer("k", 1, 5))]
    step(subject, "k", RegisterRequest("k", 1, RegisterAdd(5)))
    assert step(subject, "b", StateStored(epoch, sequence)) == [("k", RegisterAnswer("k", 1, 5))]
    step(subject, "k", RegisterRequest("k", 2, RegisterAdd(5)))
    step(subject, "k", RegisterRequest("k", 1, RegisterAdd(5)))
    assert (subject.held.value, subject.held.sequence) == (10, sequence + 1)
    assert subject.held.answers == (LastAnswer("k", 2, 10),)


def test_a_read_needs_its_own_confirmation_and_the_state_it_saw() -> None:
    subject, epoch = leading()
    step(subject, "k", RegisterRequest("k", 1, RegisterWrite(5)))
    sent = step(subject, "m", RegisterRequest("m", 1, RegisterRead()))
    assert sent == [("b", ConfirmEpoch(epoch, 1)), ("c", ConfirmEpoch(epoch, 1))]
    assert step(subject, "b", EpochConfirmed(epoch, 0)) == []
    assert step(subject, "b", EpochConfirmed(epoch, 1)) == [], "the value it saw is on one replica only"
    answers = step(subject, "b", StateStored(epoch, subject.held.sequence))
    assert answers == [("k", RegisterAnswer("k", 1, 5)), ("m", RegisterAnswer("m", 1, 5))]


def test_a_backup_takes_newer_states_only_and_says_what_it_has() -> None:
    subject = replica()
    newer = RegisterState(promised=4, epoch=4, sequence=8, value=8)
    older = RegisterState(promised=4, epoch=4, sequence=7, value=7)
    assert step(subject, "b", StoreState(4, newer)) == [("b", StateStored(4, 8))]
    assert step(subject, "b", StoreState(4, older)) == [("b", StateStored(4, 8))], (
        "a late frame: what is held contains it"
    )
    assert subject.held == newer
    assert subject.role == BackupRole(primary="b")
    assert step(subject, "k", RegisterRequest("k", 1, RegisterRead())) == [("k", NotPrimary("k", 1, "b"))]


def test_a_replaced_primary_steps_down() -> None:
    subject, epoch = leading()
    assert step(subject, "b", EpochOutdated(epoch)) == []
    assert is_primary(subject)
    step(subject, "b", EpochOutdated(epoch + 2))
    assert not is_primary(subject)
    subject.tick(10 * ELECTION_MS_HIGH)
    held = subject.take().held
    assert held is not None
    assert held.promised > epoch + 2
    assert step(subject, "b", ConfirmEpoch(held.promised + 1, 5)) == [("b", EpochConfirmed(held.promised + 1, 5))]
    assert subject.role == BackupRole(primary="b")


def test_a_primary_repeats_what_may_be_lost() -> None:
    subject, epoch = leading()
    subject.take()
    step(subject, "b", StateStored(epoch, subject.held.sequence))
    subject.tick(10_000)
    assert subject.take().sends == [
        ("b", ConfirmEpoch(epoch, 0)),
        ("c", StoreState(epoch, subject.held)),
        ("c", ConfirmEpoch(epoch, 0)),
    ]
    subject.tick(10_001)
    assert subject.take().sends == []
