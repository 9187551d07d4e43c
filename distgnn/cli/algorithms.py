"""``distgnn algorithms``: which paper's product is where, and the command that runs it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

HELP = "the table of what is implemented and where"
COLUMNS = ("name", "title", "paper", "section", "axes", "file", "command")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print it as JSON")
    form.add_argument("--markdown", action="store_true", help="print it as the Markdown table of the README")


def run(args: argparse.Namespace) -> None:
    from distgnn.comm.launch import is_first
    from distgnn.operators import TABLE

    if is_first():
        rows = [dataclasses.asdict(row) for row in TABLE]
        print(json.dumps(rows, indent=2) if args.json else markdown(rows) if args.markdown else plain(rows))


def plain(rows: list[dict[str, Any]]) -> str:
    """Columns aligned for a terminal."""
    lines = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def markdown(rows: list[dict[str, Any]]) -> str:
    """A Markdown table; names, files and commands as code."""
    code = {"name", "file", "command"}
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        cells = (
            f"`{cell}`" if column in code else cell for column, cell in zip(COLUMNS, _cells(row), strict=True)
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    values = (row[column] for column in COLUMNS)
    return tuple(
        ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value) for value in values
    )
