"""Kills a process just before a system call that changes a folder, whether Ebla or a library makes the call.

The process is a fork of this one, which has imported everything and has no threads. A seccomp filter stops it at the
calls that change files; a ptrace tracer inspects each, and kills the process before the chosen one. Calls that write
RocksDB's LOG or lie outside the folder do not count.
"""

import ctypes
import json
import os
import platform
import shutil
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import NoReturn

TRY_LIMIT_S = 60
IS_SUPPORTED = platform.system() == "Linux" and platform.machine() == "x86_64"
IGNORED_NAMES = ("LOG", "LOCK")
ACKNOWLEDGED_NAME = "acknowledged"
"""A file beside the work's folder with one byte per step."""
SMALL_CHANGE = "write /"
"""Of consecutive writes to one file (the library's own bookkeeping) only the first is tried."""
SAMPLED_EVERY = 5

Acknowledge = Callable[[], None]


class Where(Enum):
    """Which argument of a call names the file it changes."""

    DESCRIPTOR = auto()
    PATH = auto()
    PATH_AT = auto()
    CREATED_AT = auto()
    SECOND_PATH = auto()
    SECOND_PATH_AT = auto()


CALLS = {
    1: ("write", Where.DESCRIPTOR),
    18: ("pwrite64", Where.DESCRIPTOR),
    20: ("writev", Where.DESCRIPTOR),
    74: ("fsync", Where.DESCRIPTOR),
    75: ("fdatasync", Where.DESCRIPTOR),
    76: ("truncate", Where.PATH),
    77: ("ftruncate", Where.DESCRIPTOR),
    82: ("rename", Where.SECOND_PATH),
    83: ("mkdir", Where.PATH),
    84: ("rmdir", Where.PATH),
    86: ("link", Where.SECOND_PATH),
    87: ("unlink", Where.PATH),
    257: ("create", Where.CREATED_AT),
    258: ("mkdir", Where.PATH_AT),
    263: ("unlink", Where.PATH_AT),
    264: ("rename", Where.SECOND_PATH_AT),
    265: ("link", Where.SECOND_PATH_AT),
    285: ("fallocate", Where.DESCRIPTOR),
    316: ("rename", Where.SECOND_PATH_AT),
}
"""By system call number on x86-64."""

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_RET_TRACE, _RET_ALLOW = 0x7FF00000, 0x7FFF0000
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_CONT, _SEIZE, _GET_CALL = 7, 0x4206, 0x420E
_OPTIONS = 0x8 | 0x80 | 0x100000  # trace clones, stop at the filter's calls, die with the tracer
_EVENT_CLONE, _EVENT_FILTER, _EVENT_STOP = 3, 7, 128
_WALL = 0x40000000
_CALL_INFO = struct.Struct("<BxxxIQQQ6Q")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


@dataclass(kw_only=True)
class Trial:
    """What one process did to the folder, and how it ended."""

    folder: str
    calls: list[str] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    """After how many calls each step was reported."""
    was_killed: bool = False
    status: int = 0


@dataclass(frozen=True, kw_only=True)
class Workload:
    work: Callable[[str, Acknowledge], None]
    """Takes its folder; reports every step that must not be lost from then on."""
    check: Callable[[str, int], None]
    """Takes the number of reported steps. Raises if something is wrong."""
    prepare: Callable[[str], None] = lambda _folder: None
    """Fills the folder before each try."""
    name: str = ""
    kill_from_step: int = 0
    """Do not kill before so many steps were reported: another workload tries those calls."""
    sampled_step: int | None = None
    """Try only some of the calls before this step: another workload tries the rest."""


def try_every_kill(folder: str, workload: Workload) -> None:
    """Does the work once undisturbed, then once for every call it made, killed before that call; checks each time.

    Prints a line of JSON per kill.
    """
    undisturbed = _try(folder, workload, 0)
    assert undisturbed.status == 0, "the work fails even without a kill"
    for number in _tried_calls(undisturbed, workload):
        trial = _try(folder, workload, number)
        status = trial.status if not trial.was_killed else 0
        wrong = f"it ended by itself with status {status}" if status else _check(folder, workload)
        kill = trial.calls[-1] if trial.was_killed else "the end"
        print(json.dumps({"workload": workload.name, "kill": kill, "wrong": wrong}), flush=True)


def _tried_calls(undisturbed: Trial, workload: Workload) -> Iterator[int]:
    """Their numbers, from 1."""
    acknowledged = undisturbed.acknowledged
    first = acknowledged[workload.kill_from_step - 1] + 1 if workload.kill_from_step else 1
    sampled = range(0)
    if workload.sampled_step is not None:
        sampled = range(acknowledged[workload.sampled_step - 2] + 1, acknowledged[workload.sampled_step - 1] + 1)
    for number in range(first, len(undisturbed.calls) + 1):
        call = undisturbed.calls[number - 1]
        is_small = call.startswith(SMALL_CHANGE) and number > first and call == undisturbed.calls[number - 2]
        if not is_small and (number not in sampled or number % SAMPLED_EVERY == 0):
            yield number


