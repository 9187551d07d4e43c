"""``distgnn report LOG...``: an HTML page of runs: loss, phases, communication, memory, timeline."""

from __future__ import annotations

import argparse

HELP = "plots and an HTML page from logs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    add = parser.add_argument
    add("logs", nargs="+", metavar="LOG", help="what train --log wrote")
    add("--trace", nargs="+", default=[], metavar="FILE", help="draw timelines of what train --trace wrote")
    add("--out", default="report.html", metavar="FILE", help="the page")
    add("--force", action="store_true", help="replace an existing page")
    # fmt: on


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_first_rank
    from distgnn.report.page import write

    on_first_rank(lambda: write(args.logs, args.trace, args.out, args.force))
