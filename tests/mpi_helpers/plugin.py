"""pytest plugin for MPI: a test has one outcome for all ranks, one rank prints it, and no run hangs.

- ``comm`` is a communicator of 1, 2, 3, 4, 6, 8, 9 and 12 ranks in turn (or of those in
  ``@pytest.mark.ranks(2, 4)``), as far as the launch has them. Tests on few ranks come first; ranks beyond
  do not run them, and sleep until their own tests begin.
- A failure on one rank fails the test on every rank, with the failing rank's message.
- Rank 0 prints the report; what the other ranks would print goes to files, whose folder is named after a
  failure.
- A test longer than its limit (pytest-timeout's), or ranks that wait for one that failed, end the run with
  the stacks of all ranks.
- ``--budget`` ends a run that has no more time between two tests.

pytest-mpi and pytest-timeout may be missing: then their options and marks are defined here.
"""

from __future__ import annotations

import ast
import gc
import math
import re
import shutil
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from _pytest.terminal import TerminalReporter
from mpi4py import MPI

from mpi_helpers import cases, communicators, gpu
from mpi_helpers.watchdog import Watchdog

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    group = parser.getgroup("mpi", "tests on several ranks")
    if not pluginmanager.hasplugin("pytest_mpi"):
        group.addoption("--with-mpi", action="store_true", help="without effect: such tests always run")
        group.addoption("--only-mpi", action="store_true", help="leave out tests that have one rank")
    if not pluginmanager.hasplugin("timeout"):
        group.addoption("--timeout", type=float, metavar="S", help="seconds that a test may take")
        parser.addini("timeout", "seconds that a test may take")
    group.addoption(
        "--budget", type=float, default=math.inf, metavar="S", help="start no test after S seconds"
    )
    group.addoption(
        "--ranks-above", type=int, default=0, metavar="P", help="leave out `comm` of up to P ranks"
    )
    group.addoption(
        "--quick", action="store_true", help="few tests: one case of each, at most 4 ranks, none slow"
    )
    group.addoption(
        "--each-value", action="store_true", help="cases of each test that have all values of its parameters"
    )
    group.addoption(
        "--grace", type=float, default=10, metavar="S", help="seconds for other ranks to end after one failed"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ranks(*sizes): sizes of `comm` that this test runs on")
    config.addinivalue_line("markers", "mpi: runs on every rank of the launch")
    config.addinivalue_line("markers", "timeout(seconds): what the test may take")
    config.addinivalue_line("markers", "abandons: an error in this test leaves messages under way")
    config.addinivalue_line("markers", "programs: starts whole jobs; run by make test-programs")
    config.addinivalue_line("markers", "slow: takes over half a second; not in --quick")
    config.pluginmanager.register(Collective(config), "collective")


class Collective:
    """State of this rank in the run; collective to make and in every hook."""

    def __init__(self, config: pytest.Config) -> None:
        # whatever a failing test leaves in its communicators, ours stays in order
        self.control = MPI.COMM_WORLD.Dup()
        self.groups = {SIZE: self.control}  # by number of ranks: in which a test agrees on its outcome
        self.present = 1  # ranks that run tests by now
        self.end = time.monotonic() + config.getoption("budget")
        self.over, self.not_run = False, 0  # whether the budget is spent, as rank 0 says
        # before this rank's first test: failures, whether they ended the run, `over`; rank 0 tells
        self.missed: tuple[int, Any, bool] | None = (0, False, False) if RANK == 0 else None
        folder = tempfile.mkdtemp(prefix="distgnn-ranks-") if RANK == 0 else None
        self.folder = Path(self.control.bcast(folder))
        self.watchdog = Watchdog(self.folder)
        self.config = config
        if RANK > 0:
            log = open(self.folder / f"rank-{RANK}.log", "w", buffering=1)
            config.pluginmanager.unregister(name="terminalreporter")
            config.pluginmanager.register(TerminalReporter(config, log), "terminalreporter")

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Ignore files that have no test for this rank, with --only-mpi, or none that `-m programs` chooses.

        So not every rank imports them and makes their tests first.
        """
        if not collection_path.match("test_*.py"):
            return None
        if config.getoption("markexpr") == "programs":
            return None if PROGRAMS_MARK.search(collection_path.read_text()) else True
        if not config.getoption("only_mpi", False):
            return None
        least = max(config.getoption("ranks_above"), RANK)
        return True if most_ranks(collection_path.read_text()) <= least else None

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Iterator[None]:
        yield  # all parameters are known afterwards
        cases.choose(metafunc)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out sizes that this launch does not have or another covers, and with --only-mpi the serial
        tests. The rest in the order of their sizes; each rank keeps those that it takes part in.
        """
        kept, left_out = [], []
        for item in items:
            size = _comm_size(item)
            if size is not None:
                item.add_marker(pytest.mark.mpi)
            fits = size is None or config.getoption("ranks_above") < size <= SIZE
            serial = config.getoption("only_mpi", False) and not item.get_closest_marker("mpi")
            long = config.getoption("quick") and not cases.quick(item, cases.parameters(item))
            (left_out if serial or long or not fits else kept).append(item)
        items[:] = [item for item in sorted(kept, key=_ranks) if _ranks(item) > RANK]
        config.hook.pytest_deselected(items=left_out)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Check that all ranks run the same tests: else they would wait for each other."""
        gc.collect()
        gc.freeze()  # thousands of tests, in which each collection would look
        mine = (session.testsfailed, [(item.nodeid, _ranks(item)) for item in session.items])
        failed, tests = self.control.bcast(mine)  # rank 0 takes part in all
        expected = (failed, [test for test in tests if test[1] > RANK])
        if self.control.allreduce(mine != expected, MPI.LOR):
            pytest.exit(f"rank {RANK}: the ranks collected different tests", returncode=1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run one test on all its ranks, agree on the outcome, then report."""
        if not self.meet(item.session, _ranks(item)):
            return True
        if self.over:
            self.not_run += 1
            return True
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self.watchdog.watch(item.nodeid, _limit(item))
        reports = self.agree(runtestprotocol(item, log=False, nextitem=nextitem), _ranks(item))
        self.watchdog.rest()
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Keep the others from the test where one rank's setup fails."""
        report = yield
        if report.failed:
            self.watchdog.hurry(self.config.getoption("grace"), _text(report))
        together = self.groups[_ranks(item)]
        if call.when == "setup" and any_of(together, report.failed) and not report.failed:
            report.outcome, report.longrepr = "failed", ELSEWHERE
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Any:
        """Let ranks that begin later wait here, where no test's time runs."""
        if session.items:
            self.await_turn()
        return (yield)

    def await_turn(self) -> None:
        """Sleep until rank 0 comes to this rank's first test, or to the end."""
        if self.missed is None:
            while not self.control.Iprobe(0):
                time.sleep(0.02)  # a blocking receive would poll while the others' tests run
            self.missed = self.control.recv(source=0)

    def meet(self, session: pytest.Session, size: int) -> bool:
        """Tell ranks that begin with this test of earlier failures; return True if it is to be run."""
        if RANK == 0:
            for rank in range(self.present, size):
                stop = session.shouldfail or session.shouldstop
                self.control.send((session.testsfailed, stop, self.over), rank)
        elif self.present == 1 and self.missed is not None:
            failed, session.shouldfail, self.over = self.missed
            session.testsfailed += failed
        self.present = max(self.present, size)
        if size not in self.groups and not session.shouldfail:
            self.groups[size] = communicators.first_ranks(size)
        return not session.shouldfail

    def agree(self, reports: list[pytest.TestReport], size: int) -> list[pytest.TestReport]:
        """Make a failure anywhere a failure here; one of the reports returned tells what the others saw."""
        together = self.groups[size]
        own = [_text(report) for report in reports if report.failed and report.longrepr != ELSEWHERE]
        late = RANK == 0 and time.monotonic() > self.end
        told = any_of(together, bool(own) | late << 1)
        self.over = bool(told & 2)
        if not told & 1:
            communicators.free_children()
            return reports
        communicators.abandon(size)
        failures = {rank: "\n".join(texts) for rank, texts in enumerate(together.allgather(own)) if texts}
        carrier = next((report for report in reports if report.failed), None)
        if carrier is None:
            carrier = next((report for report in reports if report.when == "call"), reports[0])
            carrier.outcome = "failed"
        if not own:
            first = min(failures)
            carrier.longrepr = f"rank {first} of {SIZE}: {failures.pop(first)}"
        failures.pop(RANK, None)
        carrier.sections += [
            (f"rank {rank} of {SIZE} failed as well", text) for rank, text in failures.items()
        ]
        return reports

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter, exitstatus: int) -> None:
        if self.not_run:
            terminalreporter.write_line(f"the budget is spent: {self.not_run} tests not run")
        if exitstatus != 0 and RANK == 0 and SIZE > 1:
            terminalreporter.write_line(f"what the other ranks printed: {self.folder}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self.await_turn()
        self.meet(session, SIZE)
        session.exitstatus = self.control.bcast(exitstatus)  # a rank may have had no tests of its own
        if RANK == 0 and (SIZE == 1 or exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED)):
            shutil.rmtree(self.folder, ignore_errors=True)