def _try(folder: str, workload: Workload, number: int) -> Trial:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(f"{folder}/data")
    workload.prepare(f"{folder}/data")
    acknowledgements = os.open(f"{folder}/{ACKNOWLEDGED_NAME}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def acknowledge() -> None:
        os.write(acknowledgements, b".")

    try:
        return run_traced(partial(workload.work, f"{folder}/data", acknowledge), folder, number)
    finally:
        os.close(acknowledgements)


def _check(folder: str, workload: Workload) -> str:
    child = os.fork()
    if child == 0:
        _live_and_end(partial(workload.check, f"{folder}/data", os.path.getsize(f"{folder}/{ACKNOWLEDGED_NAME}")))
    status = os.waitpid(child, 0)[1]
    return f"the check ended with status {status}" if status else ""


def run_traced(main: Callable[[], None], folder: str, kill_before: int) -> Trial:
    """Runs `main` in a process of its own and kills it just before call number `kill_before`, counted from 1. Only
    calls on the folder's `data` count."""
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        _live_and_end(partial(_be_traced, main, ready))
    trial = Trial(folder=folder)
    _ptrace(_SEIZE, child, 0, _OPTIONS)
    os.write(go, b"!")
    for thread, status in _stops(child, trial):
        event, stop_signal = status >> 16, (status >> 8) & 0xFF
        if trial.was_killed:
            continue
        if event == _EVENT_FILTER and _note(trial, *_changed(child, thread)) and len(trial.calls) == kill_before:
            trial.was_killed = True
            os.kill(child, signal.SIGKILL)
            continue
        passed_on = 0 if event in (_EVENT_CLONE, _EVENT_FILTER, _EVENT_STOP) else stop_signal
        _libc.ptrace(_CONT, thread, None, ctypes.c_void_p(passed_on))
    os.close(ready)
    os.close(go)
    return trial


def _stops(child: int, trial: Trial) -> Iterator[tuple[int, int]]:
    """Handles every stop of every thread until the process is gone."""
    while True:
        thread, status = os.waitpid(-1, _WALL)
        if os.WIFSTOPPED(status):
            yield thread, status
        elif thread == child:
            trial.status = status
            return


def _be_traced(main: Callable[[], None], ready: int) -> None:
    os.read(ready, 1)
    _install_filter()
    main()


def _live_and_end(main: Callable[[], None]) -> NoReturn:
    """Everything a child does."""
    status = 1
    try:
        signal.alarm(TRY_LIMIT_S)
        main()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _install_filter() -> None:
    numbers = sorted(CALLS)
    lines = [struct.pack("<HBBI", _LOAD_WORD, 0, 0, 0)]
    for place, number in enumerate(numbers):
        to_trace = len(numbers) - place
        lines.append(struct.pack("<HBBI", _JUMP_IF_EQUAL, to_trace, 0, number))
    lines.append(struct.pack("<HBBI", _RETURN, 0, 0, _RET_ALLOW))
    lines.append(struct.pack("<HBBI", _RETURN, 0, 0, _RET_TRACE))
    code = ctypes.create_string_buffer(b"".join(lines))
    program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(lines), ctypes.addressof(code)))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def _note(trial: Trial, call: str, path: str) -> bool:
    """Whether the call counts."""
    inside = path.removeprefix(f"{trial.folder}/data")
    if inside != path and not os.path.basename(path).startswith(IGNORED_NAMES):
        trial.calls.append(f"{call} {inside}")
        return True
    if path == f"{trial.folder}/{ACKNOWLEDGED_NAME}":
        trial.acknowledged.append(len(trial.calls))
    return False


def _changed(child: int, thread: int) -> tuple[str, str]:
    """The call that a thread is about to make, and the file it changes; empty if that file has no name."""
    buffer = ctypes.create_string_buffer(_CALL_INFO.size + 8)
    _ptrace(_GET_CALL, thread, len(buffer), ctypes.addressof(buffer))
    _, _, _, _, number, *arguments = _CALL_INFO.unpack_from(buffer.raw)
    name, where = CALLS[number]
    return name, _path(child, where, arguments) or ""


def _path(child: int, where: Where, arguments: list[int]) -> str | None:
    match where:
        case Where.DESCRIPTOR:
            try:
                return os.readlink(f"/proc/{child}/fd/{arguments[0]}")
            except OSError:
                return None
        case Where.PATH:
            return _string(child, arguments[0])
        case Where.PATH_AT:
            return _joined(child, arguments[0], arguments[1])
        case Where.CREATED_AT:
            return _joined(child, arguments[0], arguments[1]) if arguments[2] & os.O_CREAT else None
        case Where.SECOND_PATH:
            return _string(child, arguments[1])
        case Where.SECOND_PATH_AT:
            return _joined(child, arguments[2], arguments[3])


def _joined(child: int, descriptor: int, address: int) -> str:
    """Resolves a path that may be relative to an open folder, as when a tree is removed."""
    path = _string(child, address)
    return path if path.startswith("/") else f"{os.readlink(f'/proc/{child}/fd/{descriptor}')}/{path}"


def _string(child: int, address: int) -> str:
    with open(f"/proc/{child}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(4096).split(b"\0", 1)[0].decode()


def _ptrace(request: int, thread: int, address: int, data: int) -> None:
    if _libc.ptrace(request, thread, ctypes.c_void_p(address), ctypes.c_void_p(data)) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace request {request:#x}")
