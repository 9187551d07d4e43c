"""Ranks that disagree, and ranks that die before MPI is up: is it named in one line, or does the job hang?

    python tests/faults/disagree.py

In each case one rank of a job is told something else than the others, or can't start. A job must end in 10 s
with another code than 0; a disagreement is one line that names the setting and the rank. Prints a table, and
exits with 1 where a case is not as it must be. Most cases run one after another in one launch of 4 ranks.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import pytest

from distgnn import cli
from mpi_helpers import mpiexec
from mpi_helpers.programs import ROOT

RANKS, ODD, LIMIT = 4, 1, 10.0
TRAIN = "train @/a.dg --epochs 2 --quiet"


@dataclass(frozen=True)
class Case:
    """Argument of one rank that differs from the others'; @ is the folder of all files.

    ``named``: what the error must say. ``environ``: of the odd rank only. ``host``: its working folder, where
    files of the same names have other contents than in ``a``, that of the others.
    """

    name: str
    odd: str
    named: str
    others: str = TRAIN
    environ: dict[str, str] = field(default_factory=dict)
    host: str = "a"


@dataclass(frozen=True)
class Row:
    """Outcome of a case."""

    name: str
    ok: bool
    seconds: float
    code: int
    said: str


def flag(words: str, named: str = "", others: str = TRAIN) -> Case:
    """Make a case in which one rank is given these words as well."""
    return Case(f"{words} on one rank", f"{others} {words}", named or words.split()[0].split("=")[0], others)


SAVED, SET, READ = f"{TRAIN} --checkpoint @/kept", f"{TRAIN} --config x.toml", "prepare x.csv @/out.dg"
TOGETHER = [
    *map(flag, ("--epochs 3", "--algorithm 2d", "--dropout 0.5", "--bias", "--train-features", "--seed 1")),
    *map(flag, ("--lr 0.1", "--optimizer sgd", "--weight-decay 0.1", "--normalize-features", "--hidden 8")),
    *map(flag, ("--layers 3", "--sampler sage", "--dtype float64", "--order original", "--sparsity-aware")),
    *map(flag, ("--eval-every 0", "--checkpoint @/kept", "--log @/log", "--check")),
    flag("--no-keep-aggregate", "--keep-aggregate is yes on ranks 0, 2-3 and no"),
    flag("--resume", others=SAVED),
    Case("DISTGNN_LR on one host", TRAIN, "(?=.*set by DISTGNN_LR)--lr is", environ={"DISTGNN_LR": "0.5"}),
    Case("DISTGNN_SPMM on one host", TRAIN, "DISTGNN_SPMM", environ={"DISTGNN_SPMM": "scipy"}),
    Case("another config file on one host", SET, "--lr is .*set by x.toml", SET, host="b"),
    Case("no config file on one host", SET, "refused .--config x.toml: cannot read it", SET, host="c"),
    Case("another store of equal sizes", TRAIN.replace("a.dg", "b.dg"), "the store's manifest"),
    Case("no store on one host", TRAIN.replace("a.dg", "c.dg"), "the store's manifest is .* No such file"),
    Case("--help on one rank", "train --help", "the command is train .* and help"),
    Case("another command on one rank", "info @/a.dg", "the command is train .* and info"),
    Case("a bad flag on one rank", f"{TRAIN} --nonsense", "unrecognized arguments: --nonsense"),
    Case("another file to prepare on one host", READ, "the size of x.csv is 8 bytes", READ, host="b"),
]


def made(folder: Path) -> None:
    """Make the files of the cases."""
    from distgnn.gallery import PlantedPartition, write
    from distgnn.store import prepare
    from distgnn.store.importers import open_source

    write(PlantedPartition(60, communities=3, features=4), folder / "graph")
    for name, seed in (("a", 0), ("b", 1)):
        orders = ("random", "original")
        prepare(open_source(folder / "graph"), folder / f"{name}.dg", order=orders, seed=seed)
        (folder / name).mkdir()
        (folder / name / "x.toml").write_text(f"lr = 0.{seed + 1}")
        (folder / name / "x.csv").write_text("0,1\n1,2\n" * (seed + 1))
    (folder / "c").mkdir()


def as_rank(folder: Path) -> None:
    """Run all cases of `TOGETHER` on this rank of the job; rank 0 prints a row of each, as JSON."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    for case in TOGETHER:
        odd, start, error = world.rank == ODD, time.perf_counter(), io.StringIO()
        words = (case.odd if odd else case.others).replace("@", str(folder)).split()
        os.chdir(folder / (case.host if odd else "a"))
        with mock.patch.dict(os.environ, case.environ if odd else {}):
            with contextlib.redirect_stderr(error), contextlib.redirect_stdout(error):
                code = cli.main(words)
        ends = world.allgather((code, error.getvalue()))
        if world.rank == 0:
            said, seconds = "".join(text for _, text in ends), time.perf_counter() - start
            one_line = said.startswith("distgnn: error: ranks disagree: ") and said.count("\n") == 1
            named = re.search(rf"{case.named}.* on rank {ODD} \(host ", said)
            right = one_line and named and {code for code, _ in ends} == {2} and seconds < LIMIT
            print(json.dumps(asdict(Row(case.name, bool(right), seconds, code, said.strip()))), flush=True)


