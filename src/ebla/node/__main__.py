"""`python -m ebla.node control --options FILE` runs a node: its control process, which starts the others.

The others have their own entry modules: `ebla.node.shard`, `ebla.node.bulk` and `ebla.node.pipeline`. A process imports
only what it runs, because imports take most of its start time.
"""

import argparse
import signal
import sys
from collections.abc import Sequence

from ebla.model.errors import EblaError
from ebla.node.control import StartArguments, run_control
from ebla.node.process import EXIT_REFUSED, add_options
from ebla.options import load
from ebla.runtime.process_limits import raise_open_files


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        options = load(chosen.options, chosen.set)
        raise_open_files(options.limits.open_files_min)
        return run_control(options, StartArguments(chosen.options, tuple(chosen.set), chosen.join))
    except EblaError as error:
        sys.stderr.write(f"ebla: {error}\n")
        return EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ebla.node", description="Run a node.")
    roles = parser.add_subparsers(dest="role", required=True)
    control = roles.add_parser("control", help="a node: control and the processes it starts")
    control.add_argument("--join", metavar="TOKEN", help="at the first start: join the cluster that made the token")
    add_options(control)
    return parser


if __name__ == "__main__":
    # By default SIGHUP from `ebla renew` would kill a process that is starting. Certificates are read after this.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main())