def any_of(together: MPI.Intracomm, bits: int) -> int:
    """Return the bits that any rank gives. Collective: one word travels; Python objects would take longer."""
    word = array("i", [bits])
    together.Allreduce(MPI.IN_PLACE, [word, MPI.INT], MPI.BOR)
    return word[0]


def _comm_size(item: pytest.Item) -> int | None:
    """Return the size of its ``comm``, if it has one."""
    return item.callspec.params.get("comm") if hasattr(item, "callspec") else None


def most_ranks(text: str) -> float:
    """Return the most ranks that tests in a file may take part in, by its text; 0: all are serial."""
    if MPI_MARK.search(text):
        return math.inf
    if not COMM.search(text):
        return 0
    top = ast.parse(text).body
    inside = (node for one in top if isinstance(one, ast.ClassDef) for node in one.body)
    functions = (node for node in (*top, *inside) if isinstance(node, ast.FunctionDef))
    return max((_most_ranks_of(function) for function in functions), default=0)


def _most_ranks_of(function: ast.FunctionDef) -> float:
    """Return the most ranks of a test or a fixture."""
    marks = " ".join(map(ast.unparse, function.decorator_list))
    collected = function.name.startswith("test") or "fixture" in marks
    if not collected or not {"comm", "shared_tmp_path"} & {one.arg for one in function.args.args}:
        return 0
    sizes = SIZES_MARK.search(marks)
    return max(map(int, sizes[1].split(","))) if sizes else math.inf


