"""Exactly-once commands: a bounded cache of the answers to each client's latest calls.

The cache is part of the replicated state. If a snapshot lacked it, a retry that crosses the snapshot would be applied a
second time on the nodes that installed it, and not on the others.
"""

import uuid

import msgspec

from ebla.group0.commands import CallId, CommandAnswer, Forgotten

ANSWERS_PER_CLIENT_MAX = 512
CLIENTS_MAX = 4_096


class ClientAnswers(msgspec.Struct, array_like=True, kw_only=True):
    """One client's incarnation, its cached answers by serial, and the highest serial that is no longer cached."""

    incarnation: int
    forgotten_through: int
    last_index: int
    answers: dict[int, CommandAnswer]


class AnswerCache:
    def __init__(self, clients: dict[uuid.UUID, ClientAnswers] | None = None) -> None:
        self.clients = clients if clients is not None else {}

    def lookup(self, call: CallId) -> CommandAnswer | None:
        """What to answer instead of applying the command again, or None if the call is new."""
        memory = self.clients.get(call.client)
        return None if memory is None else _cached_answer(memory, call)

    def remember(self, call: CallId, answer: CommandAnswer, index: int) -> None:
        memory = self.clients.get(call.client)
        if memory is None or call.incarnation > memory.incarnation:
            memory = ClientAnswers(incarnation=call.incarnation, forgotten_through=0, last_index=index, answers={})
            self.clients[call.client] = memory
            self._bound_clients()
        answers = memory.answers
        assert call.serial > memory.forgotten_through, "a dropped answer is never cached again"
        answers[call.serial] = answer
        memory.last_index = index
        if call.answered_through > memory.forgotten_through:
            _forget_answered(memory, call.answered_through)
        # Answers are in the order of the log, not of their serials, so find the lowest.
        while len(answers) > ANSWERS_PER_CLIENT_MAX:
            oldest = min(answers)
            del answers[oldest]
            memory.forgotten_through = max(memory.forgotten_through, oldest)

    def _bound_clients(self) -> None:
        """Drops the least recently active client. If it returns after 4,095 others, its incarnation starts over. That
        is why a client must not repeat a call after its deadline."""
        if len(self.clients) > CLIENTS_MAX:
            quietest = min(self.clients, key=lambda client: (self.clients[client].last_index, client.int))
            del self.clients[quietest]


def _cached_answer(memory: ClientAnswers, call: CallId) -> CommandAnswer | None:
    if call.incarnation > memory.incarnation:
        return None
    if call.incarnation < memory.incarnation:
        return Forgotten(f"incarnation {call.incarnation} was followed by {memory.incarnation}")
    if call.serial in memory.answers:
        return memory.answers[call.serial]
    if call.serial <= memory.forgotten_through:
        return Forgotten(f"answers up to call {memory.forgotten_through} are no longer kept")
    return None


def _forget_answered(memory: ClientAnswers, answered_through: int) -> None:
    """Usually one or a few more than the last time. For a large step, walk the cached answers instead."""
    answers = memory.answers
    if answered_through - memory.forgotten_through <= len(answers):
        for serial in range(memory.forgotten_through + 1, answered_through + 1):
            answers.pop(serial, None)
    else:
        for serial in [kept for kept in answers if kept <= answered_through]:
            del answers[serial]
    memory.forgotten_through = answered_through
