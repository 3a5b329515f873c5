"""The pure core of the example register, step by step: cases that a random storm seldom reaches."""

from ebla.sim.chance import SimChance
from ebla.sim.checkers.models import Add, Read, Write
from ebla.sim.example.messages import (
    Answer,
    Answered,
    Ask,
    Confirm,
    Confirmed,
    Elsewhere,
    Held,
    Message,
    Outdated,
    Prepare,
    Promise,
    Store,
    Stored,
)
from ebla.sim.example.register import ELECTION_MS_HIGH, Backup, Primary, Replica

NAMES = ("a", "b", "c")


def replica(name: str = "a", held: Held | None = None) -> Replica:
    return Replica(name, NAMES, held or Held(), SimChance(name))


def tell(subject: Replica, sender: str, message: Message, now_ms: int = 0) -> list[tuple[str, Message]]:
    subject.receive(sender, message, now_ms)
    return subject.take().sends


def campaigning(held: Held | None = None) -> Replica:
    subject = replica(held=held)
    subject.tick(0)
    subject.tick(ELECTION_MS_HIGH)
    return subject


def leading(held: Held | None = None) -> tuple[Replica, int]:
    subject = campaigning(held)
    epoch = subject.held.promised
    subject.take()
    tell(subject, "b", Promise(epoch, Held()))
    assert isinstance(subject.role, Primary)
    return subject, epoch


def is_primary(subject: Replica) -> bool:
    return isinstance(subject.role, Primary)


def test_a_silent_primary_is_replaced_under_an_epoch_of_ones_own() -> None:
    epochs = []
    for name in NAMES:
        subject = replica(name, Held(promised=7))
        subject.tick(0)
        assert subject.take().sends == []
        subject.tick(ELECTION_MS_HIGH)
        effects = subject.take()
        assert effects.held is not None, "the promise to oneself is durable before anybody is asked"
        epochs.append(effects.held.promised)
        assert effects.sends == [(peer, Prepare(epochs[-1])) for peer in NAMES if peer != name]
    assert len(set(epochs)) == 3
    assert min(epochs) > 7


def test_a_promise_is_held_before_it_is_given_and_binds() -> None:
    subject = replica()
    subject.receive("b", Prepare(4), 0)
    effects = subject.take()
    assert effects.held == Held(promised=4)
    assert effects.sends == [("b", Promise(4, Held(promised=4)))]
    assert tell(subject, "b", Prepare(4)) == [("b", Promise(4, Held(promised=4)))], "asked again, said again"
    assert tell(subject, "c", Prepare(3)) == [("c", Outdated(4))]
    assert tell(subject, "c", Store(3, Held(3, 3, 1, 9))) == [("c", Outdated(4))]
    assert tell(subject, "c", Confirm(3, 1)) == [("c", Outdated(4))]
    assert subject.held == Held(promised=4)


def test_the_newest_state_is_by_epoch_first() -> None:
    """A primary that was cut off may have counted far; nobody answered for what it counted."""
    own = Held(promised=0, epoch=0, sequence=90, value=90)
    subject = campaigning(own)
    epoch = subject.held.promised
    subject.take()
    sent = tell(subject, "b", Promise(epoch, Held(promised=epoch, epoch=1, sequence=5, value=5)))
    expected = Held(promised=epoch, epoch=epoch, sequence=6, value=5)
    assert subject.held == expected
    assert sent == [("b", Store(epoch, expected)), ("c", Store(epoch, expected))]


def test_late_promises_change_nothing() -> None:
    subject, epoch = leading()
    held = subject.held
    assert tell(subject, "c", Promise(epoch, Held(epoch=2, sequence=99, value=99))) == []
    assert tell(subject, "c", Promise(epoch + 3, Held())) == []
    assert subject.held == held


