"""``distgnn prepare SRC OUT``: import a graph and write it as a sharded store."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distgnn.cli.values import AddedUp
from distgnn.store import rules
from distgnn.terminal import printable, show

if TYPE_CHECKING:
    from distgnn.partition import Quality
    from distgnn.store.write.finish import Summary

HELP = "import a graph, normalise and permute it, and write it as a sharded store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = rules.__doc__
    # fmt: off
    parser.add_argument("source", metavar="SRC",
        help="what generate wrote, or a file or directory in one of the formats; see below")
    parser.add_argument("out", metavar="OUT", help="directory to create, by custom NAME.dg")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a store")

    group = parser.add_argument_group("reading")
    reading, direction = group.add_argument, group.add_mutually_exclusive_group().add_argument
    reading("--format", default="auto", metavar="F",
            help="auto, edges (CSV, TSV, JSON lines, Parquet), generated, mtx, npz, ogb, planetoid, pt or "
            "reddit (default: auto)")
    direction("--directed", action="store_true", default=None, help="an edge has one direction")
    direction("--undirected", dest="directed", action="store_false", default=None,
              help="add every edge's reverse (edge lists: unless told otherwise)")
    reading("--weights", action="store_true", help="take edge weights from the source instead of ones")
    reading("--multilabel", action="store_true",
            help="nodes may have several classes, though each has one in the rows of labels that are given")
    reading("--regression", action="store_true",
            help="labels are numbers to predict, one column or those of --label-column; NaN or empty: none")
    reading("--features", metavar="FILE",
            help=".npy, .npz, .csv, .jsonl, .parquet, or .json with {node: [active features]}; or degree, "
            "onehot, random:WIDTH, made of the graph (degree: one column, not scaled)")
    reading("--labels", metavar="FILE",
            help=".csv, .tsv, .txt or .parquet: a node and its label in every line, or a column of 0 and 1 "
            "for each class that nodes may have; .npy, .npz, .json: classes or such rows; or degree:CLASSES, "
            "made of the graph")
    reading("--split", metavar="A/B/C",
            help="shares of training, validation, test, such as 0.6/0.2/0.2; or a FILE like that of labels, "
            "with train, val, test or none; or .npy with 0 none, 1 train, 2 validation, 3 test")
    reading("--ids", metavar="KIND",
            help="of nodes in lists of edges: numbers (0..n-1), integers (any) or text (default: as they "
            "look)")
    reading("--node-list", metavar="FILE", help="a table whose lines are the ids of all nodes, in order; or "
            ".npy")
    reading("--source-column", metavar="NAME", help="column of an edge list that has the edge's source")
    reading("--target-column", metavar="NAME", help="column of an edge list that has the edge's target")
    reading("--weight-column", metavar="NAME", help="column of an edge list that has the weights")
    reading("--feature-columns", metavar="NAMES", help="columns of the feature table, between commas "
            "(default: all but those of ids, labels and parts)")
    reading("--categorical", metavar="NAMES", help="columns of words in it, which become columns of 0 and 1")
    reading("--missing", metavar="HOW", default="refuse", help="a feature without a number is mean (of its "
            "column), zero, or refused (default: refuse)")
    reading("--separator", metavar="MARK", help="of columns in text: tab, comma, semicolon, bar, blank or a "
            "character (default: the one that cuts all lines evenly)")
    reading("--comments", metavar="MARK", help="text behind it is left out, such as #; none: no line is a "
            "comment (default: lines with # or %% before the first row)")
    reading("--id-column", metavar="NAME", help="column of the label and feature files that has the node")
    reading("--label-column", metavar="NAME", help="column of the label file that has the label, needed if "
            "several could; or some, between commas, of 0 and 1")

    writing = parser.add_argument_group("writing").add_argument
    writing("--order", action=AddedUp, default="random", metavar="NAMES",
            help="node orders to write, separated by commas: random, original, or double (rows and columns "
            "permuted differently, for algorithm 3d)")
    writing("--partition", action=AddedUp, metavar="METHOD:K[,...]",
            help="further orders METHOD-K, whose K parts become the block rows of products: random, metis, "
            "metis-volume, kaminpar, hypergraph, volume, auto, or a FILE with every node's part; holds the "
            "graph in memory")
    writing("--seed", type=int, default=0, metavar="S", help="of permutations, partitions and split")
    writing("--normalize", default="gcn", choices=("gcn", "row", "none"),
            help="scale by degrees on both sides, by row, or not")
    writing("--no-self-loops", dest="self_loops", action="store_false", help="do not add missing self-loops")
    writing("--dtype", default="float32", choices=("float32", "float64"), help="of the matrix")
    writing("--shards", metavar="RxC", help="grid of shards (default: each has a few million entries)")
    # fmt: on


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_all_ranks

    def work(comm: Any) -> None:
        done = prepare(args, comm)
        if not args.quiet and (comm is None or comm.Get_rank() == 0):
            show(summary(done))

    on_all_ranks(work)


def inputs(args: argparse.Namespace) -> dict[str, str]:
    """Return the sizes of the files that every rank reads, which ranks compare."""
    parts = [part.strip() for part in (args.partition or "").split(",")]
    given = (args.source, args.features, args.labels, args.split, args.node_list)
    named = [name for name in (*given, *parts) if name and (name == args.source or ":" not in name)]
    return {f"the size of {name}": size(Path(name)) for name in named if Path(name).parts}


def size(path: Path) -> str:
    """Return the size of a file, or of the files in a directory."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        total = sum(file.stat().st_size for file in files if file.is_file() or file == path)
    except OSError as error:
        return f"not to be read: {error.strerror}"
    return f"{total} bytes{f' in {len(files)} files' if path.is_dir() else ''}"


