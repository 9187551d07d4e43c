"""Predictions from published sizes of graphs alone, beside what was published of their epochs.

    python benchmarks/plan_published.py --out benchmarks/results/plan-published.md

The networks are those of Plexus section 6.2: 3 layers, hidden width 128, trained features. On Perlmutter
three things stand beside each other:

    perlmutter         the machine that ships: MPI, where a rank sends through a network card of its own
    NCCL's bandwidth   the same, but a ring that has a node to itself uses all four cards
    Plexus's model     the paper's formulas (4.1, 4.2) with its coefficients, and the bandwidths and the
                       order of roots and sums of its public repository, hpcgroup/plexus

Needed rows of a partitioned order, of the rank that needs most: of products-14M those of the sparsity-aware
paper's Table 2 (METIS), on a line through neighbouring numbers of ranks in logarithms. Of other graphs none
are published. Taken are those of a random order, divided by the published gain of whole epochs from
partitioning (the paper's section 7), which is the least that the gain in rows can be.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

import table
from distgnn import operators
from distgnn.layout import Range, owner, partition
from distgnn.operators.plexus_3d import ROLES
from distgnn.plan.choices import plan
from distgnn.plan.clock import estimate
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.dry.run import dry_run
from distgnn.plan.dry.shapes import ShapeMatrix
from distgnn.plan.machine import Machine, read
from distgnn.train.settings import Settings
from distgnn.train.ways import axis_orders

GIB, MS, LAYERS, HIDDEN = 2**30, 1e3, 3, 128
GAIN = 1.2  # what more ranks have to gain to be worth it


class Published(NamedTuple):
    """A graph of Plexus's Table 4. ``gain``: of whole epochs from partitioning, or None."""

    n: int
    nonzeros: int
    features: int
    classes: int
    gain: float | None = None

    @property
    def widths(self) -> list[int]:
        return [self.features, *[HIDDEN] * (LAYERS - 1), self.classes]

    @property
    def least_bytes(self) -> float:
        """Sum the bytes of all ranks in 3D: features with gradient and moments, and buffers
        (``memory_3d.py``).
        """
        return 4 * self.n * (4 * self.features + (LAYERS + 2) * HIDDEN)

    def graph(self) -> Graph:
        """Make a graph of this size with non-zeros anywhere, as in a random order."""
        return Graph.of_size(self.n, self.nonzeros, self.features, self.classes)


PRODUCTS = Published(2_449_029, 126_167_053, 100, 47)
GRAPHS = {
    "Reddit": Published(232_965, 114_848_857, 602, 41, 2.0),
    "Isolate-3-8M": Published(8_745_542, 1_317_986_044, 128, 32, 14.0),
    "products-14M": Published(14_249_639, 245_036_907, 128, 32),
    "papers100M": Published(111_059_956, 1_726_745_828, 100, 172, 2.3),
}
#: The most that a rank receives in a product with 300 columns: MB by ranks (sparsity-aware paper, Table 2).
MOST_RECEIVED = {16: 333.5, 32: 241.6, 64: 164.0, 128: 117.3, 256: 86.4}


class Way(NamedTuple):
    """A dry run on its best order of axes. ``peak``: bytes of a rank."""

    seconds: float
    grid: dict[str, int]
    peak: int

    def __str__(self) -> str:
        return "x".join(f"{self.grid[axis]}" for axis in sorted(self.grid))


class Partitioned:
    """A block source cut over so many ranks, each of which reads as many rows of every other. Two of its
    non-zeros stand in each of those columns.
    """

    def __init__(self, graph: Published, ranks: int, rows: float) -> None:
        self.shape, self.dtype, self.symmetric = (graph.n, graph.n), np.dtype(np.float32), True
        self.parts, self.each = partition(graph.n, ranks), max(round(rows / (ranks - 1)), 1)
        self.away = min(2 * self.each, graph.nonzeros // ranks // ranks)
        self.own = graph.nonzeros // ranks - (ranks - 1) * self.away

    def block(self, rows: Range, cols: Range) -> ShapeMatrix:
        shape = rows[1] - rows[0], cols[1] - cols[0]
        if owner(self.parts, rows[0]) == owner(self.parts, cols[0]):
            return ShapeMatrix(shape, self.own, self.dtype, shape)
        return ShapeMatrix(shape, self.away, self.dtype, (shape[0], min(self.each, shape[1])))


def needed_rows(graph: Published, ranks: int) -> float:
    """Count the rows of other ranks that the rank in most need reads in a partitioned order."""
    if graph.gain:
        others = graph.n * (1 - 1 / ranks)
        return others * -math.expm1(-graph.nonzeros / ranks / graph.n) / graph.gain
    known, megabytes = list(MOST_RECEIVED), list(MOST_RECEIVED.values())
    at = min(max(sum(p < ranks for p in known), 1), len(known) - 1)
    (p, q), (low, high) = known[at - 1 : at + 1], megabytes[at - 1 : at + 1]
    power = math.log(high / low) / math.log(q / p)
    return low * (ranks / p) ** power * 1e6 / (300 * 4)


def settings(algorithm: str, grid: dict[str, int], aware: bool = False, **network: Any) -> Settings:
    given = {"recipe": "plain", "hidden": HIDDEN, "layers": LAYERS, "train_features": True} | network
    return Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, eval_every=0, **given)


