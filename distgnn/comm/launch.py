"""How a job of many ranks starts and ends: what the launcher says, and how every rank leaves together.

Nothing here imports MPI before it is needed, so that ``--help`` works without it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, MutableMapping
from types import TracebackType
from typing import Any

from distgnn.errors import UserError

#: How launchers tell a process its job's size and its rank in it, the innermost launcher first: `mpiexec`
#: inside a Slurm job starts its helpers with `srun`, so Slurm's variables count only without another's.
LAUNCHERS = (
    ("PMI_SIZE", "PMI_RANK"),  # MPICH and its relatives, srun --mpi=pmi2
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),  # Open MPI
    ("PMIX_SIZE", "PMIX_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),  # MVAPICH
    ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),  # Hydra, ranks of this node
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),  # srun; not set in a batch script itself
)

#: Seconds that a rank which leaves with an error waits for the others to do the same.
PATIENCE = 5.0

_meeting: Any = None  # a communicator of our own, so that leaving never meets a collective of the program


def launched(environ: Mapping[str, str] = os.environ) -> tuple[int, int, str]:
    """(ranks, rank, variable) that the launcher of this process announced; (1, 0, "") without a launcher."""
    for size_name, rank_name in LAUNCHERS:
        size, rank = environ.get(size_name, ""), environ.get(rank_name, "")
        if size.isdecimal() and rank.isdecimal():
            return int(size), int(rank), size_name
    return 1, 0, ""


def is_first() -> bool:
    """Whether this rank speaks for the job; works before MPI is started."""
    return launched()[1] == 0


def limit_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """One BLAS thread per rank unless the user chose otherwise. Call before NumPy is imported."""
    if launched(environ)[0] > 1:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environ.setdefault(name, "1")


def check_launcher(comm_size: int, environ: Mapping[str, str] = os.environ) -> None:
    """UserError where the launcher started many processes that MPI did not connect (``comm_size`` is 1): each
    would believe to be the whole job and write the same files.
    """
    size, _, name = launched(environ)
    if size > 1 and comm_size == 1:
        raise UserError(
            f"launcher: {name}={size} announces {size} ranks, but MPI connected none of them (COMM_WORLD has "
            "1); launch with the mpiexec of the MPI library that mpi4py uses, or with srun --mpi=pmi2 or "
            "--mpi=pmix, whichever that library speaks"
        )


def start() -> None:
    """Start MPI where a launcher announced more than one rank, and :func:`check_launcher`. Collective."""
    global _meeting
    if launched()[0] > 1:
        world = _mpi().COMM_WORLD
        check_launcher(world.Get_size())
        if _meeting is None:
            _meeting = world.Dup()


def leave(error: UserError) -> int:
    """Print ``error`` once for the job and return exit code 2 when every rank may exit. Every rank calls
    this, as errors are raised collectively; a rank that comes alone speaks and aborts the rest.
    """
    line = f"distgnn: error: {error}"
    world = _connected_world()
    if world is None:
        if is_first():
            print(line, file=sys.stderr, flush=True)
        elif launched()[0] > 1:
            # unconnected processes: some launchers kill the job at the first exit, let rank 0 speak before
            time.sleep(1)
        return 2
    if world.Get_rank() == 0:
        print(line, file=sys.stderr, flush=True)
    if not _all_arrive(world):
        if world.Get_rank() != 0:
            print(f"{line} (on rank {world.Get_rank()} only)", file=sys.stderr, flush=True)
        world.Abort(2)
    return 2


def install_abort_hook() -> None:
    """An uncaught exception on one rank prints its traceback and ends the whole job."""
    sys.excepthook = _abort

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            _abort(args.exc_type, args.exc_value, args.exc_traceback)

    threading.excepthook = in_thread


def _abort(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    world = _connected_world(begin=False)
    prefix = f"distgnn: rank {world.Get_rank()} failed\n" if world is not None else ""
    lines = traceback.format_exception(kind, error, trace)
    text = "interrupted\n" if issubclass(kind, KeyboardInterrupt) else "".join(lines)
    print(prefix + text, end="", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if world is not None:
        world.Abort(1)


def _mpi() -> Any:
    with warnings.catch_warnings():
        # mpi4py suspects a foreign launcher; check_launcher says it in one line
        warnings.simplefilter("ignore", RuntimeWarning)
        from mpi4py import MPI
    return MPI


def _connected_world(begin: bool = True) -> Any:
    """All ranks if MPI connected several, else None; ``begin``: start MPI where a launcher announced them."""
    if "mpi4py.MPI" not in sys.modules and not (begin and launched()[0] > 1):
        return None
    try:
        mpi = _mpi()
    except (ImportError, RuntimeError):
        return None
    if not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() == 1:
        return None
    return _meeting or mpi.COMM_WORLD


def _all_arrive(world: Any) -> bool:
    request, deadline = world.Ibarrier(), time.monotonic() + PATIENCE
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
