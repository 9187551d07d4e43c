"""The ranks of a job that prepare a store together, on a file system that they share."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from distgnn.comm.launch import PATIENCE
from distgnn.files.lock import lock_file
from distgnn.store.format.publish import new_directory, writing
from distgnn.store.team import Team

T = TypeVar("T")


class Ranks(Team):
    """The ranks of an mpi4py communicator, which may write `out`. They sleep while they wait."""

    def __init__(self, mpi: Any, out: str | PathLike[str] | None) -> None:
        from distgnn.arrays import backend
        from distgnn.comm.group import Comm
        from distgnn.comm.session import joined

        self.comm = Comm(joined(mpi), backend.get("numpy"))
        self.rank, self.size, self.out = self.comm.rank, self.comm.size, out

    @contextmanager
    def together(self) -> Iterator[None]:
        with self.comm.together():
            with nullcontext() if self.out is None else writing(self.out):  # raise ENOSPC on all ranks
                yield

    def agree(self, facts: Mapping[str, Any]) -> None:
        self.comm.agree(facts)

    def gather_objects(self, value: T) -> list[T]:
        return self.comm.mpi.allgather(value)

    def bcast(self, array: Any, root: int, *, matrix: str = "") -> Any:
        return self.comm.bcast(array, root, matrix=matrix)

    def swap(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        from distgnn.comm.rows import all_to_all

        sizes = self.comm.swap_objects([len(array) for array in arrays])
        came = [np.empty(size, arrays[0].dtype) for size in sizes]
        all_to_all(self.comm, dict(enumerate(arrays)), dict(enumerate(came)), "nodes")
        return came

    def total(self, array: np.ndarray) -> np.ndarray:
        return self.comm.allreduce(array)


def of(mpi: Any, out: str | PathLike[str] | None = None) -> Team:
    """Return the team of a communicator's ranks, which writes `out`; for None, this process alone."""
    return Team() if mpi is None or mpi.Get_size() == 1 else Ranks(mpi, out)


def task(mpi: Any) -> AbstractContextManager[Any]:
    """Return a task of a communicator's ranks, see ``comm/session.py``; for None no MPI is started."""
    if mpi is None:
        return nullcontext()
    from distgnn.comm import session

    return session.task(mpi)


@contextmanager
def shared_directory(
    team: Team, out: str | PathLike[str], *, force: bool, replaceable: Callable[[Path], bool]
) -> Iterator[Path]:  # fmt: skip
    """Open `publish.new_directory` for a team: rank 0 makes it, and names it at the end. Collective.

    Errors inside must be raised on all ranks. An interrupted rank waits for rank 0, which was most likely
    interrupted too, to remove the directory, and then removes what is left.
    """
    with ExitStack() as stack:
        made: Path | None = None
        with team.together():
            if team.rank == 0:
                made = stack.enter_context(new_directory(out, force=force, replaceable=replaceable))
        folder = team.gather_objects(made)[0]
        assert folder is not None
        lock = inode(lock_file(out))
        try:
            yield folder
        except Exception:
            raise
        except BaseException:
            if team.rank > 0:
                time.sleep(PATIENCE)
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):
                    if inode(lock_file(out)) == lock:  # still the lock of rank 0, which ends with this rank
                        lock_file(out).unlink()
            raise
        with team.together():
            stack.close()


def inode(path: Path) -> int | None:
    """Return the inode of the file that has this name now, or None."""
    try:
        return path.stat().st_ino
    except OSError:
        return None
