"""`python -m ebla.node control --options FILE` is a node. It starts its other processes by the same door, with another
role: `python -m ebla.node shard …`, `python -m ebla.node bulk …`. Each role is put together in a file of its own."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ebla.model.errors import EblaError
from ebla.node.bulk_role import run_bulk
from ebla.node.control_role import Start, run_control
from ebla.node.process import EXIT_REFUSED
from ebla.node.shard_role import run_shard
from ebla.options import load
from ebla.runtime.death_signal import die_with_parent
from ebla.runtime.process_limits import raise_open_files
from ebla.runtime.supervise import PARENT_FLAG, PIPE_FLAG


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.role != "control":
            die_with_parent(chosen.parent, chosen.parent_pipe)
        options = load(chosen.options, chosen.set)
        open_files = raise_open_files(options.limits.open_files_min)
        match chosen.role:
            case "shard":
                return run_shard(options, chosen.number, open_files)
            case "bulk":
                return run_bulk(options)
            case _:
                return run_control(options, Start(chosen.options, tuple(chosen.set), chosen.join))
    except EblaError as error:
        sys.stderr.write(f"ebla: {error}\n")
        return EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ebla.node", description="Run one process of a node.")
    roles = parser.add_subparsers(dest="role", required=True)
    control = roles.add_parser("control", help="a node: control and the processes it starts")
    control.add_argument("--join", metavar="TOKEN", help="at its first start: be handed the cluster's authority")
    shard = roles.add_parser("shard", help="a data process; started by its control")
    shard.add_argument("--number", type=int, required=True)
    bulk = roles.add_parser("bulk", help="the process for long work on files; started by its control")
    for child in (shard, bulk):
        child.add_argument(PARENT_FLAG, type=int, required=True)
        child.add_argument(PIPE_FLAG, type=int, required=True)
    for role in (control, shard, bulk):
        role.add_argument("--options", type=Path, required=True, metavar="FILE")
        role.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser


if __name__ == "__main__":
    # By default it would end a process that `ebla renew` meets while it starts. Certificates are read later than this.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main())
