"""``distgnn export CHECKPOINT OUT``: weights and their network in one file for other programs."""

from __future__ import annotations

import argparse

from distgnn.terminal import printable, show

HELP = "write the weights of a checkpoint as .npz or .safetensors, for PyTorch and others"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("weights", metavar="CHECKPOINT", help="what train --checkpoint wrote")
    parser.add_argument("out", metavar="OUT", help="model.npz, or model.safetensors with that package")
    which_weights = "whose weights (default: the best, if train kept it)"
    parser.add_argument("--which", choices=("best", "last"), help=which_weights)
    parser.add_argument("--force", action="store_true", help="replace an existing OUT")


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_first_rank

    on_first_rank(lambda: show(answer(args)))


def answer(args: argparse.Namespace) -> str:
    from distgnn.train.export import export_weights

    config = export_weights(args.weights, args.out, args.which, args.force)
    widths = "-".join(map(str, config["widths"]))
    line = f"{args.out}: {config['model']} {widths}, weights after epoch {config['epoch']}"
    return printable(line)
