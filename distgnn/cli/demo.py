"""``distgnn demo``: the main job on generated data, from nothing to a report, in under a minute."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from distgnn.cli.train import count

HELP = "make a graph, train it with every algorithm (on 4 ranks unless launched on others), check that they agree, report"
RANKS = 4
TOLERANCE = 1e-4  # of relative differences between losses, as in train --check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", default="distgnn-demo", metavar="DIR", help="where graph, store, logs and report go"
    )
    parser.add_argument(
        "--nodes", type=count, default=20_000, metavar="N", help="nodes of the planted-partition graph"
    )
    parser.add_argument("--epochs", type=count, default=20, metavar="E", help="epochs per algorithm")


def run(args: argparse.Namespace) -> None:
    from distgnn.comm.launch import launched

    if not launched()[2]:
        _relaunch()  # returns only where there is no mpiexec: then one rank must do

    from mpi4py import MPI

    from distgnn.operators import ALGORITHMS

    first = MPI.COMM_WORLD.Get_rank() == 0
    out = Path(args.out)
    _make_store(out, args.nodes)
    if first:
        print(
            f"training on {MPI.COMM_WORLD.Get_size()} ranks, {args.epochs} epochs with each algorithm\n",
            flush=True,
        )
        print(_line(HEADER), flush=True)
    rows = []
    for number, name in enumerate(ALGORITHMS):
        _train(out, name, args.epochs, check=number == 0)
        if first:
            rows.append(read_log(out / f"{name}.jsonl"))
            print(_line(cells(rows[-1], rows[0])), flush=True)
    failed = None
    if first:
        failed = conclude(rows, out)
    if MPI.COMM_WORLD.bcast(failed):
        raise SystemExit(1)


def _relaunch() -> None:
    """Become ``mpiexec -n 4 distgnn demo …``, with the mpiexec that stands beside this Python, or else any."""
    import shutil

    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        print("distgnn: no mpiexec found, so the demo runs on one rank", file=sys.stderr)
        return
    os.execv(mpiexec, [mpiexec, "-n", str(RANKS), sys.executable, "-m", "distgnn", *sys.argv[1:]])


def _make_store(out: Path, nodes: int) -> None:
    """Generate and prepare through the same commands a user would type. Collective."""
    from distgnn.cli import generate, prepare
    from distgnn.cli.first_rank import on_first_rank
    from distgnn.errors import UserError

    def work() -> None:
        if out.exists() and not (out / MARK).exists():
            raise UserError(f"--out {out}: exists and was not made by this command; name another directory")
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).touch()
        graph, store = out / "graph", out / "graph.dg"
        made = [
            "sbm",
            str(graph),
            "--nodes",
            str(nodes),
            "--features",
            "64",
            "--size-exponent",
            "2",
            "--force",
        ]
        print(generate.summary(str(graph), generate.generate(_parse(generate, made))), flush=True)
        print(
            prepare.summary(prepare.prepare(_parse(prepare, [str(graph), str(store), "--force"]))), flush=True
        )

    on_first_rank(work)


MARK = ".distgnn-demo"


def _train(out: Path, algorithm: str, epochs: int, check: bool) -> None:
    """``distgnn train`` with one algorithm; the first is checked against the serial reference, the others
    against it.
    """
    from distgnn.cli import train
    from distgnn.train.run import Job

    words = [
        str(out / "graph.dg"),
        "--algorithm",
        algorithm,
        "--layers",
        "3",
        "--hidden",
        "64",
        "--epochs",
        str(epochs),
    ]
    words += ["--dropout", "0.2", "--log", str(out / f"{algorithm}.jsonl"), "--force", "--quiet"]
    Job(_parse(train, words + (["--check"] if check else []))).run()


def _parse(command: Any, words: list[str]) -> argparse.Namespace:
    from distgnn.cli import Parser

    parser = Parser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def read_log(path: Path) -> dict[str, Any]:
    """What the table and the report need of a run's log."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    start, end = events[0], events[-1]
    losses = [
        math.nan if event["loss"] is None else event["loss"] for event in events if event["event"] == "epoch"
    ]
    return {
        "algorithm": start["config"]["algorithm"],
        "grid": start["grid"],
        "losses": losses,
        "end": end,
        "log": path.name,
    }


HEADER = (
    "algorithm",
    "grid",
    "last loss",
    "largest difference",
    "test accuracy",
    "words per rank",
    "s/epoch",
)


def difference(losses: list[float], others: list[float]) -> float:
    """The largest relative difference between two loss curves; infinite where one is not a number."""
    if not all(math.isfinite(loss) for loss in [*losses, *others]):
        return math.inf
    return max(abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True))


def cells(row: dict[str, Any], reference: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    end = row["end"]
    return (
        row["algorithm"],
        "x".join(str(size) for size in row["grid"].values()),
        f"{row['losses'][-1]:.7f}",
        f"{difference(row['losses'], reference['losses']):.1e}",
        f"{end['test_acc']:.4f}",
        f"{max(end['words']):,}",
        f"{end['epoch_seconds_median']:.3f}",
    )


def _line(values: tuple[str, ...]) -> str:
    widths = (9, 8, 11, 18, 13, 14, 7)
    return "  ".join(
        value.ljust(w) if i < 2 else value.rjust(w)
        for i, (value, w) in enumerate(zip(values, widths, strict=True))
    )


def conclude(rows: list[dict[str, Any]], out: Path) -> bool:
    """Say whether the algorithms agree and write the report. Returns whether they do not."""
    worst = max(difference(row["losses"], rows[0]["losses"]) for row in rows)
    agree = worst <= TOLERANCE
    verdict = (
        f"{rows[0]['algorithm']} equals the serial reference, and all {len(rows)} algorithms have equal losses in all "
        f"{len(rows[0]['losses'])} epochs: largest relative difference {worst:.1e}"
        if agree
        else f"the algorithms DISAGREE: largest relative difference of a loss {worst:.1e}, allowed {TOLERANCE:.0e}"
    )
    table = ["| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    table += ["| " + " | ".join(cells(row, rows[0])) + " |" for row in rows]
    curve = [
        "| " + " | ".join([str(e), *(f"{row['losses'][e - 1]:.7f}" for row in rows)]) + " |"
        for e in _some(rows)
    ]
    head = [
        "| epoch | " + " | ".join(row["algorithm"] for row in rows) + " |",
        "|" + " --- |" * (len(rows) + 1),
    ]
    logs = [f"- `{row['log']}`" for row in rows]
    parts = [
        "# distgnn demo",
        verdict,
        "\n".join(table),
        "Losses:",
        "\n".join(head + curve),
        "Logs:",
        "\n".join(logs),
    ]
    (out / "report.md").write_text("\n\n".join(parts) + "\n")
    print(f"\n{verdict}\nreport: {out / 'report.md'}, logs: {out}/*.jsonl", flush=True)
    return not agree


def _some(rows: list[dict[str, Any]]) -> list[int]:
    """About ten epochs, the first and the last among them."""
    last = len(rows[0]["losses"])
    return sorted({1, last, *range(1, last + 1, max(1, last // 10))})
