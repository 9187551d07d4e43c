"""The test machinery itself: run on tiny test files under mpiexec, where it must fail together, end hangs and
print once.
"""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

import pytest
from mpi4py import MPI

from mpi_helpers import Finished, mpiexec, plugin

TESTS = Path(__file__).parent
HEADER = "import pytest, time\nfrom mpi4py import MPI\nWORLD = MPI.COMM_WORLD\n"


def run_tests(folder: Path, ranks: int, source: str, *options: str) -> Finished:
    """Run ``source`` as a test file with the plugin on ``ranks`` ranks."""
    (folder / "test_tiny.py").write_text(HEADER + textwrap.dedent(source))
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --with-mpi -p no:cacheprovider\ntimeout = 30\n")
    (folder / "conftest.py").write_text('pytest_plugins = ["mpi_helpers.plugin"]\n')
    environment = {"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "TMPDIR": str(folder)}
    return mpiexec(ranks, "-m", "pytest", *options, cwd=folder, env=environment)


@pytest.mark.slow
def test_one_case_of_each_test_that_is_not_slow_is_quick(tmp_path: Path) -> None:
    source = """
        def test_alone():
            pass

        @pytest.mark.parametrize("number", range(5))
        def test_cases(number):
            pass

        @pytest.mark.parametrize("other", range(3))
        def test_ranks(comm, other):
            assert comm.size <= 2

        @pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), 1])
        def test_partly_slow(number):
            assert number == 1

        @pytest.mark.slow
        @pytest.mark.parametrize("number", range(2))
        def test_slow(number):
            assert False
        """
    done = run_tests(tmp_path, 2, source, "--quick")
    assert done.code == 0 and "4 passed" in done.out


@pytest.mark.slow
def test_each_value_of_a_parameter_stands_in_some_case(tmp_path: Path) -> None:
    """On one number of ranks after the other."""
    source = """
        SEEN = []

        @pytest.mark.ranks(1, 2, 3, 4)
        @pytest.mark.parametrize("number", range(3))
        @pytest.mark.parametrize("other", "abcd")
        def test_cases(comm, number, other):
            SEEN.append((comm.size, number, other))

        @pytest.mark.ranks(3)
        def test_all(comm):
            seen = set().union(*comm.allgather(SEEN))
            sizes, numbers, others = zip(*seen)
            assert ({*sizes}, len(sizes)) == ({2, 3}, 4)
            assert ({*numbers}, {*others}) == ({*range(3)}, {*"abcd"})
        """
    done = run_tests(tmp_path, 3, source, "--only-mpi", "--ranks-above", "1", "--each-value")
    assert done.code == 0 and "5 passed" in done.out, done.out


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run one launch of 3 ranks in which tests fail on some ranks, on all, and before they begin."""
    source = """
        @pytest.mark.mpi
        @pytest.mark.parametrize("failing", [0, 2])
        def test_broken(failing):
            answer = 41 + WORLD.rank
            assert WORLD.rank != failing, f"the answer is {answer}"

        @pytest.mark.mpi
        def test_broken_on_all():
            assert WORLD.rank + 10 == 9

        @pytest.fixture
        def resource():
            assert WORLD.rank != 1, "no resource"

        @pytest.mark.mpi
        def test_uses_it(resource):
            WORLD.Barrier()

        @pytest.mark.mpi
        def test_next():
            assert WORLD.allreduce(1) == 3
        """
    return run_tests(tmp_path_factory.mktemp("outcomes"), 3, source)


@pytest.mark.slow
def test_all_ranks_go_on_to_the_next_test_and_one_reports(outcomes: Finished) -> None:
    assert outcomes.code == 1
    assert outcomes.out.count("3 failed, 1 passed, 1 error") == 1
    folder = outcomes.out.split("what the other ranks printed: ")[1].split()[0]
    for rank in (1, 2):
        assert "3 failed, 1 passed, 1 error" in Path(folder, f"rank-{rank}.log").read_text()


@pytest.mark.slow
def test_one_failing_rank_fails_all(outcomes: Finished) -> None:
    assert "AssertionError: the answer is 41" in outcomes.out
    assert "rank 2 of 3: AssertionError: the answer is 43" in outcomes.out


@pytest.mark.slow
def test_failures_of_several_ranks_are_all_told(outcomes: Finished) -> None:
    for rank in range(3):
        assert f"assert ({rank} + 10) == 9" in outcomes.out
    assert "rank 1 of 3 failed as well" in outcomes.out and "rank 2 of 3 failed as well" in outcomes.out


@pytest.mark.slow
def test_a_setup_that_fails_on_one_rank_keeps_the_others_out_of_the_test(outcomes: Finished) -> None:
    assert "no resource" in outcomes.out


@pytest.mark.parametrize(
    ("option", "told", "seconds"), [("-q", "2 failed, 2 passed", 1.2), ("-x", "1 failed", 0)]
)
@pytest.mark.slow
def test_ranks_that_begin_later_learn_what_failed(
    tmp_path: Path, option: str, told: str, seconds: float
) -> None:
    """However long they have waited: longer than a test may take."""
    source = f"""
        @pytest.mark.ranks(2, 3)
        @pytest.mark.parametrize("turn", range(2))
        def test_sizes(comm, turn):
            time.sleep({seconds} if comm.size == 2 else 0)
            assert comm.size == 3 or comm.rank == 0
        """
    result = run_tests(tmp_path, 3, source, option, "--timeout=2")
    assert result.code == 1
    assert result.out.count(f" {told} in " if option == "-x" else f"{told} in ") == 1
    folder = result.out.split("what the other ranks printed: ")[1].split()[0]
    assert ("2 passed" in Path(folder, "rank-2.log").read_text()) == (option == "-q")


@pytest.mark.slow
def test_a_spent_budget_ends_the_run_on_all_ranks(tmp_path: Path) -> None:
    """Without pytest-mpi and pytest-timeout, which it need not have."""
    source = """
        @pytest.mark.timeout(20)
        @pytest.mark.ranks(2, 3)
        @pytest.mark.parametrize("turn", range(2))
        def test_sizes(comm, turn):
            time.sleep(0.5)
        """
    absent = "-p no:pytest_mpi -p no:timeout --strict-markers --only-mpi".split()
    result = run_tests(tmp_path, 3, source, *absent, "--budget=0.3")
    assert result.code == 0
    assert "the budget is spent: 3 tests not run" in result.out and "1 passed" in result.out


@pytest.mark.slow
def test_a_hang_is_ended_with_its_stacks(tmp_path: Path) -> None:
    result = run_tests(
        tmp_path,
        3,
        """
        def wait_for_nobody():
            WORLD.recv(source=1 - WORLD.rank)

        @pytest.mark.mpi
        def test_hangs():
            if WORLD.rank < 2:
                wait_for_nobody()
        """,
        "--timeout=1",
    )
    assert result.code != 0
    assert "test_hangs has not ended after 2 s" in result.err
    assert result.err.count("in wait_for_nobody") == 2, "both ranks' stacks, once"
    assert "in agree" in result.err, "and that of the rank which waits at the end of the test"


@pytest.mark.slow
def test_ranks_that_wait_for_a_failed_one_are_ended_with_its_message(tmp_path: Path) -> None:
    result = run_tests(
        tmp_path,
        3,
        """
        @pytest.mark.mpi
        def test_broken():
            assert WORLD.rank != 1, "rank one fell out"
            WORLD.Barrier()
        """,
        "--grace=1",
    )
    assert result.code != 0
    assert "rank one fell out" in result.err
    assert result.err.count("in test_broken") == 2


@pytest.mark.slow
def test_ranks_that_collect_different_tests_stop(tmp_path: Path) -> None:
    result = run_tests(
        tmp_path, 2, "if WORLD.rank == 0:\n    def test_only_here():\n        WORLD.Barrier()\n"
    )
    assert result.code != 0
    assert "collected different tests" in result.out + result.err


@pytest.mark.slow
def test_comm_has_every_size_and_the_launches_share_them(tmp_path: Path) -> None:
    source = """
        def test_sizes(comm):
            assert comm.allreduce(1) == comm.size
            print("SIZE", comm.size)

        @pytest.mark.ranks(2)
        def test_two(comm):
            assert comm.size == 2

        def test_serial():
            pass
        """
    result = run_tests(tmp_path, 4, source, "--only-mpi", "--ranks-above=2", "-rP")
    assert result.code == 0
    assert [line for line in result.out.splitlines() if line.startswith("SIZE")] == ["SIZE 3", "SIZE 4"]
    alone = run_tests(tmp_path, 0, source, "-v")
    assert alone.code == 0
    assert "test_sizes[P1] PASSED" in alone.out
    assert "2 passed" in alone.out


@pytest.mark.slow
def test_ranks_import_the_files_that_have_tests_for_them(tmp_path: Path) -> None:
    for most in (2, 3):
        marks = f"@pytest.mark.programs\n@pytest.mark.ranks({most})" if most == 3 else "@pytest.mark.ranks(2)"
        imported = f"open(f'imported-{most}-{{WORLD.rank}}', 'w').close()"
        source = f"{HEADER}{imported}\n{marks}\ndef test_one(comm): ...\n"
        (tmp_path / f"test_on_{most}.py").write_text(source)
    on_three = ["3-0", "3-1", "3-2"]
    for options, expected in ((["--only-mpi"], ["2-0", "2-1", *on_three]), (["-m", "programs"], on_three)):
        result = run_tests(tmp_path, 3, "", *options)
        assert result.code == 0 and f"{len(expected) // 2} passed" in result.out, result.out
        files = sorted(tmp_path.glob("imported-*"))
        assert [file.name.removeprefix("imported-") for file in files] == expected
        for file in files:
            file.unlink()


@pytest.mark.slow
def test_communicators_that_tests_forget_are_freed(tmp_path: Path) -> None:
    result = run_tests(
        tmp_path,
        2,
        """
        @pytest.mark.parametrize("turn", range(24))
        @pytest.mark.ranks(2)
        def test_forgets(comm, turn):
            for _ in range(50):
                comm.Split(comm.rank, 0).Split(0, 0)
        """,
        "-q",
    )
    assert result.code == 0, result.out
    assert "24 passed" in result.out


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("def test_a(): ...", 0),
        ("def helper(comm): ...", 0),
        ("@pytest.mark.ranks(1, 4)\n@pytest.mark.slow\ndef test_a(comm): ...\ndef test_b(): ...", 4),
        ("@pytest.mark.ranks(2)\ndef test_a(comm): ...\n@pytest.mark.ranks(3)\ndef test_b(comm): ...", 3),
        ("@pytest.mark.ranks(2)\ndef test_a(comm): ...\ndef test_b(shared_tmp_path): ...", math.inf),
        ("@pytest.mark.ranks(*SIZES)\ndef test_a(comm): ...", math.inf),
        ("@pytest.fixture\ndef grid(comm): ...\n@pytest.mark.ranks(2)\ndef test_a(grid): ...", math.inf),
        ("class TestA:\n    def test_a(self, comm): ...", math.inf),
        ("@pytest.mark.mpi\ndef test_a(): ...", math.inf),
    ],
)
def test_files_without_tests_for_so_many_ranks_are_known_by_their_text(text: str, most: float) -> None:
    assert plugin.most_ranks(text) == most


def test_comm_is_what_it_says(comm: MPI.Intracomm) -> None:
    assert comm.allgather(comm.rank) == list(range(comm.size))


@pytest.mark.ranks(1, 4, 12)
def test_shared_tmp_path_is_one_folder(comm: MPI.Intracomm, shared_tmp_path: Path) -> None:
    (shared_tmp_path / str(comm.rank)).touch()
    comm.Barrier()
    assert len(list(shared_tmp_path.iterdir())) == comm.size
