"""The process that `test_worker_pool.py` starts: a fork server whose workers do what the job says."""

import importlib
import os
import signal
import socket
import sys
from typing import NoReturn

from ebla.bulk.workers.fork_server import serve_forks
from ebla.bulk.workers.messages import WorkerFrameKind, receive_frame, send_frame


def work(job: bytes) -> bytes:
    match job:
        case b"pid":
            return str(os.getpid()).encode()
        case b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"wait":
            signal.pause()
        case b"fail":
            raise ValueError("on purpose")
        case b"pandas":
            assert len(importlib.import_module("pyarrow").array([1])) == 1
            return str("pandas" in sys.modules).encode()
    return job


def serve_worker(channel: socket.socket) -> None:
    while True:
        try:
            _, job = receive_frame(channel)
        except EOFError:
            return
        send_frame(channel, WorkerFrameKind.RESULT, work(bytes(job)))


def main() -> NoReturn:
    serve_forks(serve_worker)


if __name__ == "__main__":
    main()
