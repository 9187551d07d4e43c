"""``distgnn train STORE``: full-graph training with any of the distributed algorithms, or training on sampled
minibatches.
"""

from __future__ import annotations

import argparse

from distgnn.cli.config import SWITCH

HELP = "train a GCN or GraphSAGE on a store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="what prepare made")
    where = parser.add_argument_group("algorithm")
    where.add_argument(
        "--algorithm", metavar="NAME", help="see distgnn algorithms (default: 1d; of minibatches 1.5d)"
    )
    where.add_argument(
        "--grid", metavar="SHAPE", help="2x2 in the order of its axes, or rows=2,cols=2 (default: the best)"
    )
    where.add_argument(
        "--replication", type=count, metavar="C", help="copies of 1.5d, as --grid reps=C (minibatches: 1)"
    )
    where.add_argument(
        "--sparsity-aware", type=fetching, nargs="?", const=True, default=False, metavar="auto",
        help="1d and 1.5d: send only the rows that are needed; =auto: or whole blocks where that is estimated to be faster",
    )  # fmt: skip
    where.add_argument(
        "--overlap", action=argparse.BooleanOptionalAction, default=True,
        help="let blocks travel while others are multiplied (default: yes)",
    )  # fmt: skip
    where.add_argument(
        "--product-order", choices=("auto", "aggregate-first", "transform-first"), default="auto",
        help="(A H) W, A (H W), or in each layer the one that multiplies fewer columns by A (default)",
    )  # fmt: skip
    where.add_argument(
        "--keep-aggregate", action=argparse.BooleanOptionalAction, default=True,
        help="multiply features that neither training nor dropout changes by A only once (default: yes)",
    )  # fmt: skip
    where.add_argument(
        "--block-rows", type=count, metavar="N",
        help="3d and 1.5d: sum products over ranks in blocks of N rows, while the next is multiplied (default: by size)",
    )  # fmt: skip
    where.add_argument(
        "--tune-gemm", action=argparse.BooleanOptionalAction, default=True,
        help="time the forms of dense products at the start and take the fastest (default: yes)",
    )  # fmt: skip
    where.add_argument("--order", metavar="NAME", help="node order of the store (default: its first)")
    where.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="of all matrices")
    where.add_argument(
        "--backend", choices=("auto", "numpy", "cupy"), help="array library (default: a GPU if there is one)"
    )
    batches = parser.add_argument_group("minibatches")
    batches.add_argument(
        "--sampler", choices=("sage", "ladies", "fastgcn", "saint", "none"),
        help="train on minibatches drawn like this (default: none, but on the whole graph)",
    )  # fmt: skip
    batches.add_argument(
        "--fanout", type=widths, metavar="S[,S...]",
        help="per layer, that next to the batch first: sage: neighbours per node (default 10); ladies, fastgcn: nodes per layer " "(512); saint: one number, nodes of the subgraph (512)",
    )  # fmt: skip
    batches.add_argument(
        "--batch-size", type=count, metavar="B", help="training nodes of a minibatch (default: 1024)"
    )
    batches.add_argument(
        "--batches-per-update", type=count, metavar="N",
        help="minibatches averaged in an update, shared out among the ranks (default: 8, or as many as there are ranks)",
    )  # fmt: skip
    batches.add_argument(
        "--bulk", type=count, metavar="K", help="minibatches that a rank samples at a time (default: 4)"
    )
    batches.add_argument(
        "--partition-graph", action="store_true", default=None,
        help="cut the graph to sample from over the ranks (default: all of it on each)",
    )  # fmt: skip
    batches.add_argument(
        "--importance", choices=("zou", "counts"),
        help="ladies: sums of squared weights as in Zou et al. (default), or squared numbers of neighbours",
    )  # fmt: skip
    batches.add_argument(
        "--rescale", action=argparse.BooleanOptionalAction,
        help="gcn: divide by inclusion probabilities, which leaves no bias (default: yes)",
    )  # fmt: skip
    net = parser.add_argument_group("network")
    net.add_argument(
        "--model",
        choices=("gcn", "sage"),
        help="gcn, or sage: GraphSAGE with the mean of neighbours (default: as --sampler)",
    )
    net.add_argument(
        "--layers",
        type=count,
        metavar="L",
        help="number of layers (default: one more than --hidden has widths)",
    )
    net.add_argument(
        "--hidden",
        type=widths,
        default=[16],
        metavar="F[,F...]",
        help="hidden widths, one for all or one for each",
    )
    net.add_argument(
        "--bias",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="a bias in every layer (default: no)",
    )
    net.add_argument(
        "--dropout", type=float, default=0.0, metavar="P", help="dropped share of every layer's input"
    )
    net.add_argument("--train-features", action="store_true", help="train the features too")
    net.add_argument(
        "--normalize-features", action="store_true", help="divide every row of the features by its sum"
    )
    steps = parser.add_argument_group("training")
    steps.add_argument(
        "--epochs", type=count, default=200, metavar="N",
        help="passes over the training nodes, counted from the start of training; on the full graph each is an update",
    )  # fmt: skip
    steps.add_argument(
        "--optimizer", choices=("adam", "adamw", "sgd"), default="adam", help="what makes the updates"
    )
    steps.add_argument("--lr", type=float, default=0.01, metavar="X", help="step size")
    steps.add_argument("--momentum", type=float, default=0.0, metavar="X", help="of sgd")
    steps.add_argument(
        "--weight-decay", type=numbers, default=[0.0], metavar="X[,X...]", help="one for all or one per layer"
    )
    steps.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of weights, dropout, minibatches and samples"
    )
    steps.add_argument(
        "--eval-every",
        type=natural,
        default=1,
        metavar="N",
        help="epochs between accuracies, 0: at the end only",
    )
    out = parser.add_argument_group("output")
    out.add_argument("--log", metavar="FILE", help="write JSON lines")
    out.add_argument(
        "--trace", metavar="FILE", help="write what every rank did when, for ui.perfetto.dev and report"
    )
    out.add_argument("--checkpoint", metavar="DIR", help="keep weights and optimiser state here")
    out.add_argument(
        "--checkpoint-every",
        type=natural,
        default=0,
        metavar="N",
        help="epochs between saves, 0: at the end only",
    )
    out.add_argument(
        "--resume", action="store_true", help="go on from --checkpoint, on any grid, and in --log"
    )
    out.add_argument(
        "--force", action="store_true", help="replace an existing --log, --trace or --checkpoint"
    )
    out.add_argument("--quiet", action="store_true", help="print nothing but errors")
    out.add_argument(
        "--check",
        action="store_true",
        help="train the serial reference beside, with the whole graph on rank 0, and fail if losses differ by 1e-4",
    )


def run(args: argparse.Namespace) -> None:
    from distgnn.train.run import Job

    Job(args).run()


def natural(text: str) -> int:
    """An int that is at least 0."""
    return _whole(text, 0)


def count(text: str) -> int:
    """An int that is at least 1."""
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    if not text.strip().removeprefix("+").isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number, at least {least}, not {text!r}")
    return int(text)


def fetching(text: str) -> bool | str:
    """ "auto", or a switch as files and the environment write it."""
    word = text.strip().lower()
    if word == "auto":
        return word
    if word not in SWITCH:
        raise argparse.ArgumentTypeError(
            f"expected auto, yes or no, not {text!r} (without a value it must come after STORE)"
        )
    return SWITCH[word]


def widths(text: str) -> list[int]:
    """ "64" or "64,32"."""
    try:
        return [count(word) for word in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers, at least 1, as in 64,32, not {text!r}"
        ) from None


def numbers(text: str) -> list[float]:
    """ "5e-4" or "5e-4,0"."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers, as in 5e-4,0, not {text!r}") from None
