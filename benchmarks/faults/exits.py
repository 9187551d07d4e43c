"""The end of a program with many grids, where some ranks are late: how long does it take?

    mpiexec -n 8 python benchmarks/faults/exits.py [--grids 20] [--late 2.5]

Every rank makes so many grids and ends. Ranks of odd number begin to part from the others and then do
nothing for some seconds, as on a machine that is busy. Prints the seconds that each rank took to leave.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from mpi4py import MPI

import distgnn as dg
from distgnn.comm import leaving


class Late:
    """A communicator, or a barrier on it, of which the first test comes so many seconds late."""

    def __init__(self, of: Any, seconds: list[float]) -> None:
        self.of, self.seconds = of, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def Ibarrier(self) -> Late:
        """Begin a barrier."""
        return Late(self.of.Ibarrier(), self.seconds)

    def Test(self) -> bool:
        """Test the barrier."""
        while self.seconds:
            time.sleep(self.seconds.pop())
        return self.of.Test()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--grids", type=int, default=20)
    parser.add_argument("--late", type=float, default=2.5, help="seconds of every other rank")
    given = parser.parse_args()
    comm = MPI.COMM_WORLD
    grids, seconds = [dg.Grid(comm) for _ in range(given.grids)], [given.late]
    for notices in (grid.links.notices for grid in grids if comm.rank % 2):
        if notices is not None:
            notices.mpi = Late(notices.mpi, seconds)
    comm.Barrier()
    begun = time.monotonic()
    leaving.leave()
    print(f"rank {comm.rank}: {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
