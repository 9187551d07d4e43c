"""Start and end of a job of many ranks: the variables of launchers, and a common exit of all ranks.

Where a launcher announces several ranks, MPI comes up before anything else that can fail, as ranks in
``MPI_Init`` wait for all. Alone, nothing here imports MPI, so that ``--help`` works without it.
"""

from __future__ import annotations

import functools
import mmap
import os
import re
import resource
import select
import signal
import stat
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn

from distgnn.errors import PeerError, UserError
from distgnn.terminal import ready, show

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

#: How launchers, but for Slurm, tell a process the number of ranks on its node and its own among them.
LOCAL = (
    ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
)

#: How many threads a rank's products have.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

#: Seconds that a rank which leaves with an error waits for the others to do the same.
PATIENCE = 5.0

#: Seconds that MPI may take to start, that is, between the first and the last rank to get there: a rank that
#: died before would else keep the others waiting for ever. The variable says another number, 0 no limit.
START_LIMIT, START_VARIABLE = 300.0, "DISTGNN_INIT_TIMEOUT"

#: Seconds of waiting for other ranks after which a rank says so. The variable says another number, 0 never.
STALL_LIMIT, STALL_VARIABLE = 300.0, "DISTGNN_STALL"

#: Bytes of addresses that NumPy takes when it is loaded, and SciPy and HDF5. With fewer, OpenBLAS asks for
#: memory for ever, with Python's lock held, while other ranks wait without a word.
NUMPY, OTHERS = 80 << 20, 240 << 20

#: Where MPICH's ranks of a node meet, and bytes that each takes there (MPICH 5.0.2: 1,057,856 to 1,059,392).
SHARED, SHARED_BY_RANK = "/dev/shm", 1035 << 10

NO_LIBRARY = "no MPI library found; run python -m pip install mpich, or load this site's MPI module"

_meeting: Any = None  # a communicator of our own, so that leaving never meets a collective of the program


def launched(environ: Mapping[str, str] = os.environ) -> tuple[int, int, str]:
    """Return (ranks, rank, variable) that the launcher announced; (1, 0, "") without a launcher."""
    for size_name, rank_name in LAUNCHERS:
        size, rank = environ.get(size_name, ""), environ.get(rank_name, "")
        if size.isdecimal() and rank.isdecimal():
            return int(size), int(rank), size_name
    return 1, 0, ""


def is_first() -> bool:
    """Tell whether this rank speaks for the job; works before MPI is started."""
    return launched()[1] == 0


def limit_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set one BLAS thread per rank unless the user chose otherwise. Call this before NumPy is imported."""
    if launched(environ)[0] > 1:
        for name in THREADS:
            environ.setdefault(name, "1")


@functools.cache
def warn(problem: str) -> None:
    """Warn of a problem once. The first rank of the job speaks."""
    if is_first():
        show(f"distgnn: warning: {problem}", error=True)


@functools.cache
def warn_of_threads() -> None:
    """Warn once where ranks of a host have several threads."""
    if why := threaded():
        advice = "they hasten a part of an epoch alone; take OMP_NUM_THREADS=1 and a rank for each core"
        warn(f"{why}; {advice}: mpiexec -n RANKS")


def threaded(environ: Mapping[str, str] = os.environ) -> str:
    """Return which variable gives a rank several threads, or that none keeps a job's ranks from them."""
    for name in THREADS:
        first = environ.get(name, "").split(",")[0].strip()
        if first.isdecimal() and int(first) > 1:
            return f"{name}={environ[name]} gives a rank threads"
    number = len(cores())
    if launched(environ)[0] == 1 or number == 1 or any(environ.get(name) for name in THREADS):
        return ""
    return f"without OMP_NUM_THREADS every rank may take {number} threads for dense products"


def cores() -> set[int]:
    """Return the cores that this process may run on, of a job that was given some of a node's."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def check_launcher(comm_size: int, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UserError where the launcher started many processes that MPI did not connect.

    ``comm_size`` is 1 then: each process would believe to be the whole job and write the same files.
    """
    size, _, name = launched(environ)
    if size > 1 and comm_size == 1:
        raise UserError(
            f"launcher: {name}={size} announces {size} ranks, but MPI connected none of them (COMM_WORLD has "
            "1); launch with the mpiexec of the MPI library that mpi4py uses, or with srun --mpi=pmi2 or "
            "--mpi=pmix, whichever that library speaks"
        )


def begin() -> None:
    """Set threads, the abort hook and MPI up, before all else in a program that may be a job of many ranks.

    Collective. What fails afterwards is raised on all ranks or ends the job; nothing is left waiting.
    """
    global _meeting
    ready()
    limit_threads()
    abort_on_error()
    if launched()[0] > 1 and _meeting is None:
        limit = START_LIMIT
        try:
            with suppress(UserError):  # which check_start raises on all ranks
                limit = seconds(START_VARIABLE, START_LIMIT)
            with _limited(limit):
                world = _mpi().COMM_WORLD
        except (ImportError, RuntimeError) as error:
            _end_early(NO_LIBRARY if no_library(error) else f"can't start MPI: {error}")
        if world.Get_size() > 1:
            _meeting = world.Dup()


