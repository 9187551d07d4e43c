"""Shared parts of benchmark programs: arguments, the machine's description, and Markdown tables."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from datetime import date
from pathlib import Path

from distgnn.bench.timing import machine
from distgnn.report import text


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints the program's docstring as its help, with ``--out`` and ``--name``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file to append the results to")
    parser.add_argument("--name", default="", help="of the machines and their network, for the heading")
    return parser


def command(ranks: int = 1) -> str:
    """Return the command that started this program, as a reader would repeat it."""
    threads = os.environ.get("OMP_NUM_THREADS")
    setting = f"OMP_NUM_THREADS={threads} " if threads and ranks == 1 else ""
    launcher = f"mpiexec -n {ranks} " if ranks > 1 else ""
    program = f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}"
    return f"{setting}{launcher}{program}".rstrip()


def heading(args: argparse.Namespace, ranks: int = 1) -> str:
    """Return date, command, and the machine; what was measured goes behind it."""
    name = f"{args.name}; " if args.name else ""
    return f"## {date.today()}: `{command(ranks)}`\n\n{name}{machine()}"


def columns(*names: str) -> list[str]:
    """Return the head of a table: the first column to the left, numbers to the right."""
    return text.markdown(names, [], left=1)


def publish(args: argparse.Namespace, results: str) -> None:
    """Print the results, and append them to ``--out``. For rank 0."""
    print(results, flush=True)
    if args.out:
        with args.out.open("a") as file:
            file.write(results.rstrip() + "\n\n")
