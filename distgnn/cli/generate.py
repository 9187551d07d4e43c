"""``distgnn generate KIND OUT``: a random graph with features and labels, streamed for ``prepare``."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from distgnn.cli.values import numbers
from distgnn.terminal import printable, show

HELP = "make an R-MAT, planted-partition or road-like graph of any size"

NODES = 20_000  # where the command line says nothing
KINDS = ("rmat", "sbm", "road")
COMMON = ("features", "classes", "noise", "split", "seed")  # what all kinds take
OTHERS = (
    "command",
    "config",
    "kind",
    "out",
    "force",
    "verbose",
    "quiet",
    "log_dir",
)  # what is no option of a graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # No flag has a default here: the class of a graph says once what it takes and what the defaults are.
    # fmt: off
    switch: Any = {"action": argparse.BooleanOptionalAction}
    add = parser.add_argument
    add("kind", choices=KINDS, metavar="KIND", help="rmat (power-law), sbm (communities) or road (planar)")
    add("out", metavar="OUT", help="directory to create")
    add("--force", action="store_true", help="replace OUT if it is a generated graph")
    add("--nodes", type=int, metavar="N", help=f"number of nodes (default: {NODES})")
    add("--features", type=int, metavar="F", help="feature width, 0 for none (default: 64)")
    add("--classes", type=int, metavar="C", help="0: no labels (default: rmat 8, sbm all, road 16)")
    add("--noise", type=float, metavar="X", help="of a feature; signal: 1 (default: rmat 0.1, else 1)")
    add("--split", metavar="A/B/C", help="of training, validation and test (default: 0.6/0.2/0.2)")
    add("--seed", type=int, metavar="S", help="the same seed gives the same graph (default: 0)")
    edges = parser.add_argument_group("rmat and sbm").add_argument
    edges("--edges", type=int, metavar="M", help="number of edges, instead of --degree")
    edges("--degree", type=float, metavar="D", help="mean neighbours, duplicates counted (default: 16)")
    edges("--directed", **switch, help="edges have one direction (default: no)")
    edges("--scramble", **switch, help="number nodes at random (default: yes)")
    rmat = parser.add_argument_group("rmat").add_argument
    rmat("--scale", type=int, metavar="K", help="2**K nodes, instead of --nodes")
    rmat("--probabilities", type=numbers, metavar="a,b,c,d",
         help="of the quadrants (default: 0.57,0.19,0.19,0.05)")
    sbm = parser.add_argument_group("sbm").add_argument
    sbm("--communities", type=int, metavar="K", help="number of communities (default: 16, or one per node)")
    sbm("--mixing", type=float, metavar="X", help="share of edges that leave their community (default: 0.2)")
    sbm("--size-exponent", type=float, metavar="X", help="power law of community sizes (default: all equal)")
    sbm("--degree-exponent", type=float, metavar="X", help="power law of degrees (default: all equal)")
    road = parser.add_argument_group("road").add_argument
    road("--spacing", type=int, metavar="K", help="cells between junctions (default: 4)")
    road("--missing-roads", type=float, metavar="X", help="share between junctions (default: 0.25)")
    road("--missing-nodes", type=float, metavar="X", help="share of missing nodes (default: 0.01)")
    road("--tile", type=int, metavar="K", help="side of the tiles by which nodes are numbered (default: 32)")
    # fmt: on


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_first_rank

    def work() -> None:
        made = generate(args)
        if not args.quiet:
            show(summary(args.out, made))

    on_first_rank(work)


def generate(args: argparse.Namespace) -> dict[str, Any]:
    """Write the graph; returns the contents of its graph.json."""
    from distgnn.errors import UserError
    from distgnn.gallery import PlantedPartition, RMat, RoadMap, write
    from distgnn.gallery.directory import check_output

    graphs = dict(zip(KINDS, (RMat, PlantedPartition, RoadMap), strict=True))
    options = given(args, graphs)
    if "scale" not in options:
        nodes = options.setdefault("nodes", NODES)
        check_output(args.out, nodes, args.force)  # a road map is drawn when it is made
    try:
        return write(graphs[args.kind](**options), args.out, force=args.force)
    except MemoryError as error:
        raise UserError(f"{args.out}: not enough memory for this graph ({error})") from None


def given(args: argparse.Namespace, graphs: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given; raise ArgumentError for an option unknown to this kind of graph."""
    from distgnn.errors import ArgumentError

    takes = {kind: {*COMMON, *inspect.signature(graph).parameters} for kind, graph in graphs.items()}
    values = {name: value for name, value in sorted(vars(args).items()) if name not in OTHERS}
    options = {name: value for name, value in values.items() if value is not None}
    for name, value in options.items():
        if name not in takes[args.kind]:
            owners = " and ".join(kind for kind in KINDS if name in takes[kind])
            raise ArgumentError(name, value, f"is for {owners}, not for {args.kind}")
    return options


def summary(out: str, graph: dict[str, Any]) -> str:
    """Write one line about the files."""
    edges = f"{graph['edges']} {'directed' if graph['directed'] else 'undirected'} edges listed"
    features = f"{graph['width']} features" if graph["width"] else "no features"
    labels = f"{graph['classes']} classes" if graph["classes"] else "no labels"
    parts = f"{graph['n']} nodes, {edges}, {features}, {labels}, seed {graph['seed']}"
    return f"{printable(out)}: {graph['kind']} graph, {parts}"
