"""The fork server: a process that has imported what jobs need and forks workers from itself.

A fork takes milliseconds; a new interpreter takes as long as writing a hundred thousand rows. The server itself never
works: threads are started and files are opened in forks only, so that it always stays safe to fork.

The pool (`pool.py`) asks for a fork and passes one end of a socket pair along; the worker serves jobs on it. The server
reaps its forks, so a kill goes through it: a pid that was not reaped cannot belong to another process.

No process outlives its parent. The server ends when its control socket does, and forks end with the server.
"""

import enum
import gc
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from typing import NoReturn

from ebla.runtime.death_signal import die_with_parent, set_death_signal

CONTROL_MESSAGE = struct.Struct(">BII")  # kind, number of the worker, its pid where the server knows it

ServeWorker = Callable[[socket.socket], None]
"""Serves jobs on a worker's channel until the peer closes it."""


class ControlKind(enum.IntEnum):
    FORK = 1
    """With the worker's channel as a file descriptor."""
    KILL = 2
    FORKED = 3
    REAPED = 4


@dataclass(frozen=True, slots=True)
class _Fork:
    number: int
    pid: int
    lifeline: int
    """Read end of a pipe whose write end only the fork holds: it ends when the fork does."""


class _NoPandas(MetaPathFinder):
    """Arrow imports pandas, where it is installed, for the first array it makes. That is half the cost of a start."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("workers do not use pandas", name=fullname)


def serve_forks(serve_worker: ServeWorker) -> NoReturn:
    """Runs until the parent closes the control socket. Arguments of the process: the parent's pid, and the control
    socket's descriptor."""
    set_death_signal(int(sys.argv[1]))
    sys.meta_path.insert(0, _NoPandas())
    # What is in memory now stays for ever. Without this every fork would walk it, and copy the pages it marks.
    gc.collect()
    gc.freeze()
    _ForkServer(socket.socket(fileno=int(sys.argv[2])), serve_worker).serve()


class _ForkServer:
    def __init__(self, control: socket.socket, serve_worker: ServeWorker) -> None:
        self._control = control
        self._serve_worker = serve_worker
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._forks: dict[int, _Fork] = {}
        """By number."""
        self._server_ended, self._server_lives = os.pipe()

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._receive()
                else:
                    self._reap(key.data)

    def _receive(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._control, CONTROL_MESSAGE.size, 1)
        if not data:
            self._exit()
        kind, number, _ = CONTROL_MESSAGE.unpack(data)
        match ControlKind(kind):
            case ControlKind.FORK:
                (channel,) = descriptors
                self._fork(number, channel)
            case ControlKind.KILL:
                if number in self._forks:
                    os.kill(self._forks[number].pid, signal.SIGKILL)
            case ControlKind.FORKED | ControlKind.REAPED:
                raise AssertionError("only the server reports on forks")

    def _exit(self) -> NoReturn:
        """Reaps the forks first, so that their processor time is accounted for."""
        for fork in self._forks.values():
            os.kill(fork.pid, signal.SIGKILL)
            os.waitpid(fork.pid, 0)
        os._exit(0)

    def _reap(self, fork: _Fork) -> None:
        self._selector.unregister(fork.lifeline)
        os.close(fork.lifeline)
        os.waitpid(fork.pid, 0)
        del self._forks[fork.number]
        self._control.sendall(CONTROL_MESSAGE.pack(ControlKind.REAPED, fork.number, fork.pid))

    def _fork(self, number: int, channel: int) -> None:
        ended, lives = os.pipe()
        server = os.getpid()
        pid = os.fork()
        if not pid:
            os.close(ended)
            self._become_worker(server, channel)
        os.close(lives)
        os.close(channel)
        fork = self._forks[number] = _Fork(number, pid, ended)
        self._selector.register(ended, selectors.EVENT_READ, fork)
        self._control.sendall(CONTROL_MESSAGE.pack(ControlKind.FORKED, number, pid))

    def _become_worker(self, server: int, channel: int) -> NoReturn:
        status = 1
        try:
            self._selector.close()
            self._control.close()
            for fork in self._forks.values():
                os.close(fork.lifeline)
            os.close(self._server_lives)
            die_with_parent(server, self._server_ended)
            with socket.socket(fileno=channel) as served:
                self._serve_worker(served)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