def test_a_change_is_answered_once_a_majority_has_it() -> None:
    subject, epoch = leading()
    sent = tell(subject, "k", Ask("k", 1, Write(5)))
    assert sent == [(peer, Store(epoch, subject.held)) for peer in ("b", "c")]
    assert subject.held.value == 5
    assert tell(subject, "b", Stored(epoch, subject.held.sequence - 1)) == []
    assert tell(subject, "b", Stored(epoch - 1, subject.held.sequence)) == []
    assert tell(subject, "b", Stored(epoch, subject.held.sequence)) == [("k", Answer("k", 1, 5))]
    assert tell(subject, "c", Stored(epoch, subject.held.sequence)) == [], "once"


def test_a_repeated_change_is_answered_again_and_not_made_again() -> None:
    subject, epoch = leading()
    tell(subject, "k", Ask("k", 1, Add(5)))
    sequence = subject.held.sequence
    assert tell(subject, "k", Ask("k", 1, Add(5))) == [], "not before a majority has it"
    assert tell(subject, "b", Stored(epoch, sequence)) == [("k", Answer("k", 1, 5))]
    tell(subject, "k", Ask("k", 1, Add(5)))
    assert tell(subject, "b", Stored(epoch, sequence)) == [("k", Answer("k", 1, 5))]
    tell(subject, "k", Ask("k", 2, Add(5)))
    tell(subject, "k", Ask("k", 1, Add(5)))
    assert (subject.held.value, subject.held.sequence) == (10, sequence + 1)
    assert subject.held.answers == (Answered("k", 2, 10),)


def test_a_read_needs_its_own_confirmation_and_the_state_it_saw() -> None:
    subject, epoch = leading()
    tell(subject, "k", Ask("k", 1, Write(5)))
    sent = tell(subject, "m", Ask("m", 1, Read()))
    assert sent == [("b", Confirm(epoch, 1)), ("c", Confirm(epoch, 1))]
    assert tell(subject, "b", Confirmed(epoch, 0)) == []
    assert tell(subject, "b", Confirmed(epoch, 1)) == [], "the value it saw is on one replica only"
    answers = tell(subject, "b", Stored(epoch, subject.held.sequence))
    assert answers == [("k", Answer("k", 1, 5)), ("m", Answer("m", 1, 5))]


def test_a_backup_takes_newer_states_only_and_says_what_it_has() -> None:
    subject = replica()
    newer = Held(promised=4, epoch=4, sequence=8, value=8)
    older = Held(promised=4, epoch=4, sequence=7, value=7)
    assert tell(subject, "b", Store(4, newer)) == [("b", Stored(4, 8))]
    assert tell(subject, "b", Store(4, older)) == [("b", Stored(4, 8))], "a late frame: what is held contains it"
    assert subject.held == newer
    assert subject.role == Backup(primary="b")
    assert tell(subject, "k", Ask("k", 1, Read())) == [("k", Elsewhere("k", 1, "b"))]


def test_a_replaced_primary_steps_down() -> None:
    subject, epoch = leading()
    assert tell(subject, "b", Outdated(epoch)) == []
    assert is_primary(subject)
    tell(subject, "b", Outdated(epoch + 2))
    assert not is_primary(subject)
    subject.tick(10 * ELECTION_MS_HIGH)
    held = subject.take().held
    assert held is not None
    assert held.promised > epoch + 2
    assert tell(subject, "b", Confirm(held.promised + 1, 5)) == [("b", Confirmed(held.promised + 1, 5))]
    assert subject.role == Backup(primary="b")


def test_a_primary_repeats_what_may_be_lost() -> None:
    subject, epoch = leading()
    subject.take()
    tell(subject, "b", Stored(epoch, subject.held.sequence))
    subject.tick(10_000)
    assert subject.take().sends == [
        ("b", Confirm(epoch, 0)),
        ("c", Store(epoch, subject.held)),
        ("c", Confirm(epoch, 0)),
    ]
    subject.tick(10_001)
    assert subject.take().sends == []
