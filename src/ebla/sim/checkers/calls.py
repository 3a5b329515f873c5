"""What calls between processes promise, checked from outside every process.

Each request carries a unique token that its caller never sends twice. The server records each request it runs, the
caller records each answer and each error, and any contradiction fails the run at once:

    INV-WIRE-1  a request runs at most once
    INV-WIRE-2  an error with outcome "not applied" belongs to a request that never ran and never will
    INV-WIRE-3  an answer is the answer to its own request
    INV-WIRE-4  a call ends by its deadline
    INV-WIRE-5  work whose deadline has passed does not go on
"""

from collections.abc import Callable

from ebla.model.errors import EblaError, Outcome


class CallLedger:
    def __init__(self, fail: Callable[[str], None], late_ms_max: int) -> None:
        self._fail = fail
        self._late_ms_max = late_ms_max
        """How much the shared timer and a loop turn may add to a deadline."""
        self._runs: dict[int, int] = {}
        self._refused: dict[int, str] = {}
        self.answered = 0
        self.unknown = 0

    @property
    def refused(self) -> int:
        return len(self._refused)

    def ran(self, token: int) -> None:
        self._runs[token] = self._runs.get(token, 0) + 1
        if self._runs[token] > 1:
            self._fail(f"INV-WIRE-1: request {token} ran {self._runs[token]} times")
        if token in self._refused:
            self._fail(f"INV-WIRE-2: request {token} ran after its caller got {self._refused[token]}")

    def outlived(self, token: int) -> None:
        """The work ran to its end after its deadline."""
        self._fail(f"INV-WIRE-5: request {token} still ran after its deadline")

    def was_answered(self, token: int, answer: int) -> None:
        self.answered += 1
        if answer != token:
            self._fail(f"INV-WIRE-3: request {token} got the answer to {answer}")
        if token not in self._runs:
            self._fail(f"INV-WIRE-3: request {token} was answered and never ran")

    def failed(self, token: int, error: EblaError) -> None:
        if error.outcome is not Outcome.NOT_APPLIED:
            self.unknown += 1
            return
        self._refused[token] = f"{type(error).__name__}: {error}"
        if token in self._runs:
            self._fail(f"INV-WIRE-2: request {token} ran, but its caller got {self._refused[token]}")

    def ended(self, token: int, took_ms: float, deadline_ms: int) -> None:
        if took_ms > deadline_ms + self._late_ms_max:
            self._fail(f"INV-WIRE-4: request {token} took {took_ms:.0f} ms, its deadline was {deadline_ms}")