def prepare(args: argparse.Namespace, comm: Any = None) -> Summary:
    """Write the store that the command line describes, together with the ranks of `comm`. Collective."""
    from distgnn import partition
    from distgnn.cli import command_parser, config
    from distgnn.errors import UserError
    from distgnn.store.importers import open_source
    from distgnn.store.source import ImportOptions
    from distgnn.store.write.arguments import check_arguments, parse_shards
    from distgnn.store.write.prepare import prepare as write_store
    from distgnn.store.write.ranks import of

    team = of(comm)
    written: dict[str, Any] = {"order": [name.strip() for name in args.order.split(",")]}
    written |= {name: getattr(args, name) for name in ("normalize", "dtype", "force")}
    with team.together():
        shards = None if args.shards is None else parse_shards(args.shards)
        written["partitions"] = [] if args.partition is None else partition.parse(args.partition)
        check_arguments(args.out, **written)  # before a long import
    known = {field.name for field in dataclasses.fields(ImportOptions)}
    options = ImportOptions(**{name: value for name, value in vars(args).items() if name in known})
    options.format = None if args.format == "auto" else args.format
    with team.together():
        source = open_source(args.source, options)
    if team.rank == 0:
        for note in source.notes:
            explained = config.Origins().explain(UserError(note), [command_parser("prepare")])
            show(f"distgnn: warning: {explained}", error=True)
    written |= {"seed": args.seed, "shards": shards, "self_loops": args.self_loops}
    return write_store(source, args.out, comm=comm, **written)


def summary(done: Summary) -> str:
    """Report the files, the columns that were read, the cost of partitions, and the seconds in all."""
    direction = "directed" if done.directed else "undirected"
    grids = ", ".join(f"{name} {rows}x{cols}" for name, (rows, cols) in done.shards.items())
    features = f"{done.width} features" if done.width else "no features"
    features += "" if done.feature_nnz is None else f", sparse with {done.feature_nnz} entries"
    several = ", of which a node may have several" if done.multilabel else ""
    classes = f"{done.classes} classes{several}, {done.labelled} nodes labelled"
    numbers = f"{done.classes} numbers to predict, {done.labelled} nodes labelled"
    labels = (numbers if done.regression else classes) if done.classes else "no labels"
    parts = ", ".join(f"{count} {part}" for part, count in (done.split or {}).items())
    needed = " (training needs one: --split 0.6/0.2/0.2)" if done.classes else ""
    matrix = f"{done.n} nodes, {done.nnz} entries from {done.edges} {direction} edges"
    lines = [
        f"{done.out}: {matrix}; shards: {grids}",
        f"{features}; {labels}; {f'split {parts}' if parts else f'no split{needed}'}",
        *([f"read {'; '.join(done.read)}"] if done.read else []),
        *([f"left out: {'; '.join(done.left)}"] if done.left else []),
        *(partition_line(name, quality) for name, quality in done.partitions.items()),
        f"{done.seconds:.1f} s, peak memory {done.peak_bytes / 2**20:.0f} MiB",
    ]
    return "\n".join(map(printable, lines))


def partition_line(name: str, q: Quality) -> str:
    """Describe an order by partition in a line."""
    from distgnn.partition import largest_over_mean

    parts = len(q.nodes)
    empty = f"; {q.empty} of the {parts} parts are empty" if q.empty else ""
    moved = f"moves {q.volume} rows, max/mean sent {largest_over_mean(q.sends):.2f}"
    evenness = f"non-zeros max/mean {largest_over_mean(q.nonzeros):.2f}"
    return f"{name}: sparsity-aware 1D on {parts} ranks {moved}; {evenness}{empty}"
