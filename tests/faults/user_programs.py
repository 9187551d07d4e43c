"""Programs of users whose ranks do different things (user_cases.py): does each end, or say where it waits?

    python tests/faults/user_programs.py [--only WORDS] [--workers 2]

Runs each on 4 ranks, with and without DISTGNN_CHECK=1, and a stall limit of 3 s. A program must end by
itself, or say which rank waits where. With the check, only a right program ends with code 0, and each of
those does; one with little memory may. Prints a table; exits with 1 if a program is not as it must be.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import distgnn as dg
from faults.user_cases import CASES, Case
from mpi_helpers.programs import clean_environment, ended, launcher

RANKS, STALL, LIMIT = 4, 3, 24.0
STALLED = re.compile(r"distgnn: rank \d+ on host \S+ has (waited|come to the end)")
NAMED = re.compile(r"\branks? \d|on node \d")  # MPICH calls its ranks nodes


@dataclass
class Outcome:
    """Outcome of a program: its exit code, None where it had to be ended, and what it printed."""

    code: int | None
    said: str
    seconds: float

    def __str__(self) -> str:
        if self.code is None:
            return "says where it waits" if STALLED.search(self.said) else "HANGS"
        wrong = ", wrong numbers" if "WRONG" in self.said else ""
        return f"code {self.code}{wrong}"


def run(case: Case, check: bool, folder: Path) -> Outcome:
    """Run a program on all ranks."""
    program = folder / f"{abs(hash(case.name))}.py"
    program.write_text(case.body)
    own = " ".join(f"export {name}={shlex.quote(value)};" for name, value in case.variables.items())
    own += f" ulimit -v {case.limit};" if case.limit else ""
    shell = f'if [ "$PMI_RANK" = 1 ]; then :; {own} fi; exec "$@"'
    variables = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "DISTGNN_STALL": str(STALL)}
    variables |= {"DISTGNN_CHECK": "1"} if check else {}
    words = [launcher(), "-n", str(RANKS), "sh", "-c", shell, "sh", sys.executable, str(program)]
    start = time.perf_counter()
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=clean_environment(**variables), cwd=folder, start_new_session=True,
    )  # fmt: skip
    code, said, _ = ended(process, LIMIT)
    return Outcome(code, said, time.perf_counter() - start)


def problems(case: Case, check: bool, outcome: Outcome) -> list[str]:
    """List what is not as it must be."""
    wrong = []
    if outcome.code is None and not STALLED.search(outcome.said):
        wrong.append("hangs without a line")
    if case.valid and (outcome.code != 0 or "WRONG" in outcome.said):
        wrong.append("a right program fails")
    enough = case.limit and "WRONG" not in outcome.said  # of memory, this time
    if not case.valid and check and outcome.code == 0 and not enough:
        wrong.append("code 0")
    failed = not case.valid and outcome.code not in (0, None)
    if failed and not case.quiet and not NAMED.search(outcome.said):
        wrong.append("names no rank")
    return wrong


def store(folder: Path) -> None:
    """Make the store that programs train on."""
    graph = dg.gallery.sbm(80, communities=3, features=4)
    dg.prepare(graph.A, graph.features, graph.labels, "0.6/0.2/0.2", out=folder / "graph.dg")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose name has these words")
    parser.add_argument("--workers", type=int, default=2, help="programs at a time")
    args = parser.parse_args()
    chosen = [(case, check) for case in CASES if args.only in case.name for check in (False, True)]
    with tempfile.TemporaryDirectory(prefix="distgnn-users-") as folder:
        store(Path(folder))
        with ThreadPoolExecutor(args.workers) as pool:
            outcomes = list(pool.map(partial(_run, folder=Path(folder)), chosen))
    return table(chosen, outcomes)


def _run(job: tuple[Case, bool], folder: Path) -> Outcome:
    return run(*job, folder)


def table(chosen: list[tuple[Case, bool]], outcomes: list[Outcome]) -> int:
    """Print the table. Returns how many programs are not as they must be, at most 1."""
    print("| program | as it is | s | DISTGNN_CHECK=1 | s |\n|---|---|---|---|---|")
    failed = 0
    for (case, _), plain, checked in zip(chosen[::2], outcomes[::2], outcomes[1::2], strict=True):
        name = f"{case.name} (right)" if case.valid else case.name
        print(f"| {name} | {plain} | {plain.seconds:.1f} | {checked} | {checked.seconds:.1f} |")
        for check, outcome in ((False, plain), (True, checked)):
            for problem in problems(case, check, outcome):
                failed += 1
                print(f"{name}, check {check}: {problem}\n{outcome.said}", file=sys.stderr)
    print(f"\n{len(chosen) // 2} programs, {failed} not as they must be")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
