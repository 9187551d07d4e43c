"""``distgnn algorithms``: which paper's product is where, and the command that runs it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from distgnn.report import text
from distgnn.terminal import show

HELP = "the table of what is implemented and where"
COLUMNS = ("name", "title", "paper", "section", "axes", "file", "command")
CODE = ("name", "file", "command")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print it as JSON")
    form.add_argument("--markdown", action="store_true", help="print it as the Markdown table of the README")


def run(args: argparse.Namespace) -> None:
    from distgnn.comm.launch import is_first
    from distgnn.operators import TABLE

    if is_first():
        rows = [dataclasses.asdict(row) for row in TABLE]
        show(json.dumps(rows, indent=2) if args.json else markdown(rows) if args.markdown else plain(rows))


def plain(rows: list[dict[str, Any]]) -> str:
    """Write columns aligned for a terminal."""
    lines = [COLUMNS, *([str(row[column]) for column in COLUMNS] for row in rows)]
    return "\n".join(text.aligned(lines))


def markdown(rows: list[dict[str, Any]]) -> str:
    """Write a Markdown table; names, files and commands as code."""
    cells = ([f"`{row[name]}`" if name in CODE else row[name] for name in COLUMNS] for row in rows)
    return "\n".join(text.markdown(COLUMNS, cells))