def together(folder: Path) -> list[Row]:
    """Return the rows of the cases in one launch; rows after a case that hangs are missing."""
    done = mpiexec(RANKS, __file__, "--rank", folder, timeout=60)
    return [Row(**json.loads(line)) for line in done.out.splitlines() if line.startswith("{")]


def alone(folder: Path, name: str) -> Row:
    """Return the row of a case of `LAUNCHES`."""
    case, start = LAUNCHES[name], time.perf_counter()
    train = TRAIN.replace("@", str(folder)).split()
    words = ["-m", "distgnn", *train, ":", "-n", "1", *case.command(folder), *train]
    try:
        done = mpiexec(1, *words, timeout=LIMIT, env={"DISTGNN_INIT_TIMEOUT": "3"}, cwd=folder)
    except pytest.fail.Exception as hang:
        return Row(name, False, time.perf_counter() - start, 0, f"hang: {hang}")
    said = "\n".join(line for line in done.err.splitlines() if line.startswith("distgnn: "))
    right = done.code != 0 and (re.search(case.named, said) and "\n" not in said if case.named else not said)
    return Row(name, bool(right), time.perf_counter() - start, done.code, said)


@dataclass(frozen=True)
class Launch:
    """A case in a launch of its own: the command of rank 1 up to the words of ``distgnn``, and the end of the
    one line that is said; of none where nobody is left to say it and the launcher ends the job.
    """

    command: Callable[[Path], list[str]]
    named: str


def program(folder: Path, *flags: str) -> list[str]:
    """Return the command that looks for modules in `folder` first."""
    return ["env", f"PYTHONPATH={folder}:{ROOT}", sys.executable, *flags, "-m", "distgnn"]


def without(module: str) -> Callable[[Path], list[str]]:
    """Return a function that makes a module that can't be imported."""

    def command(folder: Path) -> list[str]:
        place = folder / f"no-{module}"
        place.mkdir()
        (place / f"{module}.py").write_text('raise ImportError("not on this node")\n')
        return program(place)

    return command


def changed(file: str, text: str) -> Callable[[Path], list[str]]:
    """Return a function that copies the package with a text after one of its files."""

    def command(folder: Path) -> list[str]:
        place = folder / file.replace("/", "-")
        shutil.copytree(ROOT / "distgnn", place / "distgnn", ignore=shutil.ignore_patterns("__pycache__"))
        with open(place / "distgnn" / file, "a") as opened:
            opened.write(text)
        return program(place)

    return command


def python(code: str) -> Callable[[Path], list[str]]:
    return lambda folder: [sys.executable, "-c", code]


#: The first two are disagreements, the others deaths before MPI is up or before a flag is read.
WHERE = r"rank 1 on host \S+"
LAUNCHES = {
    "other code on one host": Launch(changed("rng.py", "# x"), "disagree: distgnn's code is .* on rank 1"),
    "python -O on one rank": Launch(lambda folder: program(folder, "-O"), "Python is .* with -O on rank 1"),
    "no NumPy on one host": Launch(without("numpy"), f"{WHERE} failed: ImportError: not on this node"),
    "no h5py on one host": Launch(without("h5py"), f"{WHERE} failed: ImportError: not on this node"),
    "no mpi4py on one host": Launch(without("mpi4py"), f"can't start MPI: not on this node .{WHERE}"),
    "distgnn damaged on one host": Launch(changed("cli/config.py", "("), f"{WHERE} failed: SyntaxError"),
    "its first file damaged": Launch(changed("comm/launch.py", "("), f"{WHERE} failed: SyntaxError"),
    "killed before MPI": Launch(python("import os; os.kill(os.getpid(), 9)"), ""),
    "gone before MPI, code 3": Launch(python("raise SystemExit(3)"), "not start in 3 s: .*rank 0 on host"),
}  # fmt: skip
DISAGREEMENTS = len(TOGETHER) + 2


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made(folder)
        rows = [*together(folder), *(alone(folder, name) for name in LAUNCHES)]
    print("| case | as it must be | exit code | seconds | said |\n|---|---|---|---|---|")
    for row in rows:
        said = row.said.replace(f"{folder}/", "").replace("\n", " ")
        print(f"| {row.name} | {'yes' if row.ok else 'NO'} | {row.code} | {row.seconds:.1f} | `{said}` |")
    named, ended = (sum(row.ok for row in part) for part in (rows[:-7], rows[-7:]))
    print(f"\n{named} of {DISAGREEMENTS} disagreements named, {ended} of 7 early deaths end the job")
    return 0 if named == DISAGREEMENTS and ended == 7 else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        as_rank(Path(sys.argv[2]))
    else:
        sys.exit(main())