def priced(s: Settings, graph: Graph, ranks: int, machines: Sequence[Machine]) -> list[Way]:
    """Return the best order of axes on each machine."""
    dry = dry_run(s, graph, ranks, busiest=True, evaluation=False)
    programs, peak = [dry.ranks[0].epoch.steps or []], sum(dry.ranks[0].peak.values())
    orders = list(axis_orders(dry.grid))
    return [
        min((Way(estimate(machine, grid, programs).seconds, grid, peak) for grid in orders), key=first)
        for machine in machines
    ]


def first(way: Way) -> float:
    return way.seconds


def machines() -> list[Machine]:
    """Return the machine that ships, and the same with the bandwidth of NCCL."""
    ships = read("perlmutter")
    network = replace(ships.levels[-1], bandwidth=ships.levels[-1].injection)
    return [ships, replace(ships, levels=[*ships.levels[:-1], network])]


def plexus_model(graph: Published, grid: dict[str, int]) -> float:
    """Return seconds of Plexus's fitted model: the roots of the operations of all layers together, the
    penalties of each layer, and ring collectives whose bandwidth goes by the axes nearer in a node.
    """
    inner, rate = 1, {}
    for axis in "yxz":
        rate[axis] = fitted_bandwidth(inner, grid[axis])
        inner *= grid[axis]

    def ring(axis: str, words: float) -> float:
        return (grid[axis] - 1) / grid[axis] * 4 * words / rate[axis]

    n, widths = graph.n, graph.widths
    root = math.sqrt(graph.nonzeros * sum(widths[:-1]) / inner)
    penalties = seconds = 0.0
    for layer, (below, above) in enumerate(zip(widths, widths[1:], strict=False)):
        out, contract, feature = ROLES[layer % 3]
        p, c, f = grid[out], grid[contract], grid[feature]
        penalties += 7.8e-10 * n / c * f / below - 2.6e-10 * n / p * f / below
        seconds += 2 * ring(out, n * below / c / f)  # of layer 0 both ways, of others its gradient, summed
        seconds += 4 * ring(contract, n * below / p / f)  # A H, and the gradient times the weights
        seconds += 2 * ring(feature, n * above / p / c)  # times the weights
    return (7.8e-4 * root + penalties * root) / MS + seconds


def fitted_bandwidth(inner: int, size: int) -> float:
    """Return bytes per second in a group of this size; ``inner``: ranks of the axes nearer in a node."""
    if inner == 1:
        return {2: 76, 4: 225}.get(size, 66.6) * GIB
    return (16.6 if inner > 2 else 76 if size == 2 else 33.3) * GIB


# -- one graph on 64 ranks, in every way ---------------------------------------------------------------------


def everything(ranks: int = 64) -> Iterator[str]:
    """Read the whole matrix on every rank and cut the rank's blocks out of it."""
    yield from table.columns(
        "algorithm, axes over 1", "grids", "perlmutter: best, ms", "median", "worst",
        "NCCL's bandwidth: best", "median", "worst", "Plexus's model: best", "median", "worst",
    )  # fmt: skip
    pairs: list[tuple[float, float]] = []
    for name in operators.ALGORITHMS:
        found: dict[int, list[tuple[Way, Way, float]]] = {}
        for grid in operators.grids(name, ranks):
            ways = priced(settings(name, grid), PRODUCTS.graph(), ranks, machines())
            theirs = plexus_model(PRODUCTS, grid) if name == "3d" else math.nan
            found.setdefault(sum(size > 1 for size in grid.values()), []).append((*ways, theirs))
        for axes in sorted(found, reverse=True):
            yield f"| {name}, {axes} | {len(found[axes])} | {' | '.join(shares(found[axes]))} |"
        pairs += [(way.seconds, theirs) for ways in found.values() for way, _, theirs in ways]
    ours, theirs = zip(*[pair for pair in pairs if not math.isnan(pair[1])], strict=True)
    rank = spearmanr(ours, theirs).statistic
    yield f"\nRank correlation of `3d` with Plexus's model over {len(ours)} grids: {rank:.2f}."


