"""Jobs that start wrongly or end badly: nobody hangs, one rank speaks, the exit code tells what it was."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from distgnn.comm import launch
from distgnn.errors import UserError
from mpi_helpers import Finished, mpiexec


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (1, 0)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3"}, (4, 3)),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, (2, 1)),
        ({"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0"}, (2, 0)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5"}, (8, 5)),
        # A batch script itself, run once however many tasks the job has.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, (1, 0)),
        # mpiexec inside a Slurm job starts one helper per node with srun.
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "PMI_SIZE": "8", "PMI_RANK": "6"}, (8, 6)),
        ({"PMI_SIZE": "many", "PMI_RANK": "0"}, (1, 0)),
    ],
)
def test_launched(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert launch.launched(environ)[:2] == expected


def test_check_launcher_refuses_many_processes_that_mpi_did_not_connect() -> None:
    environ = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"}
    with pytest.raises(UserError, match=r"OMPI_COMM_WORLD_SIZE=4 announces 4 ranks.*COMM_WORLD has 1"):
        launch.check_launcher(1, environ)
    launch.check_launcher(4, environ)
    launch.check_launcher(1, {"PMI_SIZE": "1", "PMI_RANK": "0"})
    launch.check_launcher(1, {})


def test_limit_threads_under_a_launcher_only_and_never_over_the_user() -> None:
    alone: dict[str, str] = {}
    launch.limit_threads(alone)
    assert alone == {}
    many = {"PMI_SIZE": "4", "PMI_RANK": "0", "MKL_NUM_THREADS": "3"}
    launch.limit_threads(many)
    assert (many["OMP_NUM_THREADS"], many["OPENBLAS_NUM_THREADS"], many["MKL_NUM_THREADS"]) == ("1", "1", "3")


def test_several_threads_of_a_rank_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    many, cores = {"PMI_SIZE": "4", "PMI_RANK": "0"}, "sched_getaffinity"
    monkeypatch.setattr(launch.os, cores, lambda _: {0, 1, 2}, raising=False)
    assert launch.threaded({"OMP_NUM_THREADS": "4,2"}) == "OMP_NUM_THREADS=4,2 gives a rank threads"
    assert launch.threaded(many | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "2"}).startswith("MKL_NUM")
    assert "every rank may take 3 threads" in launch.threaded(many)
    one = {"OPENBLAS_NUM_THREADS": "1"}
    assert [launch.threaded(quiet) for quiet in ({}, one, many | one, {"PMI_SIZE": "1"})] == [""] * 4
    monkeypatch.setattr(launch.os, cores, lambda _: {0}, raising=False)
    assert not launch.threaded(many)


@pytest.mark.slow  # starts MPI jobs
def test_the_first_rank_warns_of_threads_once() -> None:
    program = "import distgnn as dg\nfrom mpi4py import MPI\n"
    program += "for _ in range(2): dg.Grid(MPI.COMM_SELF, backend='numpy')"
    for threads, times in (("2", 1), ("1", 0)):
        done = mpiexec(2, "-c", program, env={"OMP_NUM_THREADS": threads})
        assert done.code == 0 and done.err.count("a rank for each core") == times, done.err


def test_a_small_dev_shm_is_told_before_mpi_starts(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """MPICH 5.0.2 with 2 ranks ends in a bus error in 1 MiB, and works in 3 MiB."""
    told = {}
    for megabytes in (1, 3):
        for ranks, rank in (("1", "0"), ("2", "0"), ("2", "1"), ("4", "0"), ("", "")):
            facts = SimpleNamespace(f_bavail=megabytes << 8, f_frsize=4096)
            monkeypatch.setattr(launch.os, "statvfs", lambda folder, facts=facts: facts)
            launch.warn_of_shared_memory(environ={"MPI_LOCALNRANKS": ranks, "MPI_LOCALRANKID": rank})
            told[megabytes, ranks, rank] = capsys.readouterr().err
    assert {case for case, text in told.items() if text} == {(1, "2", "0"), (1, "4", "0"), (3, "4", "0")}
    line = "distgnn: warning: /dev/shm has 1024 KiB free, MPI takes 2070 KiB and may fail or hang"
    assert told[1, "2", "0"].startswith(line) and told[1, "2", "0"].count("\n") == 1


def test_launchers_say_how_many_ranks_a_node_has() -> None:
    srun = {"SLURM_STEP_TASKS_PER_NODE": "2(x3),5,1(x2)", "SLURM_LOCALID": "1"}
    for environ, expected in (
        ({"MPI_LOCALNRANKS": "3", "MPI_LOCALRANKID": "2", **srun, "SLURM_NODEID": "0"}, (3, 2)),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, (4, 0)),
        ({"MV2_COMM_WORLD_LOCAL_SIZE": "4", "MV2_COMM_WORLD_LOCAL_RANK": "1"}, (4, 1)),
        *(({**srun, "SLURM_NODEID": str(k)}, (ranks, 1)) for k, ranks in enumerate([2, 2, 2, 5, 1, 1])),
        ({**srun, "SLURM_NODEID": "6"}, (1, 0)), (srun, (1, 0)), ({"MPI_LOCALNRANKS": "2"}, (1, 0)),
    ):  # fmt: skip
        assert launch.ranks_here(environ) == expected, environ


@pytest.mark.parametrize("words", ["import distgnn", "import distgnn.__main__", "import mpi4py.MPI, distgnn"])
def test_programs_that_import_the_package_are_told_of_a_small_dev_shm(words: str) -> None:
    """Before MPI starts, once on each node."""
    small = "import os, types; os.statvfs = lambda folder: types.SimpleNamespace(f_bavail=2, f_frsize=4096)"
    alone = mpiexec(0, "-c", f"{small}\n{words}")
    result = mpiexec(3, "-c", f"{small}\n{words}")
    told = result.err.count("distgnn: warning: /dev/shm has 8 KiB free")
    assert (alone.code, alone.err, result.code, told) == (0, "", 0, "mpi4py" not in words), result.err


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.slow
def test_singletons_of_a_foreign_launcher_are_refused(rank: int) -> None:
    environ = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(rank)}
    result = mpiexec(0, "-m", "distgnn", "algorithms", env=environ)
    assert result.code == 2
    assert result.out == ""
    expected = ["distgnn: error: launcher: OMPI_COMM_WORLD_SIZE=2 announces 2 ranks"] if rank == 0 else []
    assert [line.split(", but")[0] for line in result.err.splitlines()] == expected


#: After an MPI abort Hydra returns the abort's code, or now and then that of the ranks it killed.
ABORTED = {1: {1, 9}, 2: {2, 9}}


def run_program(folder: Path, ranks: int, body: str) -> Finished:
    """Run a program whose command does ``body``, framed as the distgnn command frames its own."""
    source = """
        import sys, threading, time
        import distgnn.cli
        from distgnn.errors import UserError

        class Command:
            HELP = "a command of this test"
            add_arguments = staticmethod(lambda parser: parser.add_argument("--n", type=int))

            @staticmethod
            def run(args):
                from mpi4py import MPI
                world = MPI.COMM_WORLD
        """
    program = textwrap.dedent(source) + textwrap.indent(textwrap.dedent(body), " " * 8)
    program += "\ndistgnn.cli.command_module = lambda name: Command\n"
    program += 'sys.exit(distgnn.cli.main(["info", *sys.argv[1:]]))\n'
    (folder / "program.py").write_text(program)
    return mpiexec(ranks, folder / "program.py", timeout=40)


@pytest.mark.parametrize("ranks", [0, 3])
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, ranks: int) -> None:
    result = run_program(tmp_path, ranks, 'raise UserError("no such file: nowhere.dg")\n')
    assert result.code == 2
    assert result.err.splitlines() == ["distgnn: error: no such file: nowhere.dg"]


@pytest.mark.slow
def test_bad_input_seen_by_one_rank_only_still_ends_the_job(tmp_path: Path) -> None:
    body = 'if world.rank == 1:\n    raise UserError("broken shard")\nworld.Barrier()\n'
    result = run_program(tmp_path, 3, body)
    assert result.code in ABORTED[2]
    assert re.search(r"distgnn: error: broken shard \(only on rank 1 on host \S+\)", result.err)


@pytest.mark.parametrize("ranks", [0, 3])
def test_an_exception_on_one_rank_ends_all(tmp_path: Path, ranks: int) -> None:
    result = run_program(
        tmp_path, ranks, 'if world.rank == world.size - 1:\n    raise ValueError("a bug")\nworld.Barrier()\n'
    )
    assert result.code in (ABORTED[1] if ranks else {1})
    assert "ValueError: a bug" in result.err
    assert result.err.count("Traceback") == 1
    told = re.findall(r"^distgnn: (rank \d) on host \S+ failed: ValueError: a bug$", result.err, re.MULTILINE)
    assert told == ["rank 2"] * (ranks > 0)


def test_an_exception_in_a_thread_ends_all(tmp_path: Path) -> None:
    body = """
        def work():
            raise ValueError("a bug")
        if world.rank == 1:
            threading.Thread(target=work).start()
        world.recv()
        """
    result = run_program(tmp_path, 2, body)
    assert result.code in ABORTED[1]
    assert "ValueError: a bug" in result.err
