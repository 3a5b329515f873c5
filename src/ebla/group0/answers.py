"""Exactly-once: the answers of each client's latest calls, bounded.

The memory is part of the replicated state. A snapshot that forgot it would let a retry that crosses the snapshot
apply a second time on the nodes that installed it, and not on the others.
"""

import uuid

import msgspec

from ebla.group0.commands import Answer, CallId, Forgotten

ANSWERS_PER_CLIENT_MAX = 512
CLIENTS_MAX = 4_096


class ClientMemory(msgspec.Struct, array_like=True):
    """One client's incarnation, its kept answers by serial, and the highest serial that is no longer kept."""

    incarnation: int
    forgotten_through: int
    last_index: int
    answers: dict[int, Answer]


class AnswerMemory:
    def __init__(self, clients: dict[uuid.UUID, ClientMemory] | None = None) -> None:
        self.clients = clients if clients is not None else {}

    def recall(self, call: CallId) -> Answer | None:
        """What to answer instead of applying, or None where the call is new."""
        memory = self.clients.get(call.client)
        if memory is None or call.incarnation > memory.incarnation:
            return None
        if call.incarnation < memory.incarnation:
            return Forgotten(f"incarnation {call.incarnation} was followed by {memory.incarnation}")
        if call.serial in memory.answers:
            return memory.answers[call.serial]
        if call.serial <= memory.forgotten_through:
            return Forgotten(f"answers up to call {memory.forgotten_through} are no longer kept")
        return None

    def remember(self, call: CallId, answer: Answer, index: int) -> None:
        memory = self.clients.get(call.client)
        if memory is None or call.incarnation > memory.incarnation:
            memory = ClientMemory(call.incarnation, 0, index, {})
            self.clients[call.client] = memory
        memory.answers[call.serial] = answer
        memory.last_index = index
        self._forget(memory, call.answered_through)
        self._bound_clients()

    def _forget(self, memory: ClientMemory, answered_through: int) -> None:
        """Drops what the client has acknowledged, and the oldest ones above the bound. Answers stand in the order
        they were given, not in that of their serials, so the lowest serial is looked for."""
        if answered_through > memory.forgotten_through:
            for serial in [kept for kept in memory.answers if kept <= answered_through]:
                del memory.answers[serial]
            memory.forgotten_through = answered_through
        while len(memory.answers) > ANSWERS_PER_CLIENT_MAX:
            oldest = min(memory.answers)
            del memory.answers[oldest]
            memory.forgotten_through = max(memory.forgotten_through, oldest)

    def _bound_clients(self) -> None:
        """Drops the client heard longest ago. One that returns after 4,095 others starts anew under its incarnation,
        which is why a client must not repeat a call after its deadline."""
        if len(self.clients) > CLIENTS_MAX:
            quietest = min(self.clients, key=lambda client: (self.clients[client].last_index, client.int))
            del self.clients[quietest]