def _ranks(item: pytest.Item) -> int:
    """Count the ranks of this launch that take part: those of its ``comm``, all in other tests."""
    return _comm_size(item) or SIZE


COMM, MPI_MARK = re.compile(r"\bcomm\b"), re.compile(r"\bmark\.mpi\b")
PROGRAMS_MARK = re.compile(r"\bmark\.programs\b")
SIZES_MARK = re.compile(r"\bmark\.ranks\(([\d, ]+)\)")
ELSEWHERE = "setup failed on another rank"


def _text(report: pytest.TestReport) -> str:
    """Write a failure as text: its message, the traceback, and the end of the test's output."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else f"failed in {report.when}"
    printed = [f"{name}:\n{text[-2000:]}" for name, text in report.sections if text.strip()]
    return "\n".join([message, report.longreprtext, *printed])


def _limit(item: pytest.Item) -> float:
    """Return the seconds that a test may take: pytest-timeout's limit, and a little more.

    So pytest-timeout acts first where it can.
    """
    mark = item.get_closest_marker("timeout")
    if mark is not None:
        limit = mark.kwargs.get("timeout", mark.args[0] if mark.args else 0)
    else:
        limit = item.config.getoption("timeout", None)
        limit = item.config.getini("timeout") if limit is None else limit
    return (float(limit or 0) or 3600) + 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "comm" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("ranks")
        sizes = mark.args if mark else communicators.SIZES
        above = metafunc.config.getoption("ranks_above")  # what is not made need not be left out
        sizes = [size for size in sizes if above < size <= SIZE] or sizes[:1]
        metafunc.parametrize("comm", sizes, indirect=True, ids=[f"P{size}" for size in sizes])
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", gpu.backends(metafunc), indirect=True)


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> MPI.Intracomm:
    """Return a communicator of the first ranks of the launch, of every size in turn.

    The other ranks do not run the test.
    """
    return communicators.subcomm(request.param)


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield NumPy, and CuPy or its stand-in, with a CUDA-aware MPI and without (see ``gpu.py``)."""
    with gpu.backend(request.param, monkeypatch) as chosen:
        yield chosen


@pytest.fixture(params=[gpu.AWARE, gpu.STAGED])
def stand_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give the machine the stand-in for CuPy while the test runs; return its module of questions."""
    if gpu.real():
        pytest.skip("asks the stand-in, and here is a GPU")
    gpu.aware(request.param == gpu.AWARE, monkeypatch)
    with gpu.stand_in() as asked:
        yield asked


@pytest.fixture
def shared_tmp_path(comm: MPI.Intracomm, tmp_path: Path) -> Path:
    """Return one temporary folder for all ranks of ``comm``.

    pytest-mpi's ``mpi_tmp_path`` needs all ranks of the launch.
    """
    return comm.bcast(tmp_path)
