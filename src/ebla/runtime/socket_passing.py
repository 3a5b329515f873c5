"""Passes accepted sockets from one process of a node to another, over Unix sockets that only the owner may open.

One byte carries one socket. A process that cannot pass a socket on at once keeps it: the receiver may be starting, or
behind.
"""

import asyncio
import os
import socket
from collections.abc import Callable

from ebla.model.identity import Address, ShardNumber
from ebla.runtime.sockets import is_same_user, listen_local

_BACKLOG = 64
_CARRIER = b"s"


class SocketPassing:
    """Of one shard. `take` receives the sockets that other shards pass to it."""

    def __init__(self, path_of: Callable[[ShardNumber], str], take: Callable[[socket.socket], None]) -> None:
        self._path_of = path_of
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._path = ""
        self._from: dict[socket.socket, None] = {}
        self._to: dict[ShardNumber, socket.socket] = {}

    def listen(self, own: ShardNumber) -> None:
        self._path = self._path_of(own)
        self._listener = listen_local(Address(self._path), _BACKLOG)
        self._loop.add_reader(self._listener, self._accept)

    def pass_to(self, number: ShardNumber, accepted: socket.socket) -> bool:
        """Whether the other process has it now as well. The caller closes its own."""
        link = self._to.get(number) or self._connect(number)
        if link is None:
            return False
        try:
            socket.send_fds(link, [_CARRIER], [accepted.fileno()])
        except BlockingIOError:
            return False
        except OSError:  # the other process was restarted, or is gone
            del self._to[number]
            link.close()
            return False
        return True

    def close(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass
        for link in list(self._from):
            self._forget(link)
        for link in self._to.values():
            link.close()
        self._to.clear()

    def _connect(self, number: ShardNumber) -> socket.socket | None:
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        try:
            link.connect(self._path_of(number))
        except OSError:
            link.close()
            return None
        self._to[number] = link
        return link

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            link, _ = self._listener.accept()
        except OSError:  # gone again
            return
        if not is_same_user(link):
            link.close()
            return
        link.setblocking(False)
        self._from[link] = None
        self._loop.add_reader(link, self._receive, link)

    def _receive(self, link: socket.socket) -> None:
        try:
            carrier, descriptors, _, _ = socket.recv_fds(link, len(_CARRIER), 1)
        except BlockingIOError:
            return
        except OSError:
            carrier, descriptors = b"", []
        if not carrier:
            self._forget(link)
        for descriptor in descriptors:
            accepted = socket.socket(fileno=descriptor)
            accepted.setblocking(False)
            self._take(accepted)

    def _forget(self, link: socket.socket) -> None:
        self._loop.remove_reader(link)
        self._from.pop(link, None)
        link.close()
