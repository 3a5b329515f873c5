"""Encodes the store as chunks, and rebuilds it from them.

Taking a snapshot copies references only (values are immutable), so it is fast even for a store of 100 MB. Encoding
happens a chunk at a time afterwards, and the caller decides when to encode the next.
"""

import struct
import uuid
from collections.abc import Iterator

import msgspec

from ebla.group0.answer_cache import AnswerCache, ClientAnswers
from ebla.group0.change_feed import RecentChanges
from ebla.group0.sorted_keys import SortedKeys
from ebla.group0.store import Group0Store, HistoryStart, KeyEntry, history_at
from ebla.model.errors import Corruption
from ebla.model.transaction import Revision

FORMAT = 1
CHUNK_BYTES = 1024 * 1024
_LENGTH = struct.Struct(">I")


class SnapshotHeader(msgspec.Struct, frozen=True, tag="head", array_like=True, kw_only=True):
    format: int
    chain: tuple[HistoryStart, ...]
    index: int
    lock: bytes | None


class SnapshotEntries(msgspec.Struct, frozen=True, tag="entries", array_like=True):
    """Keys, their values and the indexes of their last changes; the chain gives the histories."""

    entries: tuple[tuple[str, bytes, int], ...]


class SnapshotClients(msgspec.Struct, frozen=True, tag="clients", array_like=True):
    clients: tuple[tuple[uuid.UUID, ClientAnswers], ...]


class SnapshotEnd(msgspec.Struct, frozen=True, tag="end", array_like=True):
    """Proves that nothing is missing."""

    entries: int
    clients: int


SnapshotPart = SnapshotHeader | SnapshotEntries | SnapshotClients | SnapshotEnd

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SnapshotPart)


def freeze(store: Group0Store) -> Group0Store:
    """A copy that later changes to `store` do not affect."""
    copy = Group0Store(store.chain)
    copy.index = store.index
    copy.lock = store.lock
    copy.entries = store.entries.copy()
    copy.rebuild_indexes(store.order().copy())
    copy.answers = AnswerCache(
        {
            client: ClientAnswers(
                incarnation=kept.incarnation,
                forgotten_through=kept.forgotten_through,
                last_index=kept.last_index,
                answers=kept.answers.copy(),
            )
            for client, kept in store.answers.clients.items()
        }
    )
    return copy


def encode(frozen: Group0Store) -> Iterator[bytes]:
    """Each chunk carries its length, so that storage and transport may cut the bytes differently."""
    for chunk in _chunks(frozen):
        data = _encoder.encode(chunk)
        yield _LENGTH.pack(len(data)) + data


def _chunks(frozen: Group0Store) -> Iterator[SnapshotPart]:
    yield SnapshotHeader(format=FORMAT, chain=frozen.chain, index=frozen.index, lock=frozen.lock)
    batch: list[tuple[str, bytes, int]] = []
    size = 0
    for key in frozen.order().below(""):
        entry = frozen.entries[key]
        batch.append((key, entry.value, entry.revision.index))
        size += len(key) + len(entry.value) + 48
        if size >= CHUNK_BYTES:
            yield SnapshotEntries(tuple(batch))
            batch, size = [], 0
    if batch:
        yield SnapshotEntries(tuple(batch))
    clients = list(frozen.answers.clients.items())
    for start in range(0, len(clients), 16):
        yield SnapshotClients(tuple(clients[start : start + 16]))
    yield SnapshotEnd(len(frozen.entries), len(clients))


class StoreBuilder:
    """Rebuilds a store from the encoded bytes, added in order, however they are cut."""

    def __init__(self) -> None:
        self._store: Group0Store | None = None
        self._ended = False
        self._rest: list[bytes] = []
        """The beginning of a chunk, as received; joined once, when all of it is here."""
        self._rest_bytes = 0
        self._needed_bytes = _LENGTH.size
        self._order: SortedKeys | None = SortedKeys()
        """None for a snapshot whose keys are unsorted, as earlier releases wrote them."""

    def add(self, data: bytes) -> None:
        self._rest.append(data)
        self._rest_bytes += len(data)
        if self._rest_bytes < self._needed_bytes:
            return
        data = data if len(self._rest) == 1 else b"".join(self._rest)
        offset, end, needed = 0, len(data), _LENGTH.size
        while end - offset >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, offset)
            needed = _LENGTH.size + length
            if offset + needed > end:
                break
            self._add_chunk(memoryview(data)[offset + _LENGTH.size : offset + needed])
            offset, needed = offset + needed, _LENGTH.size
        self._rest = [data[offset:]] if offset < end else []
        self._rest_bytes, self._needed_bytes = end - offset, needed

    def _add_chunk(self, data: memoryview) -> None:
        try:
            chunk = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise _damaged(f"a chunk does not decode ({error})") from error
        if self._ended:
            raise _damaged("a chunk follows the end")
        match chunk, self._store:
            case SnapshotHeader(), None:
                self._begin(chunk)
            case SnapshotEntries(entries=rows), Group0Store() as store:
                _fill(store, rows)
                if self._order is not None and not self._order.extend([key for key, _, _ in rows]):
                    self._order = None
            case SnapshotClients(clients=clients), Group0Store() as store:
                store.answers.clients.update(clients)
            case SnapshotEnd(), Group0Store() as store:
                self._end(chunk, store)
            case _:
                raise _damaged("its chunks are out of order")

    def finish(self) -> Group0Store:
        if self._store is None or not self._ended or self._rest:
            raise _damaged("its end is missing")
        self._store.rebuild_indexes(self._order)
        return self._store

    def _begin(self, head: SnapshotHeader) -> None:
        if head.format > FORMAT:
            raise Corruption(
                f"the group 0 snapshot has format {head.format}, this release reads up to {FORMAT}",
                advice="start the node with the release that wrote it, or a newer one",
            )
        self._store = Group0Store(head.chain)
        self._store.index = head.index
        self._store.lock = head.lock
        self._store.recent = RecentChanges(floor=head.index)

    def _end(self, end: SnapshotEnd, store: Group0Store) -> None:
        if (len(store.entries), len(store.answers.clients)) != (end.entries, end.clients):
            raise _damaged("it holds fewer entries than it says")
        self._ended = True


def _fill(store: Group0Store, rows: tuple[tuple[str, bytes, int], ...]) -> None:
    entries, chain = store.entries, store.chain
    for key, value, index in rows:
        entries[key] = KeyEntry(value, Revision(history_at(chain, index), index))


def _damaged(what: str) -> Corruption:
    return Corruption(
        f"the group 0 snapshot is damaged: {what}",
        advice="remove this node from the cluster and join it again with an empty folder",
    )
