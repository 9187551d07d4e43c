"""``distgnn train STORE``: training on the full graph by any algorithm, or on sampled minibatches."""

from __future__ import annotations

import argparse
from typing import Any

from distgnn.cli.flags import FIELDS, add_setting, in_groups
from distgnn.cli.stop import Stop, handled
from distgnn.train.settings import FOR_MINIBATCHES, NONE, Settings

HELP = "train a GCN, GraphSAGE, GAT or GATv2 on a store"
REPORT = "print a table of precision, recall and F1 by class, and who is taken for whom"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="what prepare made")
    machine = "to plan for (default: these ranks, measured at the start; of GPUs by their name)"
    for group, name in in_groups(parser, FIELDS):
        add_setting(group, name)
        if name == "log":  # of the console, as the machine is of the plan
            group.add_argument("--report", action="store_true", help=REPORT)
        if name == "replication":  # the machine is the plan's and no setting of the run
            group.add_argument("--machine", metavar="NAME|FILE", help=machine)


def run(args: argparse.Namespace, comm: Any = None) -> int:
    """Train; return the exit code."""
    from distgnn.cli.console import train

    stop = Stop()
    with handled(stop.keep):
        return train(args.store, settings(args), comm, args.machine, stop, args.report)


def settings(args: argparse.Namespace) -> Settings:
    """Return the settings of a command line. ``--sampler none`` undoes those of a file or the environment."""
    undone = {*FOR_MINIBATCHES} if args.sampler == NONE else set()
    names = FIELDS.keys() - undone | {"quiet"}
    return Settings(**{name: value for name, value in vars(args).items() if name in names})
