"""``distgnn plan``: what every way to train would cost on a machine, before a job is submitted."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distgnn.cli.config import typed
from distgnn.cli.flags import add_setting, in_groups
from distgnn.cli.values import count
from distgnn.errors import ArgumentError, UserError
from distgnn.terminal import show
from distgnn.train.settings import AUTO, Settings

if TYPE_CHECKING:
    from distgnn.plan.dry.graphs import Graph
    from distgnn.plan.machine import Machine
    from distgnn.train.ways import Way

HELP = "predict seconds, words, messages and memory of every way to train on a machine"

#: Settings that a plan goes by, as train has them, with the help of this command where it is another.
SHARED = {
    "algorithm": "plan this one only (default: all)",
    "grid": "plan these sizes of axes only, the last within a node",
    "replication": "plan so many copies of 1.5d only (default: all)",
    "sampler": "plan minibatches that are drawn like this (default: the whole graph)",
    "bulk": "plan so many sampled at a time (default: auto, as many as there is memory for)",
    "sparsity_aware": "plan only what sends needed rows alone; =cover: only what sends covers (default: all)",
    "model": "sage: GraphSAGE with means; gat, gatv2: graph attention (default: gcn)",
    "order": "plan this order of the store only (default: all it has)",
} | dict.fromkeys(
    "overlap wire mixed_precision product_order keep_aggregate recompute block_rows dtype recipe layers "
    "hidden heads bias residual layer_norm dropout attention_dropout activation train_features optimizer "
    "clip tf32 cuda_graph eval_every loss metric fanout batch_size batches_per_update partition_graph "
    "importance rescale parts renormalize".split(),
    "",
)
MACHINES = Path(__file__).parents[1] / "plan" / "machines"  # --help needs no more of the planner
#: What says how large a graph is where there is no store.
SIZES = ("nodes_of_graph", "nnz", "features", "classes")
#: More than anybody has; larger numbers would only take their time.
LARGEST = {"ranks": 1 << 20, "nodes_of_graph": 1 << 40, "nnz": 1 << 50}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    parser.add_argument("store", metavar="STORE", nargs="?", help="what prepare made")
    add = parser.add_argument
    add("--ranks", type=numbers_of_ranks, required=True, metavar="P", help="how many; or numbers of them, as "
        "4,8,16, or 1..2048 for the powers of two, for curves of scaling")
    shipped = ", ".join(sorted(file.stem for file in MACHINES.glob("*.toml")))
    add("--machine", metavar="NAME", help=f"{shipped}, or a TOML file of calibrate (default: the GPU of this "
        "computer, if its rates are among them)")
    size = parser.add_argument_group("a graph without a store").add_argument
    size("--nodes-of-graph", type=count, metavar="N", help="nodes")
    size("--nnz", type=count, metavar="M", help="non-zeros of its matrix: twice the edges, and the diagonal")
    size("--features", type=count, metavar="F", help="their width")
    size("--classes", type=count, metavar="C", help="of nodes")
    size("--multilabel", action="store_true", help="a node may have several of them")
    size("--directed", action="store_true", help="its matrix is not symmetric")
    for group, name in in_groups(parser, SHARED):
        add_setting(group, name, SHARED[name])
    out = parser.add_argument_group("output").add_argument
    out("--all", action="store_true", help="print all, not the best dozen and the best of each algorithm")
    out("--explain", type=count, metavar="K", help="print what choice K consists of, beside its formula")
    out("--json", action="store_true", help="print one JSON object")
    out("--out", metavar="FILE", help="write curves of strong and weak scaling as an HTML page")
    out("--svg", metavar="FILE", help="write them as an SVG drawing")
    out("--logs", nargs="+", default=[], metavar="LOG", help="of train --log, to draw beside the curves")
    out("--force", action="store_true", help="replace an existing --out or --svg")
    # fmt: on


def numbers_of_ranks(text: str) -> list[int]:
    """Parse "64", "4,8,16", or "1..2048": the powers of two from the first to the last."""
    try:
        if ".." not in text:
            counts = [count(word) for word in text.split(",")]
        else:
            first, last = map(count, text.split(".."))
            counts = [2**power for power in range(last.bit_length()) if first <= 2**power <= last]
    except (argparse.ArgumentTypeError, ValueError):
        counts = []
    if not counts or counts != sorted(set(counts)):
        problem = f"expected a whole number, at least 1, as 64, or more as in 4,8,16 or 1..2048, not {text!r}"
        raise argparse.ArgumentTypeError(problem)
    return counts


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_first_rank

    on_first_rank(lambda: show(answer(args)))


def answer(args: argparse.Namespace) -> str:
    """Return the text to print, once files are written.

    Raise UserError for bad input, or if nothing can be trained.
    """
    from distgnn.plan.machine import read
    from distgnn.plan.probe import machine_here

    check(args)
    settings = settings_of(args)
    on = machine_here() if args.machine is None else read(args.machine)
    if settings.samples:
        return minibatches(args, settings, on)
    asked = graphs(args, settings), on
    return curves(args, settings, *asked) if len(args.ranks) > 1 else choices(args, settings, *asked)


def check(args: argparse.Namespace) -> None:
    """Raise ArgumentError for arguments that do not go together."""
    from distgnn.files.output import check_apart

    given = [name for name in SIZES if getattr(args, name) is not None]
    of_sizes = given + [name for name in ("multilabel", "directed") if getattr(args, name)]
    if args.store is not None and of_sizes:
        name = of_sizes[0]
        problem = "is for a graph without a store; leave out one of them"
        raise ArgumentError(name, getattr(args, name), problem)
    if args.store is None and len(given) < len(SIZES):
        flags = [f"--{name.replace('_', '-')}" for name in SIZES if name not in given]
        raise UserError(f"name a store, or give the size of a graph with {', '.join(flags)}")
    for name, largest in LARGEST.items():
        value = max(args.ranks) if name == "ranks" else getattr(args, name)
        if value is not None and value > largest:
            raise ArgumentError(name, value, f"must be at most {largest}")
    if args.store is None and args.nnz > args.nodes_of_graph**2:
        most = f"a graph of {args.nodes_of_graph} nodes has at most {args.nodes_of_graph**2} non-zeros"
        raise ArgumentError("nnz", args.nnz, most)
    if args.store is None and args.order is not None:
        raise ArgumentError("order", args.order, "is one of a store, and there is none")
    check_apart({"out": args.out, "svg": args.svg}, [*args.logs, *filter(None, [args.store])])
    single = len(args.ranks) == 1
    for name in ("out", "svg", "logs") if single else ("explain", "all"):
        if getattr(args, name):
            needed = "several numbers of ranks, as in 1..64" if single else "one number of ranks"
            raise ArgumentError(name, getattr(args, name), f"needs {needed}")


def settings_of(args: argparse.Namespace) -> Settings:
    """Return the settings to plan with; "auto" is what a plan does with those that are not given."""
    from distgnn.train.resolve import closed, resolved

    given = {name: getattr(args, name) for name in SHARED}
    for name in ("sparsity_aware", "grid", "order", "replication"):
        given[name] = None if given[name] == AUTO else given[name]
    settings = Settings(**given)
    if settings.samples and not settings.together:
        resolved(closed(settings), 1)
        return replace(settings, replication=settings.replication or AUTO, bulk=settings.bulk or AUTO)
    resolved(replace(settings, algorithm="1.5d"), 1)  # refused here, and not way by way; 1.5d takes all
    return settings


def graphs(args: argparse.Namespace, settings: Settings) -> dict[str | None, Graph]:
    """Return the graphs by order. Raise UserError for no store, no such order, or nothing to train on."""
    from distgnn.nn.loss import checked_loss, checked_metric
    from distgnn.plan.dry.graphs import Graph
    from distgnn.plan.pricing import ALL_RANKS
    from distgnn.plan.settle import EXACT
    from distgnn.store.read.store import Store
    from distgnn.train.resolve import check_content

    if args.store is None:
        sizes = args.nodes_of_graph, args.nnz, args.features, args.classes
        kind = {"symmetric": not args.directed, "multilabel": args.multilabel, "loss": settings.loss}
        return {None: Graph.of_size(*sizes, dtype=settings.dtype, **kind)}
    store = Store(args.store)
    check_content(store)
    loss = checked_loss(settings.loss, store.loss, store.manifest["class_names"])
    checked_metric(settings.metric, loss)
    exact = store.nnz <= EXACT and max(args.ranks) <= ALL_RANKS  # else by how many each shard has
    layers = len(settings.hidden_widths) + 1
    orders = store.orders if settings.order is None else [settings.order]
    return {name: Graph.of_store(store, name, settings.dtype, layers, exact, loss) for name in orders}


def choices(
    args: argparse.Namespace, settings: Settings, graphs: dict[str | None, Graph], machine: Machine
) -> str:
    """Return the ranking, or one choice of it explained."""
    import json

    from distgnn.plan import tables
    from distgnn.plan.choices import plan
    from distgnn.plan.explain import explain

    planned = plan(settings, graphs, args.ranks[0], machine, complete=args.all or args.json)
    planned.best
    if args.explain is None:
        if args.json:
            return json.dumps(planned.record())
        return "\n".join([tables.text(planned, args.all), *first_run(args, planned.best.way)])
    if args.explain > len(planned.choices):
        raise ArgumentError("explain", args.explain, f"there are {len(planned.choices)} choices")
    explained = explain(planned, planned.choices[args.explain - 1])
    return json.dumps(explained.record()) if args.json else tables.explanation(explained, args.explain)


def minibatches(args: argparse.Namespace, settings: Settings, machine: Machine) -> str:
    """Return the choices for minibatches, with words by matrix and memory by what it is for."""
    import json

    from distgnn.plan import tables
    from distgnn.plan.minibatches import plan_minibatches
    from distgnn.plan.subgraphs import plan_subgraphs
    from distgnn.store.read.store import Store

    if args.store is None:
        problem = "needs a store: some minibatches are drawn of its graph"
        raise ArgumentError("sampler", settings.sampler, problem)
    if len(args.ranks) > 1 or args.explain:
        name, value = ("explain", args.explain) if args.explain else ("ranks", ",".join(map(str, args.ranks)))
        problem = "is for the whole graph; minibatches are planned for one number of ranks, and not explained"
        raise ArgumentError(name, value, problem)
    if settings.together:
        complete = args.all or args.json
        steps = plan_subgraphs(settings, Store(args.store), args.ranks[0], machine, complete)
        if args.json:
            return json.dumps(steps.record())
        return "\n".join([tables.subgraphs(steps, args.all), *first_run(args, steps.step.best.way)])
    planned = plan_minibatches(settings, Store(args.store), args.ranks[0], machine)
    if args.json:
        return json.dumps(planned.record())
    best = planned.choices[0]
    return "\n".join([tables.minibatches(planned), *first_run(args, best.way, best.bulk)])


def first_run(args: argparse.Namespace, way: Way, bulk: int | None = None) -> list[str]:
    """Return lines with the command that trains the best choice and checks it; none without a store."""
    if args.store is None:
        return []
    from distgnn.cli import command_parser
    from distgnn.layout import written

    given = {name: getattr(args, name) for name in SHARED} | {"bulk": bulk}
    given |= {"algorithm": way.algorithm, "grid": written(way.grid), "order": way.order, "replication": None}
    given |= {"sparsity_aware": way.sparsity_aware or None}
    defaults = command_parser("train").parse_args([args.store])
    changed = {name: value for name, value in given.items() if value != getattr(defaults, name)}
    flags = [typed(name.replace("_", "-"), value) for name, value in changed.items()]
    start = f"mpiexec -n {args.ranks[0]} distgnn train {shlex.quote(args.store)}"
    about = "A first run of choice 1, whose first epochs are compared with a serial training:"
    return ["", about, " ".join([start, *flags, "--check"])]


def curves(
    args: argparse.Namespace, settings: Settings, graphs: dict[str | None, Graph], machine: Machine
) -> str:
    """Return seconds by number of ranks; write files with drawings."""
    import json

    from distgnn.plan import curves as drawings
    from distgnn.plan import scaling
    from distgnn.plan.choices import asked_for, beyond

    files = drawings.CurveFiles(args.out, args.svg, args.logs, args.force)
    strong = scaling.strong(settings, graphs, args.ranks, machine)
    asked = asked_for(machine, settings, graphs)
    record = asked | {"ranks": args.ranks, "strong": strong.record()} if args.json else {}
    if files.outputs:
        weak = scaling.weak(settings, graphs, args.ranks, machine)
        files.write(strong, weak, drawings.title(asked, settings))
        record |= {"weak": weak.record()} if args.json else {}
    if args.json:
        return json.dumps(record)
    measured = ["", drawings.text(strong, files.measured)] if files.measured else []
    note = beyond(machine, max(args.ranks))
    return "\n".join([scaling.text(strong), *([note] if note else []), *measured])
