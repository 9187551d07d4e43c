"""``distgnn predict STORE``: what a trained network says of every node, in a file."""

from __future__ import annotations

import argparse
from typing import Any

from distgnn.cli.flags import add_setting
from distgnn.cli.train import REPORT
from distgnn.cli.values import count
from distgnn.terminal import printable, show

HELP = "classes, probabilities or embeddings of all nodes, from a checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    add = parser.add_argument
    add("store", metavar="STORE", help="what prepare made; the graph trained on, or another prepared alike")
    add("--checkpoint", metavar="DIR", required=True, help="what train --checkpoint wrote")
    add("--out", metavar="FILE", required=True,
        help=".npz: label and probability by node, or prediction; .csv: a line for each node")
    add("--layer", type=count, metavar="L", help="the embeddings after this layer, the first is 1, instead")
    add_setting(parser, "metric", "to print (default: accuracy, f1, or r2)")
    add("--report", action="store_true", help=REPORT)
    add("--which", choices=("best", "last"), help="whose weights (default: the best, if train kept it)")
    add_setting(parser, "algorithm", "see distgnn algorithms (default: 1d, or 3d on order double)")
    add_setting(parser, "grid", "2x2, or rows=2,cols=2")
    add_setting(parser, "order", "node order of the store (default: the first that will do)")
    add_setting(parser, "backend")
    add("--force", action="store_true", help="replace an existing FILE")
    # fmt: on


def run(args: argparse.Namespace, comm: Any = None) -> None:
    from distgnn.nn.loss import checked_metric
    from distgnn.report.metrics import scores
    from distgnn.train.predict import Predictor

    how = args.algorithm, args.grid, args.order, args.backend, args.which
    predictor = Predictor(args.store, args.checkpoint, comm, *how)
    checked_metric(args.metric, predictor.loss)  # before a long pass
    report = predictor.report() if args.report else None
    path = predictor.write(args.out, args.layer, args.force)
    measured = predictor.scores(args.metric)
    if predictor.grid.rank == 0 and not args.quiet:
        score_texts = "".join(f", {text}" for text in scores(measured))
        line = f"{path}: {predictor.store.n} nodes, by the weights after epoch {predictor.epoch}{score_texts}"
        show(printable(line))
    if report is not None:
        show(report)