def shares(found: list[tuple[Way, Way, float]]) -> Iterator[str]:
    """Return best, median and worst: of the machine, with NCCL's bandwidth, by Plexus's model."""
    for number in range(2):
        ways = sorted((ways[number] for ways in found), key=first)
        yield f"{ways[0].seconds * MS:.0f} ({ways[0]})"
        yield f"{ways[len(ways) // 2].seconds * MS:.0f}"
        yield f"{ways[-1].seconds * MS:.0f}"
    theirs = sorted(seconds * MS for *_, seconds in found)
    for seconds in (theirs[0], theirs[len(theirs) // 2], theirs[-1]):
        yield "–" if math.isnan(seconds) else f"{seconds:.0f}"


# -- scaling -------------------------------------------------------------------------------------------------


def scaling(name: str, most: int) -> Iterator[str]:
    """Return a line for each number of ranks, and what follows from them."""
    graph, small, large = GRAPHS[name], read("perlmutter").memory, 80e9
    yield from table.columns(
        "GPUs", "3d, ms", "grid", "NCCL's bandwidth", "Plexus's model", "1d, partitioned",
        "rows needed", "1d, needed rows, random order", "1d, whole blocks",
    )  # fmt: skip
    cubes: dict[int, float] = {}
    parts: dict[int, float] = {}
    for ranks in (2**i for i in range(2, int(math.log2(most)) + 1)):
        grids = operators.grids("3d", ranks)
        run = grids if graph.least_bytes / ranks < large else []
        ways = [priced(settings("3d", grid), graph.graph(), ranks, machines()) for grid in run]
        room = small if any(way.peak <= small for way, _ in ways) else large
        best, faster = (
            min((way[i] for way in ways if way[i].peak <= room), key=first, default=None) for i in (0, 1)
        )
        theirs, rows = min(plexus_model(graph, grid) for grid in grids), needed_rows(graph, ranks)
        part, needed, whole = (one_dimension(graph, ranks, *how) for how in sources(graph, ranks, rows))
        cubes[ranks], parts[ranks] = (w.seconds if w else math.inf for w in (best, fitting(part)))
        yield (
            f"| {ranks} | {told(best)} | {best or '–'} | {told(faster)} | {theirs * MS:.0f} | {told(part)} "
            f"| {rows:,.0f} | {told(needed)} | {told(whole)} |"
        )
    yield f"\n{name}: {summary(cubes, parts)}"


def sources(graph: Published, ranks: int, rows: float) -> list[tuple[Any, bool]]:
    """Give the runs of 1D: a block source or None for a random order, and whether it sends needed rows."""
    return [(Partitioned(graph, ranks, rows), True), (None, True), (None, False)]


def one_dimension(graph: Published, ranks: int, source: Any, aware: bool) -> Way:
    made = graph.graph() if source is None else replace(graph.graph(), source=source)
    return priced(settings("1d", {"rows": ranks}, aware), made, ranks, machines())[0]


def fitting(way: Way) -> Way | None:
    return way if way.peak <= read("perlmutter").memory else None


def told(way: Way | None) -> str:
    """Write milliseconds; with the memory that a rank needs where 40 GB are too few."""
    if way is None:
        return "more than 80 GB"
    return f"{way.seconds * MS:.0f}" + ("" if fitting(way) else f" ({way.peak / 1e9:.0f} GB)")


def summary(cubes: dict[int, float], parts: dict[int, float]) -> str:
    """Write where one algorithm overtakes the other, and up to which number more ranks gain."""
    slower = [ranks for ranks in cubes if cubes[ranks] > parts[ranks]]
    known = [ranks for ranks in cubes if cubes[ranks] < math.inf and ranks > max(slower, default=0)]
    where = f"is faster than partitioned 1d from {known[0]} GPUs on" if known else "stays slower"
    return f"3d {where}. 3d scales to {end(cubes)} GPUs, partitioned 1d to {end(parts)}."


def end(seconds: dict[int, float]) -> int:
    """Return the last number of ranks that is faster than all fewer by ``GAIN``."""
    last, best = 0, math.inf
    for ranks, found in seconds.items():
        if found < math.inf and found * GAIN <= best:
            last = ranks
        best = min(best, found)
    return last


# -- one node, with published seconds ------------------------------------------------------------------------

#: MG-GCN Tables 1 and 3: graph, layers, hidden width, seconds by GPUs of a DGX A100.
MG_GCN = {
    "Reddit": (GRAPHS["Reddit"], 2, 16, {1: 0.033, 2: 0.017, 4: 0.012, 8: 0.012}),
    "Products": (PRODUCTS._replace(features=104), 3, 256, {1: 0.355, 2: 0.202, 4: 0.110, 8: 0.067}),
    "Proteins": (GRAPHS["Isolate-3-8M"]._replace(classes=256), 3, 256,
                 {1: 4.221, 2: 2.272, 4: 1.191, 8: 0.641}),
    "Papers": (GRAPHS["papers100M"]._replace(features=128), 3, 208, {8: 2.89}),
}  # fmt: skip


def one_node() -> Iterator[str]:
    """Compare epochs of 1D on a DGX A100 with those that MG-GCN measured."""
    yield from table.columns(
        "graph", "GPUs", "MG-GCN, measured ms", "predicted", "predicted / measured", "GB"
    )
    ratios = []
    for name, (graph, layers, hidden, measured) in MG_GCN.items():
        for ranks, seconds in measured.items():
            network = {"layers": layers, "hidden": hidden, "train_features": False}
            s = settings("1d", {"rows": ranks}, **network)
            (way,) = priced(s, graph.graph(), ranks, [read("dgx-a100")])
            ratios.append(way.seconds / seconds)
            numbers = f"{seconds * MS:.0f} | {way.seconds * MS:.0f} | {ratios[-1]:.2f} | {way.peak / 1e9:.0f}"
            yield f"| {name} | {ranks} | {numbers} |"
    yield f"\nMedian ratio {np.median(ratios):.2f}."


# -- hosts, with published seconds ---------------------------------------------------------------------------


class Sockets(NamedTuple):
    """An epoch measured on hosts. ``memory``: bytes of a socket, of which a rank has a quarter."""

    graph: str
    published: Published
    network: dict[str, Any]
    sockets: int
    seconds: float
    memory: float = 192e9
    source: str = "DistGNN"


_OF_PRODUCTS, _OF_PROTEINS, _OF_PAPERS = (MG_GCN[name][0] for name in ("Products", "Proteins", "Papers"))
_WIDE: dict[str, Any] = {"layers": 3, "hidden": 256}
#: MG-GCN Table 2, DistGNN's epochs on one socket and on as many as did best, and a line of SAR's README.
HOSTS = [
    Sockets("Reddit", GRAPHS["Reddit"], {"layers": 2, "hidden": 16}, 1, 0.60),
    Sockets("Reddit", GRAPHS["Reddit"], {"layers": 2, "hidden": 16}, 16, 0.61),
    Sockets("Products", _OF_PRODUCTS, _WIDE, 1, 11),
    Sockets("Products", _OF_PRODUCTS, _WIDE, 64, 1.74),
    Sockets("Proteins", _OF_PROTEINS, _WIDE, 1, 100),
    Sockets("Proteins", _OF_PROTEINS, _WIDE, 64, 2.63),
    Sockets("Papers", _OF_PAPERS, _WIDE, 1, 1000, 1.5e12),
    Sockets("Papers", _OF_PAPERS, _WIDE, 128, 36.45),
    Sockets("Papers, symmetric", _OF_PAPERS._replace(nonzeros=3_228_124_712),
            _WIDE | {"model": "sage"}, 256, 3.8, 128e9, "SAR"),
]  # fmt: skip


def on_hosts() -> Iterator[str]:
    """Compare epochs of the best way on hosts, four ranks a socket, with what others measured on theirs."""
    yield from table.columns(
        "graph", "sockets", "measured, s", "by", "predicted, s", "measured / predicted", "way",
        "of it products", "messages waited for", "GB a rank",
    )  # fmt: skip
    for host in HOSTS:
        machine = replace(read("infiniband-cpu"), memory=host.memory / 4)
        s = Settings(recipe="plain", algorithm="auto", eval_every=0, **host.network)
        best = plan(s, {None: host.published.graph()}, 4 * host.sockets, machine).best
        parts = best.estimate.phases
        products, waited = (
            sum(seconds for name, seconds in parts.items() if name in names) / best.seconds
            for names in (("spmm", "gemm"), ("comm",))
        )
        yield (
            f"| {host.graph} | {host.sockets} | {host.seconds:g} | {host.source} | {best.seconds:.3g} "
            f"| {host.seconds / best.seconds:.1f} | {best.way} | {products:.0%} | {waited:.0%} "
            f"| {max(best.peak_bytes) / 1e9:.1f} |"
        )


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--hosts-only", action="store_true", help="only the table of hosts")
    parser.add_argument("--most", type=int, default=2048, help="GPUs to scale to")
    args: argparse.Namespace = parser.parse_args()
    hosts = ["", "### Hosts, four ranks a socket, beside DistGNN and SAR", "", *on_hosts()]
    if args.hosts_only:
        table.publish(args, "\n".join([table.heading(args), *hosts]))
        return
    lines = [table.heading(args), "", "### ogbn-products on 64 GPUs", "", *everything()]
    for name in GRAPHS:
        lines += ["", f"### {name}", "", *scaling(name, args.most)]
    lines += ["", "### 1d on a DGX A100, beside MG-GCN", "", *one_node(), *hosts]
    table.publish(args, "\n".join(lines))


if __name__ == "__main__":
    main()
