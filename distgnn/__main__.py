"""The ``distgnn`` command, also as ``python -m distgnn``: MPI first, then all that can fail."""

import os
import signal
import sys
import traceback

try:
    from distgnn.comm import launch
except Exception:  # a damaged installation on one node
    if "PMI_RANK" not in os.environ:
        raise
    traceback.print_exc()
    os.kill(os.getpid(), signal.SIGKILL)  # mpiexec lets the others wait for a process that only exits


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    launch.begin()
    from distgnn.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
