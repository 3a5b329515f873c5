"""The new node's side of the join handshake: what it does after each event. Pure.

It sends its request to its contacts in turn until one of them answers `wait`. Then the coordinator decides, and sends
its response. Meanwhile the node queries members, and so learns of a rejection that did not reach it.

Every response names an attempt. An attempt id is drawn at each start of the process and becomes durable with the
acceptance. Say a node sends a request, dies, and starts again: the coordinator may still accept the first attempt, but
the process that asked for it is gone. The new process answers `stale_attempt`, and the coordinator takes the node out
again.

INV-NODE-21: no Raft server runs before the node is accepted. Its host is a learner of group 0 from the moment it is
accepted, and its log starts empty exactly once: at its acceptance, which is durable first.
"""

import enum
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ebla.group0.join_messages import JoinNodeQueryAnswer, JoinNodeResponse
from ebla.group0.members import Member
from ebla.model.advice import RESET_NODE_ADVICE
from ebla.model.errors import EblaError, HostLeft, InvalidRequest, Refused
from ebla.model.identity import Address, HistoryId
from ebla.topology.states import NodeState, RequestOutcome

BACKOFF_FIRST_MS = 500
BACKOFF_MAX_MS = 10_000


class NotAdmitted(Refused):
    """The cluster does not admit this host, or has ended its join: its process must end."""


class JoinPhase(enum.StrEnum):
    REQUESTING = "requesting"
    """No member has answered `wait` yet."""
    WAITING = "waiting"
    """For the coordinator's response."""
    ACCEPTED = "accepted"
    REJECTED = "rejected"


class ResponseDecision(enum.StrEnum):
    STALE = "stale"
    """Of another attempt."""
    HELD = "held"
    """It is processed once a member has answered `wait`: before that, the node does not know that its request was
    committed, and a refusal may still follow."""
    PROCESSED = "processed"
    """Or a repeat of that request."""


@dataclass(frozen=True, slots=True)
class SendRequest:
    contact: Address
    after_ms: int


@dataclass(frozen=True, slots=True)
class JoinWait:
    """For people: how far the join is."""

    state: NodeState | None = None
    """Of the node's row."""
    position: int = 0
    """In the queue; 0: it runs, or this is not known."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Acceptance:
    history: HistoryId
    members: tuple[Member, ...]


class JoinHandshake:
    """Of one attempt."""

    def __init__(self, attempt: uuid.UUID | None, *, is_accepted: bool = False) -> None:
        """`is_accepted`: by an earlier process of the node. `attempt` is None for the node that created the cluster."""
        self.attempt = attempt
        self.phase = JoinPhase.ACCEPTED if is_accepted else JoinPhase.REQUESTING
        self.acceptance: Acceptance | None = None
        """What the response said; None: the node was accepted before it started."""
        self.rejection: NotAdmitted | None = None
        self._sent = 0
        self._held: JoinNodeResponse | None = None

    # ---- the request

    def next_request(self, contacts: Sequence[Address]) -> SendRequest:
        """To the contacts in turn. A pause follows each round, and grows."""
        assert self.phase is JoinPhase.REQUESTING, "one answer is enough"
        assert contacts, "a node that joins has found a member"
        rounds, number = divmod(self._sent, len(contacts))
        self._sent += 1
        first_of_round = number == 0 and rounds > 0
        pause_ms = min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS << min(rounds - 1, 10)) if first_of_round else 0
        return SendRequest(contacts[number], pause_ms)

    def request_waits(self) -> None:
        """A member has committed the request, or found it committed."""
        if self.phase is JoinPhase.REQUESTING:
            self.phase = JoinPhase.WAITING
            if self._held is not None:
                self._process(self._held)

    def request_failed(self, error: EblaError) -> None:
        """A refusal is the same from every member, at any time. After any other error the request is repeated: under
        the same attempt id it changes nothing twice."""
        if self.phase is JoinPhase.REQUESTING:
            if isinstance(error, InvalidRequest | Refused):
                self._reject(NotAdmitted(error.message, advice=error.advice))
            elif isinstance(error, HostLeft):
                self._reject(rejected(""))

    # ---- the response

    def respond(self, response: JoinNodeResponse) -> ResponseDecision:
        if response.attempt != self.attempt:
            return ResponseDecision.STALE
        if self.phase is JoinPhase.REQUESTING:
            self._held = response
            return ResponseDecision.HELD
        if self.phase is JoinPhase.WAITING:
            self._process(response)
        return ResponseDecision.PROCESSED

    def _process(self, response: JoinNodeResponse) -> None:
        if response.history is None:
            self._reject(rejected(response.rejection))
            return
        self.phase = JoinPhase.ACCEPTED
        self.acceptance = Acceptance(response.history, response.members)

    # ---- queries

    def query_answered(self, answer: JoinNodeQueryAnswer) -> JoinWait:
        """What a member knows of this host, perhaps from before the request."""
        request = answer.request
        if request is not None and request.attempt != self.attempt:
            request = None
        has_failed = request is not None and request.outcome is RequestOutcome.FAILED
        if self.phase is JoinPhase.WAITING and (has_failed or answer.state is NodeState.LEFT):
            self._reject(rejected("" if request is None else request.error))
        if request is None:
            return JoinWait(answer.state)
        return JoinWait(answer.state, request.position, request.waits_for)

    def _reject(self, error: NotAdmitted) -> None:
        self.phase = JoinPhase.REJECTED
        self.rejection = error


def restart_refusal(answers: Iterable[JoinNodeQueryAnswer]) -> NotAdmitted | None:
    """Of an accepted node that starts again, by what the members answered that it reached; None: it starts its Raft
    server, and catches up."""
    for answer in answers:
        if answer.state is NodeState.LEFT:
            return rejected("" if answer.request is None else answer.request.error)
    return None


def rejected(reason: str) -> NotAdmitted:
    return NotAdmitted(f"this node did not join: {reason or 'its host has left the cluster'}", advice=RESET_NODE_ADVICE)
