"""``distgnn report LOG...``: an HTML page of runs: loss, phases, communication, memory, timeline."""

from __future__ import annotations

import argparse

from distgnn.cli.values import count
from distgnn.terminal import printable, show

HELP = "make an HTML page of logs: loss, time, scaling, load balance, messages, memory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    add = parser.add_argument
    add("logs", nargs="+", metavar="LOG", help="what train --log wrote")
    add("--trace", nargs="+", default=[], metavar="FILE", help="draw timelines of what train --trace wrote")
    add("-o", "--out", default="report.html", metavar="FILE", help="the page")
    add("--figure", metavar="FILE.svg", help="draw seconds, speed-up, efficiency, words against ranks")
    add("--table", metavar="FILE", help="write the table of scaling, .md or .csv")
    add("--mean-of-last", type=count, metavar="N",
        help="an epoch's seconds are the mean of the last N in scaling (default: the median of all)")
    add("--force", action="store_true", help="replace existing files")
    # fmt: on


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_first_rank
    from distgnn.report.page import write

    given = args.logs, args.trace, args.out, args.force, args.mean_of_last, args.figure, args.table

    def work() -> None:
        write(*given)
        if not args.quiet:
            show(*(printable(name) for name in (args.out, args.figure, args.table) if name))

    on_first_rank(work)
