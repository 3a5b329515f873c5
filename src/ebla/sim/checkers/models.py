"""What a correct object does, one operation at a time: the models of the linearizability checker."""

from collections.abc import Hashable
from typing import Protocol, TypeVar, assert_never

import msgspec

from ebla.sim.checkers.history import ClientOperation

S = TypeVar("S", bound=Hashable)


class SequentialModel(Protocol[S]):
    """States are immutable and hashable: the checker remembers which it has seen."""

    def initial(self) -> S: ...

    def step(self, state: S, operation: ClientOperation) -> tuple[bool, S]:
        """Whether the operation can happen in this state with its result, and the state after it.

        The result of an operation without `returned` is unknown: any result fits.
        """
        ...

    def changes(self, operation: ClientOperation) -> bool:
        """Whether it can change the state. An operation that cannot, and whose outcome is unknown, is ignored."""
        ...


class RegisterRead(msgspec.Struct, frozen=True, tag="read", array_like=True):
    """Result: the value."""


class RegisterWrite(msgspec.Struct, frozen=True, tag="write", array_like=True):
    """Result: the value written."""

    value: int


class RegisterAdd(msgspec.Struct, frozen=True, tag="add", array_like=True):
    """Result: the value after it."""

    amount: int


RegisterCall = RegisterRead | RegisterWrite | RegisterAdd


def result_of(call: RegisterCall, value: int) -> int:
    """The answer of a register that holds `value`. For a change it is also the new value."""
    match call:
        case RegisterRead():
            return value
        case RegisterWrite(written):
            return written
        case RegisterAdd(amount):
            return value + amount
        case _:
            assert_never(call)


class RegisterModel:
    """One number that can be read, written and added to. A counter is a register that is only added to."""

    def initial(self) -> int:
        return 0

    def step(self, state: int, operation: ClientOperation) -> tuple[bool, int]:
        after = result_of(operation.call, state)
        return operation.returned is None or operation.result == after, after

    def changes(self, operation: ClientOperation) -> bool:
        return not isinstance(operation.call, RegisterRead)
