"""``distgnn demo``: the main job on generated data, from nothing to a report, in under a minute."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distgnn.cli.values import count
from distgnn.errors import ArgumentError
from distgnn.report.numbers import size
from distgnn.report.text import markdown
from distgnn.terminal import show

HELP = "make a graph, train it with every algorithm (on 4 ranks by default), check that they agree, report"
RANKS = 4
TOLERANCE = (
    1e-4  # of relative differences between losses in all epochs; train --check is stricter in the first
)
MARK = ".distgnn-demo"
HEADER = "algorithm,grid,last loss,largest difference,test accuracy,messages per rank,s/epoch".split(",")
WIDTHS = (9, 8, 11, 18, 13, 17, 7)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    add = parser.add_argument
    add("--out", default="distgnn-demo", metavar="DIR", help="where graph, store, logs and report go")
    add("--nodes", type=count, default=20_000, metavar="N", help="nodes of the planted-partition graph")
    add("--epochs", type=count, default=20, metavar="E", help="epochs per algorithm")
    # fmt: on


def run(args: argparse.Namespace) -> int:
    """Run the demo; return the exit code, 1 if the algorithms do not agree."""
    from distgnn.comm.launch import launched

    if not launched()[2]:
        _relaunch()  # returns only where there is no mpiexec
    from mpi4py import MPI

    from distgnn.operators import ALGORITHMS

    comm, out = MPI.COMM_WORLD, Path(args.out)
    first, rows = comm.Get_rank() == 0, []
    _make_store(out, args.nodes)
    if first:
        show(f"training on {comm.Get_size()} ranks, {args.epochs} epochs with each algorithm\n")
        show(_line(HEADER))
    for name in ALGORITHMS:
        if _train(out, name, args.epochs):
            return 1
        if first:
            rows.append(read_log(out / f"{name}.jsonl"))
            show(_line(cells(rows[-1], rows[0])))
    return int(comm.bcast(first and conclude(rows, out)))


def _relaunch() -> None:
    """Replace this process by ``mpiexec -n 4 distgnn demo …``, with the mpiexec beside this Python, or else
    any.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        show("distgnn: no mpiexec found, so the demo runs on one rank", error=True)
        return
    os.execv(mpiexec, [mpiexec, "-n", str(RANKS), sys.executable, "-m", "distgnn", *sys.argv[1:]])


def _make_store(out: Path, nodes: int) -> None:
    """Generate and prepare through the same commands a user would type. Collective."""
    from distgnn.cli import generate, prepare
    from distgnn.cli.first_rank import on_first_rank

    def work() -> None:
        if out.exists() and not (out / MARK).exists():
            raise ArgumentError("out", out, "exists and was not made by this command; name another directory")
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).touch()
        graph = out / "graph"
        made = _parse(f"generate sbm @ --nodes {nodes} --features 64 --size-exponent 2 --force", graph)
        show(generate.summary(str(graph), generate.generate(made)))
        stored = _parse("prepare @ @.dg --force", graph)
        show(prepare.summary(prepare.prepare(stored)))

    on_first_rank(work)


def _train(out: Path, algorithm: str, epochs: int) -> int:
    """Run ``distgnn train --check`` with one algorithm, on a grid with as many axes as it can have, the
    squarest; return its exit code. The fastest grid would be block rows for most.
    """
    from mpi4py import MPI

    from distgnn.cli import train
    from distgnn.layout import written
    from distgnn.operators import grids

    possible = grids(algorithm, MPI.COMM_WORLD.Get_size())
    grid = max(possible, key=lambda sizes: (sum(size > 1 for size in sizes.values()), -max(sizes.values())))
    words = f"train @/graph.dg --log @/{algorithm}.jsonl --algorithm {algorithm} --epochs {epochs} "
    words += f"--recipe plain --grid {written(grid)} "
    words += "--layers 3 --hidden 64 --dropout 0.2 --force --quiet --check"
    return train.run(_parse(words, out))


def _parse(words: str, path: Path) -> argparse.Namespace:
    """Parse a command line; @ stands for the path."""
    from distgnn.cli import command_parser

    name, *rest = words.split()
    return command_parser(name).parse_args([word.replace("@", str(path)) for word in rest])


def read_log(path: Path) -> dict[str, Any]:
    """Read the parts of a run's log that the table and the report need."""
    start, *events, end = map(json.loads, path.read_text().splitlines())
    losses = [math.nan if event["loss"] is None else event["loss"] for event in events]
    algorithm, grid = start["config"]["algorithm"], start["grid"]
    return {"algorithm": algorithm, "grid": grid, "losses": losses, "end": end, "log": path.name}


def difference(losses: list[float], others: list[float]) -> float:
    """Return the largest relative difference between two loss curves; infinite where one is not a number."""
    if not all(math.isfinite(loss) for loss in [*losses, *others]):
        return math.inf
    return max(abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True))


def cells(row: dict[str, Any], reference: dict[str, Any]) -> tuple[str, ...]:
    """Return one line of the table."""
    end, apart = row["end"], difference(row["losses"], reference["losses"])
    what = row["algorithm"], "x".join(map(str, row["grid"].values())), f"{row['losses'][-1]:.7f}"
    scores = f"{apart:.1e}", f"{end['test_acc']:.4f}", size(max(end["bytes"]))
    return (*what, *scores, f"{end['epoch_seconds_median']:.3f}")


def _line(values: Sequence[str]) -> str:
    return "  ".join([*map(str.ljust, values[:2], WIDTHS[:2]), *map(str.rjust, values[2:], WIDTHS[2:])])


def conclude(rows: list[dict[str, Any]], out: Path) -> bool:
    """Tell whether the algorithms agree and write the report. Return True if they do not."""
    from distgnn.report.page import write

    epochs, checked = len(rows[0]["losses"]), [row["end"]["check"] for row in rows]
    worst = max(difference(row["losses"], rows[0]["losses"]) for row in rows)
    agree, apart_at_most = worst <= TOLERANCE, f"largest relative difference {worst:.1e}"
    verdict = f"the algorithms DISAGREE: {apart_at_most}, allowed {TOLERANCE:.0e}"
    if agree:
        last, apart = (
            min(check["epochs"][1] for check in checked),
            max(check["largest_difference"] for check in checked),
        )
        serial = (
            f"all {len(rows)} algorithms equal a serial training in epochs 1 to {last}: {apart:.1e} apart"
        )
        verdict = (
            f"{serial}\nall {len(rows)} algorithms have equal losses in all {epochs} epochs: {apart_at_most}"
        )
    shown = sorted({1, epochs, *range(1, epochs + 1, max(1, epochs // 10))})
    losses = [[str(epoch), *(f"{row['losses'][epoch - 1]:.7f}" for row in rows)] for epoch in shown]
    compared = "\n".join(markdown(HEADER, [cells(row, rows[0]) for row in rows]))
    curves = "\n".join(markdown(["epoch", *(row["algorithm"] for row in rows)], losses))
    logs = "\n".join(f"- `{row['log']}`" for row in rows)
    text = f"# distgnn demo\n\n{verdict}\n\n{compared}\n\nLosses:\n\n{curves}\n\nLogs:\n\n{logs}\n"
    (out / "report.md").write_text(text)
    page = out / "report.html"
    write([out / row["log"] for row in rows], [], page, force=True)
    show(f"\n{verdict}\nreport: {page} (open it in a browser), {out / 'report.md'}; logs: {out}/*.jsonl")
    return not agree
