"""Programs that use the library: their hooks are theirs, until they ask that an error ends the job."""

from __future__ import annotations

import sys
import textwrap
import threading
from pathlib import Path

import pytest
from mpi4py import MPI

import distgnn as dg
from mpi_helpers import Finished, mpiexec

#: After an MPI abort Hydra returns the abort's code, or now and then that of the ranks it killed.
ABORTED = {1, 9}


def run_program(folder: Path, ranks: int, body: str) -> Finished:
    """Run a program of somebody who uses the library on a grid of all ranks."""
    source = """
        import threading
        import numpy as np
        from mpi4py import MPI
        import distgnn as dg

        world = MPI.COMM_WORLD
        """
    program = textwrap.dedent(source) + textwrap.dedent(body)
    (folder / "program.py").write_text(program)
    return mpiexec(ranks, folder / "program.py", timeout=40)


FAILING_THREAD = """
    def work():
        raise ValueError("of the caller's own")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    """


@pytest.mark.parametrize("split", [False, True])
def test_an_exception_in_a_thread_of_the_caller_ends_nothing(tmp_path: Path, split: bool) -> None:
    comm = "world.Split(world.rank % 2)" if split else "world"
    body = f"grid = dg.Grid({comm})\nif world.rank == 1:"
    body += textwrap.indent(textwrap.dedent(FAILING_THREAD), "    ")
    body += "matrix = np.eye(8, dtype=np.float32)\n"
    body += 'A = dg.distribute(matrix, grid, "1d")\n'
    body += "import os\n"
    body += "os.write(1, f'{world.rank} {A.nnz}\\n'.encode())\n"  # a line at once
    result = run_program(tmp_path, 4, body)
    assert result.code == 0, result.err
    assert sorted(result.out.splitlines()) == [f"{rank} 8" for rank in range(4)]
    assert result.err.count("ValueError: of the caller's own") == 1


@pytest.mark.ranks(1, 4)
def test_a_grid_leaves_the_hooks_of_its_process_alone(comm, backend) -> None:
    before = sys.excepthook, threading.excepthook
    dg.Grid(comm, backend=backend).free()
    assert (sys.excepthook, threading.excepthook) == before


FAILING_RANK = """
    if world.rank == 1:
        raise ValueError("a bug")
    grid.world.gather_objects(world.rank)
    """


@pytest.mark.parametrize("ranks", [2, 4])
def test_after_abort_on_error_an_exception_on_one_rank_ends_all(tmp_path: Path, ranks: int) -> None:
    body = "dg.abort_on_error()\ngrid = dg.Grid(world)\n" + textwrap.dedent(FAILING_RANK)
    result = run_program(tmp_path, ranks, body)
    assert result.code in ABORTED
    assert "distgnn: rank 1 on host" in result.err and "failed: ValueError: a bug" in result.err


def test_after_abort_on_error_an_exception_in_a_thread_ends_all(tmp_path: Path) -> None:
    body = textwrap.dedent("dg.abort_on_error()\nif world.rank == 1:\n")
    body += textwrap.indent(textwrap.dedent(FAILING_THREAD), "    ") + "world.recv()\n"
    result = run_program(tmp_path, 3, body)
    assert result.code in ABORTED
    assert "ValueError: of the caller's own" in result.err


def test_an_exception_that_leaves_the_block_ends_all_even_where_it_is_caught(tmp_path: Path) -> None:
    body = """
        grid = dg.Grid(world)
        try:
            with dg.abort_on_error():
                if world.rank == 1:
                    raise ValueError("a bug")
                grid.world.gather_objects(world.rank)
        except ValueError:
            world.recv()
        """
    result = run_program(tmp_path, 3, body)
    assert result.code in ABORTED
    assert "failed: ValueError: a bug" in result.err


def test_the_hooks_of_before_come_back(monkeypatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # a command of an earlier test has its own
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    before = sys.excepthook, threading.excepthook
    with dg.abort_on_error():
        assert sys.excepthook is not before[0] and threading.excepthook is not before[1]
    assert (sys.excepthook, threading.excepthook) == before
    installed = dg.abort_on_error()
    sys.excepthook = other = lambda *args: None  # somebody else's, installed later
    installed.undo()
    assert (sys.excepthook, threading.excepthook) == (other, before[1])


def test_on_one_rank_the_block_passes_exceptions_on() -> None:
    if MPI.COMM_WORLD.size > 1:
        pytest.skip("of a program without a launcher")
    before = sys.excepthook
    with pytest.raises(ValueError, match="a bug"), dg.abort_on_error():
        raise ValueError("a bug")
    assert sys.excepthook is before
