"""What `test_forked_jobs.py` starts: a process whose forks do as they are told."""

import importlib
import os
import signal
import sys
from typing import NoReturn

from ebla.bulk.workers import fork_server


def work(job: bytes) -> bytes:
    match job:
        case b"who":
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


def main() -> NoReturn:
    fork_server.FORK_IDLE_S = float(os.environ.get("FORK_IDLE_S", "60"))
    fork_server.serve_forks(int(sys.argv[1]), work)


if __name__ == "__main__":
    main()
