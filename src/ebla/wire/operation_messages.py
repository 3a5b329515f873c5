"""Messages of the verbs of operations."""

import uuid

import msgspec

from ebla.group0.operations import EndedOperation, Operation, OperationCode, UnfinishedOperation
from ebla.model.errors import Outcome
from ebla.model.identity import HostId


class OperateRequest(msgspec.Struct, frozen=True, array_like=True):
    """Run this operation. It may be sent again under its id, to the same node or another one."""

    operation: Operation
    forward: bool = False
    """Of an operator: any node sends it on to the leader. Otherwise only the leader runs it."""


class OperateAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """`code` is None if the operation is done. `ended` is None if there was nothing to do."""

    operation: uuid.UUID | None
    ended: EndedOperation | None = None
    code: OperationCode | None = None
    outcome: Outcome = Outcome.NOT_APPLIED
    message: str = ""
    advice: str = ""


class OperationsRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What runs, waits to be repaired, or has ended. Answered by the leader, if one is known."""

    repair: bool = False
    """Run the janitor first."""
    dismiss: uuid.UUID | None = None
    """Forget this quarantined operation first."""
    forward: bool = True


class OperationsAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    host: HostId
    """Who answers."""
    is_leader: bool
    now_ms: int
    unfinished: UnfinishedOperation | None = None
    step: str = ""
    """Of the run on that node."""
    janitor_in_ms: int | None = None
    """None: it is not armed on that node."""
    ended: tuple[EndedOperation, ...] = ()
    """The oldest first."""
    repaired: OperateAnswer | None = None
    """How the janitor's run ended, if it was requested; `operation` is the one that was unfinished."""