def warn_of_shared_memory(folder: str = SHARED, environ: Mapping[str, str] = os.environ) -> None:
    """Warn where the ranks of a node have too little of /dev/shm, which ends in a bus error, or never.

    Call this before MPI is started. The first rank of a node speaks, where the launcher says which it is.
    """
    ranks, rank = ranks_here(environ)
    if ranks == 1 or rank != 0:
        return
    needed = ranks * SHARED_BY_RANK
    with suppress(OSError):
        facts = os.statvfs(folder)
        if (free := facts.f_bavail * facts.f_frsize) < needed:
            left = f"{folder} has {free >> 10} KiB free, MPI takes {needed >> 10} KiB and may fail or hang"
            advice = f"make it larger (docker --shm-size), or remove {folder}/mpich_shm_* of killed jobs"
            show(f"distgnn: warning: {left}; {advice} ({where()})", error=True)


def ranks_here(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the ranks of this node and this one's number among them; (1, 0) where no launcher says it."""
    for size_name, rank_name in LOCAL:
        size, rank = environ.get(size_name, ""), environ.get(rank_name, "")
        if size.isdecimal() and rank.isdecimal():
            return int(size), int(rank)
    node, rank = environ.get("SLURM_NODEID", ""), environ.get("SLURM_LOCALID", "")
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # as 4(x2),3
    ranks = [int(count) for count, times in parts for _ in range(int(times or 1))]
    if node.isdecimal() and rank.isdecimal() and int(node) < len(ranks):
        return ranks[int(node)], int(rank)
    return 1, 0


def no_library(error: BaseException) -> bool:
    """Tell whether this error is mpi4py's way to say that it finds no MPI."""
    return isinstance(error, RuntimeError) and "cannot load MPI library" in str(error)


def check_memory() -> None:
    """Raise UserError where a limit on addresses (``ulimit -v``) leaves too few for the libraries.

    Call this before NumPy and SciPy are imported.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if "scipy" in sys.modules or limit == resource.RLIM_INFINITY:
        return
    needed = OTHERS + (0 if "numpy" in sys.modules else NUMPY)
    try:
        mmap.mmap(-1, needed, mmap.MAP_PRIVATE, mmap.PROT_READ).close()
    except OSError:
        allowed = f"ulimit -v allows this process {limit >> 20} MB"
        left = f"less than {needed >> 20} MB are left for NumPy, SciPy and HDF5"
        if launched()[0] > 1:
            _mpi()  # where the others wait for this rank
        raise UserError(f"memory: {allowed}, of which {left}; raise the limit") from None


def check_start() -> None:
    """Raise UserError where a rank can't go on.

    That is where :func:`begin` found many unconnected processes, a variable is no number, or memory is short.
    """
    check_memory()
    if launched()[0] > 1:
        check_launcher(_mpi().COMM_WORLD.Get_size())
        seconds(START_VARIABLE, START_LIMIT)
        stall_limit()


def ranks() -> Any:
    """Return the communicator of all ranks where there are several, else None; after :func:`begin`."""
    return connected_world()


def leave(error: UserError) -> int:
    """Print ``error`` once for the job and return exit code 2 when every rank may exit.

    Every rank calls this, as errors are raised collectively; a rank that comes alone speaks and aborts the
    rest.
    """
    line = f"distgnn: error: {error}"
    world = connected_world()
    if world is None:
        if is_first():
            show(line, error=True)
        elif launched()[0] > 1:
            # unconnected processes: some launchers kill the job at the first exit, let rank 0 speak before
            time.sleep(1)
        return 2
    if world.Get_rank() == 0:
        show(line, error=True)
    if not _all_arrive(world):
        if world.Get_rank() != 0:
            show(f"{line} (only on {where()})", error=True)
        abort(world, 2)
    return 2


class abort_on_error:
    """A program in which an uncaught exception on one rank, in any thread, ends the whole job.

    The rank prints its traceback; else the other ranks would wait for that rank for ever.

    Examples:
        >>> dg.abort_on_error()                 # from here on                    # doctest: +SKIP
        >>> with dg.abort_on_error(): ...       # for what leaves this block      # doctest: +SKIP

    It replaces ``sys.excepthook`` and ``threading.excepthook`` of the process; :meth:`undo` and the end of
    the block put the hooks of before back. The ``distgnn`` command installs it, the library never does so by
    itself. On one rank the block passes exceptions on.
    """

    def __init__(self) -> None:
        self._before = sys.excepthook, threading.excepthook
        self._hooks = _abort, _abort_in_thread
        sys.excepthook, threading.excepthook = self._hooks

    def undo(self) -> None:
        """Put the hooks of before back, but for one that somebody else has replaced since."""
        if sys.excepthook is self._hooks[0]:
            sys.excepthook = self._before[0]
        if threading.excepthook is self._hooks[1]:
            threading.excepthook = self._before[1]

    def __enter__(self) -> abort_on_error:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        several = launched()[0] > 1 or connected_world() is not None
        if kind is not None and error is not None and several and not issubclass(kind, SystemExit):
            _abort(kind, error, trace)  # nobody may catch it further out and leave the others waiting
        self.undo()


def _abort_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        _abort(args.exc_type, args.exc_value, args.exc_traceback)


def _abort(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, PeerError):
        time.sleep(PATIENCE)  # the rank that failed says why, and ends the job
    world, lines = connected_world(), traceback.format_exception(kind, error, trace)
    interrupted = issubclass(kind, KeyboardInterrupt)
    text = "" if interrupted else "".join(lines)
    if world is not None or launched()[0] > 1:
        how = "was interrupted" if interrupted else f"failed: {' '.join(lines[-1].split())}"
        text += f"distgnn: {where()} {how}"
    elif interrupted:
        text = "interrupted"
    show(text.removesuffix("\n"), error=True)
    if sys.stdout is not None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
    if world is not None:
        abort(world)
    _tell_launcher(1)


def where() -> str:
    """Name this rank and its host, for errors."""
    world = connected_world()
    rank = launched()[1] if world is None else world.Get_rank()
    return f"rank {rank} on host {os.uname().nodename}"


def _end_early(problem: str) -> NoReturn:
    """End the job from this rank, on which MPI does not start: others may wait in MPI for ever."""
    if not is_first():
        time.sleep(1)  # what is wrong everywhere is told by rank 0
    show(f"distgnn: error: {problem} ({where()})", error=True)
    _tell_launcher(2)
    sys.exit(2)


def _tell_launcher(code: int) -> None:
    """End the job from a rank on which MPI never started, where a process manager listens.

    PMI-1, which MPICH's mpiexec and Slurm's pmi2 speak, takes a process that exits before for one without
    MPI. Other launchers end the job when a process exits with a code like this one.
    """
    channel = os.environ.get("PMI_FD", "")
    if not channel.isdecimal() or "mpi4py.MPI" in sys.modules:  # then the channel is MPI's, or closed
        return
    manager = int(channel)
    with suppress(OSError):
        if stat.S_ISSOCK(os.fstat(manager).st_mode):  # a child of a rank may have another file there
            os.write(manager, b"cmd=init pmi_version=1 pmi_subversion=1\n")
            select.select([manager], [], [], 1)
            os.write(manager, f"cmd=abort exitcode={code}\n".encode())


def seconds(variable: str, usual: float) -> float:
    """Return the limit that a variable of the environment sets, or the usual one; 0 means no limit.

    Raises:
        UserError: the variable is no number.
    """
    given = os.environ.get(variable, str(usual))
    with suppress(ValueError):
        if 0 <= float(given) < threading.TIMEOUT_MAX:
            return float(given)
    raise UserError(f"{variable}={given}: expected a number of seconds, 0 for no limit")


def stall_limit() -> float:
    """Return the seconds of waiting for other ranks after which a rank says so; infinity for never.

    Raises:
        UserError: the environment says something else than a number.
    """
    return seconds(STALL_VARIABLE, STALL_LIMIT) or float("inf")


def abort(world: Any, code: int = 1) -> None:
    """End the job, once the launcher has had time to read what this rank has printed."""
    time.sleep(0.2)
    world.Abort(code)


def say(what: str) -> None:
    """Print a line about this rank on stderr."""
    show(f"distgnn: {where()} {what}", error=True)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End this process if the region takes longer. The launcher then ends the job.

    A child ends it, as no thread runs while MPI starts: mpi4py holds Python's lock.
    """
    if not seconds:
        yield
        return
    parent, (reads, writes) = os.getpid(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        _watch(parent, reads, seconds)
    os.close(reads)
    try:
        yield
    finally:
        os.close(writes)
        with suppress(ChildProcessError):  # SIGCHLD may be ignored here
            os.waitpid(child, 0)


def _watch(parent: int, reads: int, seconds: float) -> NoReturn:
    """Wait until the parent closes the pipe, by going on or by ending, or until its time is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank = launched()[1]
    # one rank is enough: the others give it the time to end them
    if not select.select([reads], [], [], seconds + min(rank, 20) / 10)[0] and os.getppid() == parent:
        problem = f"MPI did not start in {seconds:g} s: some rank has ended before, or comes late"
        advice = f"{START_VARIABLE} is the limit in seconds, 0 for none"
        with suppress(OSError):
            os.write(2, f"distgnn: error: {problem}; {advice} ({where()})\n".encode())
        os.kill(parent, signal.SIGKILL)
    os._exit(0)


def _mpi() -> Any:
    with warnings.catch_warnings():
        # mpi4py suspects a foreign launcher; check_launcher says it in one line
        warnings.simplefilter("ignore", RuntimeWarning)
        from mpi4py import MPI
    return MPI


def connected_world() -> Any:
    """Return all ranks if MPI is up and connected several, else None."""
    if "mpi4py.MPI" not in sys.modules:
        return None
    mpi = _mpi()
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
