"""``distgnn prepare SRC OUT``: import a graph and write it as a sharded store."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distgnn.partition import Quality
    from distgnn.store.write.finish import Summary

HELP = "import a graph, normalise and permute it, and write it as a sharded store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SRC",
        help="what generate wrote, or a file or directory in one of the formats; a directory with NAME_edges.csv, "
        "NAME_target.csv and NAME.json is an edge list with its labels and features",
    )
    parser.add_argument("out", metavar="OUT", help="directory to create, by custom NAME.dg")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a store")

    reading = parser.add_argument_group("reading")
    reading.add_argument(
        "--format",
        default="auto",
        metavar="F",
        help="auto, edges (CSV, TSV), generated, mtx, npz, ogb, planetoid or reddit (default: auto)",
    )
    direction = reading.add_mutually_exclusive_group()
    direction.add_argument(
        "--directed", dest="directed", action="store_true", default=None, help="an edge has one direction"
    )
    undirected = "add every edge's reverse (edge lists: unless told otherwise)"
    direction.add_argument(
        "--undirected", dest="directed", action="store_false", default=None, help=undirected
    )
    reading.add_argument(
        "--weights", action="store_true", help="take edge weights from the source instead of ones"
    )
    reading.add_argument(
        "--features", metavar="FILE", help=".npy, .npz, .csv, or .json with {node: [active features]}"
    )
    reading.add_argument("--labels", metavar="FILE", help=".npy, .npz or .csv with a label for every node")
    reading.add_argument(
        "--split", metavar="A/B/C", help="shares of training, validation and test nodes, such as 0.6/0.2/0.2"
    )
    reading.add_argument(
        "--source-column", metavar="NAME", help="column of an edge list that has the edge's source"
    )
    reading.add_argument(
        "--target-column", metavar="NAME", help="column of an edge list that has the edge's target"
    )
    reading.add_argument(
        "--id-column", metavar="NAME", help="column of the label and feature files that has the node"
    )
    reading.add_argument("--label-column", metavar="NAME", help="column of the label file that has the label")

    writing = parser.add_argument_group("writing")
    writing.add_argument(
        "--order", default="random", metavar="NAMES", help="node orders to write, separated by commas: random, original, or "
        "double (rows and columns permuted differently, for algorithm 3d)",
    )  # fmt: skip
    writing.add_argument(
        "--partition", metavar="METHOD:K[,...]",
        help="further orders METHOD-K, whose K parts become the block rows of " "products: random, metis, metis-volume, hypergraph, volume, or a FILE with every node's part; holds the graph in memory",
    )  # fmt: skip
    writing.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the permutations, the partitions and the split"
    )
    writing.add_argument(
        "--normalize",
        default="gcn",
        choices=("gcn", "row", "none"),
        help="scale by degrees on both sides, by row, or not",
    )
    writing.add_argument(
        "--no-self-loops", dest="self_loops", action="store_false", help="do not add missing self-loops"
    )
    writing.add_argument("--dtype", default="float32", choices=("float32", "float64"), help="of the matrix")
    writing.add_argument(
        "--shards", metavar="RxC", help="grid of shards (default: each has a few million entries)"
    )


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_all_ranks

    on_all_ranks(lambda comm: announce(prepare(args, comm), comm))


def announce(done: Summary, comm: Any) -> None:
    """Print on rank 0 what was done."""
    if comm is None or comm.Get_rank() == 0:
        print(summary(done), flush=True)


def prepare(args: argparse.Namespace, comm: Any = None) -> Summary:
    """Write the store that the command line describes, together with the ranks of `comm`. Collective."""
    from distgnn import partition
    from distgnn.store.write.arguments import check_arguments, parse_shards
    from distgnn.store.write.prepare import prepare as write_store
    from distgnn.store.importers import open_source
    from distgnn.store.source import ImportOptions
    from distgnn.store.write.ranks import of

    team = of(comm)
    order = [name.strip() for name in args.order.split(",")]
    with team.together():
        shards = None if args.shards is None else parse_shards(args.shards)
        partitions = [] if args.partition is None else partition.parse(args.partition)
        written = {
            "order": order, "normalize": args.normalize, "dtype": args.dtype, "force": args.force,
            "partitions": partitions,
        }  # fmt: skip
        check_arguments(args.out, **written)  # before a long import
    names = (
        "features",
        "labels",
        "id_column",
        "label_column",
        "source_column",
        "target_column",
        "split",
        "seed",
        "directed",
        "weights",
    )
    options = ImportOptions(**{name: getattr(args, name) for name in names})
    options.format = None if args.format == "auto" else args.format
    with team.together():
        source = open_source(args.source, options)
    return write_store(
        source, args.out, seed=args.seed, shards=shards, self_loops=args.self_loops, comm=comm, **written
    )


def summary(done: Summary) -> str:
    """What was written, with which features, labels and split, what every partition costs, and what it all
    took: a line each.
    """
    direction = "directed" if done.directed else "undirected"
    content = [f"{done.width} features" if done.width else "no features"]
    content.append(f"{done.classes} classes, {done.labelled} nodes labelled" if done.classes else "no labels")
    content.append(
        "split " + ", ".join(f"{count} {part}" for part, count in done.split.items())
        if done.split
        else "no split"
    )
    grids = ", ".join(f"{name} {rows}x{cols}" for name, (rows, cols) in done.shards.items())
    return (
        f"{done.out}: {done.n} nodes, {done.nnz} entries from {done.edges} {direction} edges; shards: {grids}\n"
        f"{'; '.join(content)}\n"
        f"{''.join(map(partition_line, done.partitions.items()))}"
        f"{done.seconds:.1f} s, peak memory {done.peak_bytes / 2**20:.0f} MiB"
    )


def partition_line(made: tuple[str, Quality]) -> str:
    """An order by partition in a line."""
    from distgnn.partition import largest_over_mean

    name, q = made
    parts = len(q.nodes)
    empty = f"; {q.empty} of the {parts} parts are empty" if q.empty else ""
    return (
        f"{name}: sparsity-aware 1D on {parts} ranks moves {q.volume} rows, max/mean sent {largest_over_mean(q.sends):.2f}; "
        f"non-zeros max/mean {largest_over_mean(q.nonzeros):.2f}{empty}\n"
    )
