"""``distgnn generate KIND OUT``: a random graph with features and labels, streamed to a directory that
``prepare`` reads.
"""

from __future__ import annotations

import argparse
from typing import Any

HELP = "make an R-MAT, planted-partition or road-like graph of any size"

NODES = 20_000  # where the command line says nothing
COMMON = ("features", "classes", "noise", "split", "seed")
OPTIONS = {
    "rmat": (*COMMON, "nodes", "scale", "edges", "degree", "probabilities", "directed", "scramble"),
    "sbm": (
        *(*COMMON, "nodes", "edges", "degree", "communities", "mixing", "size_exponent", "degree_exponent"),
        *("directed", "scramble"),
    ),
    "road": (*COMMON, "nodes", "spacing", "missing_roads", "missing_nodes", "tile"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # No flag has a default here: the class of a graph says once what it takes and what the defaults are.
    # fmt: off
    switch: Any = {"action": argparse.BooleanOptionalAction}
    common = parser.add_argument
    common("kind", choices=OPTIONS, metavar="KIND",
           help="rmat (power-law), sbm (communities) or road (planar)")
    common("out", metavar="OUT", help="directory to create")
    common("--force", action="store_true", help="replace OUT if it is a generated graph")
    common("--nodes", type=int, metavar="N", help=f"number of nodes (default: {NODES})")
    common("--features", type=int, metavar="F", help="feature width, 0 for none (default: 64)")
    common("--classes", type=int, metavar="C",
           help="classes, 0: no labels (default: rmat 8, sbm all, road 16)")
    common("--noise", type=float, metavar="X",
           help="of one feature; signal of length 1 (default: rmat 0.1, else 1)")
    common("--split", metavar="A/B/C",
           help="shares of training, validation and test nodes (default: 0.6/0.2/0.2)")
    common("--seed", type=int, metavar="S", help="the same seed gives the same graph (default: 0)")
    edges = parser.add_argument_group("rmat and sbm").add_argument
    edges("--edges", type=int, metavar="M", help="number of edges, instead of --degree")
    edges("--degree", type=float, metavar="D",
          help="mean number of neighbours, duplicates counted (default: 16)")
    edges("--directed", **switch, help="edges have one direction (default: no)")
    edges("--scramble", **switch, help="number nodes at random (default: yes)")
    rmat = parser.add_argument_group("rmat").add_argument
    rmat("--scale", type=int, metavar="K", help="2**K nodes, instead of --nodes")
    rmat("--probabilities", type=_numbers, metavar="a,b,c,d",
         help="of the quadrants (default: 0.57,0.19,0.19,0.05)")
    sbm = parser.add_argument_group("sbm").add_argument
    sbm("--communities", type=int, metavar="K", help="number of communities (default: 16, or one per node)")
    sbm("--mixing", type=float, metavar="X", help="share of edges that leave their community (default: 0.2)")
    sbm("--size-exponent", type=float, metavar="X",
        help="power law of community sizes (default: equal sizes)")
    sbm("--degree-exponent", type=float, metavar="X",
        help="power law of degrees (default: equal expected degrees)")
    road = parser.add_argument_group("road").add_argument
    road("--spacing", type=int, metavar="K", help="cells between junctions (default: 4)")
    road("--missing-roads", type=float, metavar="X",
         help="share of missing roads between junctions (default: 0.25)")
    road("--missing-nodes", type=float, metavar="X", help="share of missing nodes (default: 0.01)")
    road("--tile", type=int, metavar="K", help="side of the tiles by which nodes are numbered (default: 32)")
    # fmt: on


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_first_rank

    on_first_rank(lambda: print(summary(args.out, generate(args)), flush=True))


def generate(args: argparse.Namespace) -> dict[str, Any]:
    """Write the graph; returns the contents of its graph.json."""
    from distgnn.gallery import PlantedPartition, RMat, RoadMap, write

    options = given(args)
    if "scale" not in options:
        options.setdefault("nodes", NODES)
    graph = {"rmat": RMat, "sbm": PlantedPartition, "road": RoadMap}[args.kind](**options)
    return write(graph, args.out, force=args.force)


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given; ArgumentError for one that this kind of graph doesn't know."""
    from distgnn.errors import ArgumentError

    names = {name for known in OPTIONS.values() for name in known}
    options = {name: getattr(args, name) for name in sorted(names) if getattr(args, name) is not None}
    for name in options:
        if name not in OPTIONS[args.kind]:
            owners = " and ".join(kind for kind, known in OPTIONS.items() if name in known)
            raise ArgumentError(name, options[name], f"is for {owners}, not for {args.kind}")
    return options


def summary(out: str, graph: dict[str, Any]) -> str:
    """One line about what was written."""
    edges = f"{graph['edges']} {'directed' if graph['directed'] else 'undirected'} edges"
    features = f"{graph['width']} features" if graph["width"] else "no features"
    labels = f"{graph['classes']} classes" if graph["classes"] else "no labels"
    parts = f"{graph['n']} nodes, {edges}, {features}, {labels}, seed {graph['seed']}"
    return f"{out}: {graph['kind']} graph, {parts}"


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


_numbers.__name__ = "list of numbers"  # what argparse calls it in its message
