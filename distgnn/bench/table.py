"""What benchmark programs share: their arguments, what they ran on, and Markdown tables."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from distgnn.bench.timing import machine


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the program's own help, ``--out`` and ``--name``."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="file to append the results to")
    parser.add_argument("--name", default="", help="of the machines and their network, for the heading")
    return parser


def markdown(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table: the first column to the left, numbers to the right."""
    lines = [f"| {' | '.join(columns)} |", f"|---|{'---:|' * (len(columns) - 1)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def heading(args: argparse.Namespace, about: str, ranks: int = 1) -> str:
    """Date, command and machine, and what was measured."""
    launcher = f"mpiexec -n {ranks} " if ranks > 1 else ""
    program = Path(sys.argv[0]).name
    command = f"{launcher}python benchmarks/{program} {shlex.join(sys.argv[1:])}".rstrip()
    name = f"{args.name}; " if args.name else ""
    return f"## {date.today()}: `{command}`\n\n{name}{machine()}. {about}"


def publish(args: argparse.Namespace, *sections: str) -> None:
    """Print the sections, and append them to ``--out``. For rank 0."""
    text = "\n\n".join(sections) + "\n"
    print(text, flush=True)
    if args.out:
        with args.out.open("a") as file:
            file.write(text + "\n")
