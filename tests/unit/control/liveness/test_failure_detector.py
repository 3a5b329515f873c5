"""The failure detector's opinions, answer by answer. Times are milliseconds."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from ebla.control.liveness.failure_detector import FailureDetector, PeerLiveness, PeerState, RoundTrip
from ebla.model.identity import Address, HostId

SILENCE_MS = 3_000
PEER = Address("127.0.0.2", 7000)
OTHER = Address("127.0.0.3", 7000)
HOST = HostId(uuid.UUID(int=2))


def watching(*peers: Address) -> FailureDetector:
    detector = FailureDetector(SILENCE_MS)
    detector.watch(peers or (PEER,), 0)
    return detector


def answer(asked_ms: int, round_trip_us: int | None = 800, incarnation: int = 1, host: HostId = HOST) -> RoundTrip:
    return RoundTrip(peer=PEER, host=host, incarnation=incarnation, asked_ms=asked_ms, round_trip_us=round_trip_us)


def only(detector: FailureDetector) -> PeerLiveness:
    (opinion,) = detector.peers()
    return opinion


def test_a_peer_is_down_until_it_answers() -> None:
    detector = watching()
    assert only(detector) == PeerLiveness(peer=PEER, state=PeerState.DOWN, since_ms=0)
    assert detector.check(10_000) == []
    came_up = detector.answered(answer(10_100), 10_100)
    assert came_up == only(detector)
    assert came_up == PeerLiveness(
        peer=PEER,
        state=PeerState.UP,
        since_ms=10_100,
        host=HOST,
        incarnation=1,
        heard_ms=10_100,
        round_trip_us=800,
        deviation_us=400,
    )


def test_silence_turns_a_peer_down_once_exactly_at_the_bound() -> None:
    detector = watching()
    detector.answered(answer(1_000), 1_000)
    assert detector.check(3_999) == []
    (turned,) = detector.check(4_000)
    assert (turned.state, turned.since_ms, turned.heard_ms) == (PeerState.DOWN, 4_000, 1_000)
    assert detector.check(9_000) == []
    assert only(detector).since_ms == 4_000


def test_a_peer_that_returns_is_up_at_once_and_news() -> None:
    detector = watching()
    detector.answered(answer(1_000), 1_000)
    detector.check(5_000)
    assert detector.answered(answer(6_000), 6_000) is not None
    assert (only(detector).state, only(detector).since_ms) == (PeerState.UP, 6_000)


def test_a_restart_between_two_beats_shows_as_news_with_a_new_since() -> None:
    detector = watching()
    detector.answered(answer(1_000, incarnation=1), 1_000)
    assert detector.answered(answer(1_500, incarnation=1), 1_500) is None
    assert detector.answered(answer(2_000, incarnation=2), 2_000) is not None
    assert only(detector).since_ms == 2_000
    replaced = detector.answered(answer(2_500, incarnation=2, host=HostId(uuid.UUID(int=9))), 2_500)
    assert replaced is not None
    assert replaced.host == uuid.UUID(int=9)


def test_peers_that_leave_are_forgotten_and_those_that_stay_keep_their_opinion() -> None:
    detector = watching(PEER, OTHER)
    detector.answered(answer(1_000), 1_000)
    detector.watch([PEER], 2_000)
    assert only(detector).heard_ms == 1_000
    detector.watch([OTHER], 3_000)
    assert only(detector) == PeerLiveness(peer=OTHER, state=PeerState.DOWN, since_ms=3_000)
    assert detector.answered(answer(4_000), 4_000) is None
    assert only(detector).peer == OTHER


def test_round_trips_are_smoothed_and_converge() -> None:
    detector = watching()
    detector.answered(answer(0, 800), 0)
    detector.answered(answer(100, 8_800), 100)
    assert only(detector).round_trip_us == 1_800
    for now in range(200, 10_000, 100):
        detector.answered(answer(now, 8_800), now)
    last = only(detector)
    assert last.round_trip_us is not None
    assert 8_700 <= last.round_trip_us <= 8_800
    assert last.deviation_us < 400


def test_an_answer_without_a_measurement_counts_as_hearing_and_keeps_the_estimate() -> None:
    detector = watching()
    detector.answered(answer(100, None), 100)
    assert (only(detector).state, only(detector).round_trip_us) == (PeerState.UP, None)
    detector.answered(answer(200, 700), 200)
    detector.answered(answer(300, None), 300)
    assert (only(detector).heard_ms, only(detector).round_trip_us) == (300, 700)


def test_an_answer_to_an_old_question_proves_nothing_and_order_does_not_matter() -> None:
    """This process was stopped while answers lay in its socket; their sender may have died long ago."""
    detector = watching()
    assert detector.answered(answer(1_000), 4_000) is None
    assert only(detector).state is PeerState.DOWN
    detector.answered(answer(6_000), 6_100)
    detector.answered(answer(5_500), 6_200)
    assert only(detector).heard_ms == 6_000
    assert [turned.since_ms for turned in detector.check(9_000)] == [9_000]


@given(st.lists(st.tuples(st.integers(0, 2_000), st.booleans()), max_size=60))
def test_the_standing_is_exactly_whether_an_answer_came_within_the_bound(steps: list[tuple[int, bool]]) -> None:
    """INV-LIVE-1, INV-LIVE-2 at every look, whatever the answers' times."""
    detector, now, heard = watching(), 0, None
    for pause, answers in steps:
        now += pause
        if answers:
            detector.answered(answer(now), now)
            heard = now
        detector.check(now)
        expected = heard is not None and now - heard < SILENCE_MS
        assert (only(detector).state is PeerState.UP) == expected
