"""What an operation waits for: one cause, its age, and one log line per change."""

import uuid

from ebla.control.coordinator.wait_causes import WaitCauses, WaitKind
from ebla.model.identity import RequestId

REQUEST = RequestId(uuid.UUID(int=1))


class Clock:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def test_a_countdown_does_not_make_another_cause() -> None:
    clock, logged = Clock(), []
    causes = WaitCauses(clock, lambda event, fields: logged.append((event, fields["reason"])))
    causes.set(REQUEST, WaitKind.NO_REPLY, " 10.0.0.4", countdown="; rolled back in 9 s")
    clock.now_ms += 2_000
    causes.set(REQUEST, WaitKind.NO_REPLY, " 10.0.0.4", countdown="; rolled back in 7 s")
    found = causes.of(REQUEST)
    assert found is not None
    assert (found.text, found.since_ms) == ("no reply from 10.0.0.4; rolled back in 7 s", 2_000)
    assert logged == [("topology.waits", "no reply from 10.0.0.4")]


def test_another_cause_starts_again_and_is_logged() -> None:
    clock, logged = Clock(), []
    causes = WaitCauses(clock, lambda _event, fields: logged.append(fields["reason"]))
    causes.set(REQUEST, WaitKind.QUEUED, ": position 1")
    clock.now_ms += 500
    causes.set(REQUEST, WaitKind.BARRIER, " 7: 10.0.0.3: shard-1 runs requests of version 6")
    found = causes.of(REQUEST)
    assert found is not None
    assert found.since_ms == 0
    assert len(logged) == 2


def test_causes_of_ended_requests_are_forgotten() -> None:
    causes = WaitCauses(Clock(), lambda _event, _fields: None)
    causes.set(REQUEST, WaitKind.QUEUED, ": position 1")
    causes.set(None, WaitKind.NO_MAJORITY, ": missing 10.0.0.2")
    causes.keep_only(())
    assert causes.of(REQUEST) is None
    assert causes.of(None) is not None
