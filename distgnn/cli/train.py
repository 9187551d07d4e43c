"""``distgnn train STORE``: training on the full graph by any algorithm, or on sampled minibatches."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distgnn.cli.values import checked, count, fetching, natural, numbers, widths

if TYPE_CHECKING:
    from distgnn.train.settings import Settings

HELP = "train a GCN or GraphSAGE on a store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # Names and defaults are those of train.Settings; what has no default here depends on other settings.
    # fmt: off
    switch: Any = {"action": argparse.BooleanOptionalAction}
    parser.add_argument("store", metavar="STORE", help="what prepare made")
    where = parser.add_argument_group("algorithm").add_argument
    where("--algorithm", metavar="NAME",
          help="see distgnn algorithms, or auto: the fastest by a plan (default: 1d; 3d on order double; of "
          "minibatches 1.5d)")
    where("--grid", metavar="SHAPE",
          help="2x2 in the order of its axes, or rows=2,cols=2, the last within a node (default: by a plan)")
    where("--replication", type=count, metavar="C", help="copies of 1.5d, as --grid reps=C (minibatches: 1)")
    where("--machine", metavar="NAME|FILE",
          help="to plan for (default: infiniband-cpu or, of GPUs, dgx-a100, with this job's ranks per node)")
    where("--sparsity-aware", type=fetching, nargs="?", const=True, metavar="auto",
          help="1d and 1.5d: send only the rows needed; =auto: or whole blocks where estimated to be faster")
    where("--overlap", **switch, default=True, help="let blocks travel while others are multiplied")
    where("--product-order", choices=("auto", "aggregate-first", "transform-first"), default="auto",
          help="(A H) W, A (H W), or in each layer the one that multiplies fewer columns by A (default)")
    where("--keep-aggregate", **switch, default=True,
          help="multiply features that neither training nor dropout changes by A only once")
    where("--block-rows", type=count, metavar="N",
          help="3d and 1.5d: sum products in row blocks of N while the next is multiplied (default: by size)")
    where("--tune-gemm", **switch, default=True, help="time the forms of dense products, take the fastest")
    where("--order", metavar="NAME",
          help="node order of the store (default: the first that will do; of auto by a plan)")
    where("--dtype", choices=("float32", "float64"), default="float32", help="of all matrices")
    where("--backend", choices=("auto", "numpy", "cupy"), help="of arrays (default: a GPU if there is one)")
    batches = parser.add_argument_group("minibatches").add_argument
    batches("--sampler", choices=("sage", "ladies", "fastgcn", "saint", "none"),
            help="train on minibatches drawn like this (default: none, but on the whole graph)")
    batches("--fanout", type=widths, metavar="S[,S...]",
            help="per layer, that next to the batch first: sage: neighbours per node (default 10); "
            "ladies, fastgcn: nodes per layer (512); saint: one number, nodes of the subgraph (512)")
    batches("--batch-size", type=count, metavar="B", help="training nodes of a minibatch (default: 1024)")
    batches("--batches-per-update", type=count, metavar="N",
            help="minibatches averaged in an update by all ranks (default: 8, or the number of ranks)")
    batches("--bulk", type=count, metavar="K", help="minibatches that a rank samples at a time (default: 4)")
    batches("--partition-graph", action="store_true", default=None,
            help="cut the graph to sample from over the ranks (default: all of it on each)")
    batches("--importance", choices=("zou", "counts"),
            help="ladies: sums of squared weights (Zou et al., default) or squared numbers of neighbours")
    batches("--rescale", **switch, help="gcn: divide by inclusion probabilities, for no bias (default: yes)")
    net = parser.add_argument_group("network").add_argument
    net("--model", choices=("gcn", "sage"), help="sage: GraphSAGE with means (default: as --sampler)")
    net("--layers", type=count, metavar="L", help="how many (default: one more than --hidden has widths)")
    net("--hidden", type=widths, default=[16], metavar="F[,F...]", help="widths, one for all or one for each")
    net("--bias", **switch, default=False, help="a bias in every layer (default: no)")
    net("--residual", **switch, default=False,
        help="add the input of a layer to its output, where they are as wide, but in the last (default: no)")
    net("--layer-norm", **switch, default=False, help="of every layer's output but the last (default: no)")
    net("--dropout", type=float, default=0.0, metavar="P", help="dropped share of every layer's input")
    net("--train-features", action="store_true", help="train the features too")
    net("--normalize-features", action="store_true", help="divide every row of the features by its sum")
    steps = parser.add_argument_group("training").add_argument
    steps("--epochs", type=count, default=200, metavar="N",
          help="passes over the training nodes since training began; on the full graph each is an update")
    steps("--optimizer", choices=("adam", "adamw", "sgd"), default="adam", help="what makes the updates")
    steps("--lr", type=float, default=0.01, metavar="X", help="step size")
    steps("--momentum", type=float, default=0.0, metavar="X", help="of sgd")
    steps("--weight-decay", type=numbers, default=[0.0], metavar="X[,X...]", help="one, or one per layer")
    steps("--clip", type=float, metavar="X", help="scale gradients down to this norm of all of them together")
    steps("--schedule", metavar="NAME",
          help="of the step size: cosine, step:30,0.5 (halve it every 30 epochs) or plateau:10,0.5 (halve it "
          "when validation was not better for 10) (default: it stays)")
    steps("--warmup", type=natural, default=0, metavar="N", help="let the step size rise for N epochs first")
    steps("--keep-best", choices=("val",), help="keep the weights of the epoch with the best validation")
    steps("--patience", type=count, metavar="N", help="stop when validation was not better for N epochs")
    steps("--seed", type=int, default=0, metavar="S", help="of weights, dropout, minibatches and samples")
    steps("--eval-every", type=natural, default=1, metavar="EPOCHS",
          help="between scores, which are of the weights before an epoch's update; 0: at the end")
    steps("--metric", choices=("accuracy", "f1", "rocauc"),
          help="where nodes may have several classes: f1, micro F1 (default), or rocauc, the mean ROC-AUC of "
          "the classes, as for ogbn-proteins; else accuracy")
    out = parser.add_argument_group("output").add_argument
    out("--log", metavar="FILE", help="write JSON lines")
    out("--trace", metavar="FILE", help="write what every rank did when, for ui.perfetto.dev and report")
    out("--checkpoint", metavar="DIR", help="keep weights and optimiser state here")
    out("--checkpoint-every", type=natural, default=0, metavar="EPOCHS", help="between saves, 0: at the end")
    out("--resume", action="store_true", help="go on from --checkpoint, on any grid, and in --log")
    out("--force", action="store_true", help="replace an existing --log, --trace or --checkpoint")
    out("--check", type=checked, nargs="?", const=True, default=False, metavar="N|all",
        help="train serially beside, on rank 0, for 5 updates, N or all, and fail if a loss differs")
    out("--verify", action="store_true", help="compare every byte of the store with its checksums first")
    # fmt: on


def run(args: argparse.Namespace, comm: Any = None) -> int:
    """Returns the exit code."""
    from distgnn.cli.console import train

    return train(args.store, settings(args), comm, args.machine)


def settings(args: argparse.Namespace) -> Settings:
    """What the command line says. ``--sampler none`` undoes what a file or the environment says."""
    from distgnn.train.settings import FOR_MINIBATCHES, Settings

    undone = ("sampler", *FOR_MINIBATCHES) if args.sampler == "none" else ()
    skipped = ("command", "config", "machine", "store", "verbose", "log_dir", *undone)
    return Settings(**{name: value for name, value in vars(args).items() if name not in skipped})
