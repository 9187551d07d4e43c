"""The ``distgnn`` command, also as ``python -m distgnn``: MPI first, then all that can fail."""

import os
import signal
import sys
import traceback

try:
    from distgnn.comm import launch
except BaseException as error:  # a damaged installation on one node, or an interrupt
    if "PMI_RANK" not in os.environ:
        raise
    traceback.print_exc()
    where = f"rank {os.environ['PMI_RANK']} on host {os.uname().nodename}"
    print(f"distgnn: {where} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # mpiexec lets the others wait for a process that only exits


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    launch.begin()
    from distgnn.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
