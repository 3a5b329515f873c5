"""How long a task retries a node that has no room for another stream."""

import uuid
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ebla.model.errors import Overloaded
from ebla.model.identity import AttemptId
from ebla.model.transfers import ROWS_NAME, StagedFile, TransferTarget
from ebla.source.write import run_staging
from ebla.source.write.run_staging import FlightSink
from ebla.transfers.flight_streams import FlightClientLimits

ATTEMPT = AttemptId(uuid.UUID(int=1))
STAGED = StagedFile(name=ROWS_NAME, size_bytes=3, checksum=7)
LIMITS = FlightClientLimits(overload_s=6.0, overload_pause_s=2.0)
ATTEMPT_S = 3600.0


@dataclass(slots=True)
class FullNode:
    """An upload takes an hour, and ends without room for it. `time` in the place of the module."""

    attempts_refused: int
    now_s: float = 0.0
    attempts: int = 0
    pauses: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s

    def upload(self, *_: Any) -> "FullNode":
        return self

    def __enter__(self) -> "FullNode":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, _record: bytes) -> None:
        pass

    def finish(self) -> StagedFile:
        self.attempts += 1
        self.now_s += ATTEMPT_S
        if self.attempts <= self.attempts_refused:
            raise Overloaded("16 streams are open")
        return STAGED


@pytest.mark.parametrize(("refused", "is_staged"), [(0, True), (3, True), (4, False)])
def test_only_pauses_count_against_the_patience_with_a_full_node(
    refused: int, is_staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FullNode(refused)
    monkeypatch.setattr(run_staging, "time", node)
    monkeypatch.setattr(run_staging, "RowUpload", node.upload)
    sink = FlightSink(b"", LIMITS)
    target = cast("TransferTarget", None)
    if is_staged:
        assert sink.put_records(target, ATTEMPT, [b"row"]) == STAGED
    else:
        with pytest.raises(Overloaded, match="16 streams"):
            sink.put_records(target, ATTEMPT, [b"row"])
    assert node.pauses == [LIMITS.overload_pause_s] * min(refused, 3)
