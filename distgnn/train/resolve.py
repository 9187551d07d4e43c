"""The settings of a run, made of the settings that were given.

Defaults depend on other settings, on the store's files and on the number of ranks; some settings exclude each
other, or what a store has. What they leave to a plan is asked here too: a run with a given grid needs no
planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mpi4py import MPI

from distgnn import operators
from distgnn.comm.agree import agree, together
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError, UserError, offered
from distgnn.files.output import check_apart, check_output
from distgnn.nn.gat import spread
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import checked_loss, checked_metric
from distgnn.nn.networks import NETWORKS
from distgnn.sampling.sampler import check_fanout
from distgnn.store.checkpoint import CHECKPOINT
from distgnn.store.format import manifest
from distgnn.store.read.distributed import StoreOrPath, identity
from distgnn.store.read.order import Order
from distgnn.store.read.store import Store
from distgnn.train import checkpoint
from distgnn.train import settings as defaults
from distgnn.train.minibatches import check_batch_size
from distgnn.train.schedule import Schedule
from distgnn.train.settings import (
    AUTO,
    CLUSTER,
    EVERY,
    FOR_MINIBATCHES,
    OF_ATTENTION,
    SHADOW,
    VERTICES,
    Settings,
    check_fields,
)
from distgnn.train.ways import arrangements, parse_grid, ways

_GIVEN = "a run takes what it is given; distgnn.plan.settle chooses"
_CHOSEN = {"algorithm": f"one of {', '.join(operators.ALGORITHMS)}"}
#: The algorithm that takes an order with two versions of the matrix.
ALTERNATING = "3d"
_UNREADABLE = (UserError, AttributeError, KeyError, TypeError)
#: The name of a setting, whether it is refused, and why.
Rule = tuple[str, object, str]
#: Options that all networks have.
OF_ALL = ("dropout", "bias", "residual", "layer_norm")


def resolved(settings: Settings, ranks: int) -> Settings:
    """Fill in the defaults for a run on so many ranks, except `order` and `batch_size`: the store decides.

    Raises:
        ArgumentError: a value out of range, settings that exclude each other, or an "auto" that leaves a
            choice to a plan.
    """
    s = settings
    check_fields(s)
    if s.model not in (None, *NETWORKS):
        raise ArgumentError("model", s.model, offered(s.model, NETWORKS))
    model = s.model or ("sage" if s.sampler == "sage" else "gcn")
    for name, refused, problem in _rules(s, model):
        if refused:
            raise ArgumentError(name, getattr(s, name), problem)
    filled = _of_minibatches(s, model, ranks) if s.samples else {"algorithm": s.algorithm or "1d"}
    if s.block_rows is not None and filled["algorithm"] not in ("1.5d", "3d"):
        problem = f"is for 1.5d and 3d, which all-reduce products; algorithm {filled['algorithm']} does not"
        raise ArgumentError("block_rows", s.block_rows, problem)
    filled |= {"sparsity_aware": s.sparsity_aware or False, "weight_decay": s.weight_decay or s.decays}
    done = replace(s, **filled, model=model, **_of_network(s, model))
    if s.grid == AUTO:
        if len(list(arrangements(done, ranks))) > 1:
            raise ArgumentError("grid", AUTO, f"{_GIVEN} one of the grids of {ranks} ranks")
        done = replace(done, grid=None)
    operators.get(str(done.algorithm), done.sparsity_aware or False)  # refuses what does not go together
    return done


def _rules(s: Settings, model: str) -> Iterator[Rule]:
    """Yield settings that others exclude, one after the other: each may rely on the ones before."""
    yield "dropout", not 0 <= s.dropout < 1, "must be at least 0 and less than 1"
    if not all(width > 0 for width in s.hidden):
        raise ArgumentError("hidden", list(s.hidden), "expected whole numbers, at least 1")
    layers = len(s.hidden_widths) + 1
    few = s.weight_decay is not None and len(s.weight_decay) not in (1, layers)
    yield "weight_decay", few, f"give one for all {layers} layers or one for each"
    single = s.dtype == "float32"
    yield "wire", s.wire and not single, f"rounds float32 while it travels, and excludes dtype={s.dtype}"
    problem = f"excludes sampler={s.sampler}; features of minibatches travel as they are"
    yield "wire", s.wire and s.samples, problem
    yield "tf32", s.tf32 and not single, f"rounds float32 in products, and excludes dtype={s.dtype}"
    wrong = s.mixed_precision and s.wire != "bfloat16"
    yield "mixed_precision", wrong, "needs wire=bfloat16, whose 16 bits it is about"
    other = NETWORKS[model].convolution is not GCN.convolution
    problem = f"is for the layers of model=gcn; those of model={model} keep their matrices in float32"
    yield "mixed_precision", s.mixed_precision and other, problem
    problem = f"excludes algorithm={ALTERNATING}, which adds up products with weights in float32"
    yield "mixed_precision", s.mixed_precision and s.algorithm == ALTERNATING, problem
    problem = f"excludes sampler={s.sampler}; it is for the whole graph"
    yield "cuda_graph", s.cuda_graph and s.samples, problem
    problem = f"excludes model={model}, whose attention is between rows of H W"
    yield "product_order", NETWORKS[model].attends and s.product_order == "aggregate-first", problem
    Schedule.parse(s.schedule, s.warmup)
    wrong = s.check not in (True, False, EVERY) and (isinstance(s.check, str) or s.check < 1)
    yield "check", wrong, f"expected {EVERY}, or a number of updates, at least 1"
    yield "warmup", s.warmup >= s.epochs, f"must be less than epochs={s.epochs}"
    for name in s.watchers:
        problem = "goes by validation accuracies, which eval_every=0 leaves out; evaluate more often"
        yield name, not s.eval_every, problem
    yield "resume", s.resume and not s.checkpoint, "say with checkpoint=DIR where to go on from"
    yield "checkpoint_every", s.checkpoint_every and not s.checkpoint, "say with checkpoint=DIR where to save"
    for name in ("algorithm", "replication"):
        yield name, getattr(s, name) == AUTO, f"{_GIVEN} {_CHOSEN.get(name, 'a number')}"
    yield from _rules_of_minibatches(s, model) if s.samples else _rules_of_the_whole_graph(s)


def _rules_of_the_whole_graph(s: Settings) -> Iterator[Rule]:
    for name in FOR_MINIBATCHES:
        given = bool(s.partition_graph) if name == "partition_graph" else getattr(s, name) is not None
        yield name, given, "is for minibatches; say with sampler=NAME how to make them"
    yield "order", s.order == AUTO, f"{_GIVEN} one of the store's orders"


def _rules_of_minibatches(s: Settings, model: str) -> Iterator[Rule]:
    yield from _rules_of_subgraphs(s) if s.together else _rules_of_samples(s, model)
    problem = f"excludes sampler={s.sampler}; of minibatches the grid and the bulk are planned, not the order"
    yield "order", s.order == AUTO, problem
    problem = "excludes train_features=True; minibatches read features and do not change them"
    yield "sampler", s.train_features, problem
    problem = f"is for model=gcn; the mean over sampled neighbours of model={model} is what it is"
    yield "rescale", NETWORKS[model].means and s.rescale is not None, problem
    problem = f"is for networks that multiply by the values of A, such as gcn, and not for model={model}"
    yield "renormalize", not _multiplies(model) and s.renormalize is not None, problem
    yield "importance", s.importance and s.sampler != "ladies", f"is for sampler=ladies, not {s.sampler}"


def _rules_of_subgraphs(s: Settings) -> Iterator[Rule]:
    for name in ("fanout", "batches_per_update", "bulk", "partition_graph", "parts", "renormalize"):
        given = bool(s.partition_graph) if name == "partition_graph" else getattr(s, name) is not None
        yield name, given, f"is not for sampler={VERTICES}, whose step is one subgraph on all ranks"
    problem = f"excludes sampler={VERTICES}; rows that are needed would be agreed on for each subgraph"
    yield "sparsity_aware", s.sparsity_aware, problem


def _rules_of_samples(s: Settings, model: str) -> Iterator[Rule]:
    problem = f"excludes sampler={s.sampler}; minibatches take features from block rows of 1.5d, which with "
    yield "algorithm", s.algorithm not in (None, "1.5d"), f"{problem}replication=1 is 1d"
    yield "bulk", s.bulk == AUTO, f"{_GIVEN} a number"
    if s.sampler not in defaults.KEEP_OWN and (NETWORKS[model].needs_own or s.residual):
        name, value = ("model", model) if NETWORKS[model].needs_own else ("residual", True)
        able = f"{', '.join(defaults.KEEP_OWN[:-1])} and {defaults.KEEP_OWN[-1]}"
        problem = f"needs every vertex's own features, which the samplers {able} keep, not {s.sampler}"
        raise ArgumentError(name, value, problem)
    ignored = s.sampler == "sage" and NETWORKS[model].attends and s.rescale is False
    problem = f"changes nothing: it is of the values of A, which attention (model={model}) does not read"
    yield "rescale", ignored, problem
    problem = f"is not for sampler={SHADOW}, whose subgraphs are what the network is trained on"
    yield "rescale", s.sampler == SHADOW and s.rescale is not None, problem
    for name in ("parts", "renormalize"):
        given = s.sampler != CLUSTER and getattr(s, name) is not None
        yield name, given, f"is for sampler={CLUSTER}, not {s.sampler}"
    problem = f"is not for sampler={CLUSTER}, which draws whole parts; say with batch_size how many"
    yield "fanout", s.sampler == CLUSTER and s.fanout is not None, problem
    problem = "sampler=saint draws one subgraph for all layers; give its number of nodes"
    yield "fanout", s.sampler == "saint" and s.fanout is not None and len(s.fanout) != 1, problem


def _of_minibatches(s: Settings, model: str, ranks: int) -> dict[str, Any]:
    """Return the defaults of minibatches."""
    filled: dict[str, Any] = {} if NETWORKS[model].means else {"rescale": s.rescale is not False}
    if s.together:
        return filled | {"algorithm": s.algorithm or "1d"}
    if s.sampler in (CLUSTER, SHADOW):
        filled["rescale"] = bool(s.rescale)
    if s.sampler == CLUSTER and _multiplies(model):
        filled["renormalize"] = not s.rescale if s.renormalize is None else s.renormalize
    if s.sampler != CLUSTER:
        filled["fanout"] = _fanout(s)
    filled |= {"algorithm": "1.5d", "bulk": s.bulk or defaults.BULK}
    filled["batches_per_update"] = s.batches_per_update or max(defaults.PER_UPDATE, ranks)
    if s.sampler == "ladies":
        filled["importance"] = s.importance or "zou"
    if s.grid is None and s.replication is None:
        filled["replication"] = 1
    return filled


def _multiplies(model: str) -> bool:
    """Tell whether a network multiplies by the values of A."""
    return not (NETWORKS[model].means or NETWORKS[model].attends)


def _fanout(s: Settings) -> list[int]:
    """Return the fanout of each layer; of one subgraph for all layers, its number of nodes."""
    layers = 1 if s.sampler == "saint" else len(s.hidden_widths) + 1
    if s.sampler == SHADOW:
        layers = defaults.HOPS if s.fanout is None else max(len(s.fanout), 1)
    sizes = defaults.FANOUTS.get(s.recipe, ()) if s.sampler == "sage" else ()
    sizes = sizes or (defaults.FANOUT[str(s.sampler)],)
    default = [*sizes, *[sizes[-1]] * layers][:layers]
    return list(check_fanout(default if s.fanout is None else s.fanout, layers))


def _of_network(s: Settings, model: str) -> dict[str, Any]:
    """Return the options of this network: its activation, and of attention heads and their dropout."""
    filled: dict[str, Any] = {"activation": s.activation or NETWORKS[model].activation}
    if not NETWORKS[model].attends:
        for name in OF_ATTENTION:
            if (value := getattr(s, name)) is not None:
                raise ArgumentError(name, value, f"is for models with attention, gat and gatv2, not {model}")
        return filled
    if s.sparsity_aware == "cover":
        problem = f"excludes model={model}, whose edges lie where their rows do; take True, or False"
        raise ArgumentError("sparsity_aware", "cover", problem)
    heads = spread(s.heads or defaults.HEADS, len(s.hidden_widths) + 1)
    for layer, (width, number) in enumerate(zip(s.hidden_widths, heads, strict=False)):
        if width % number:
            raise ArgumentError("heads", number, f"must share the width {width} of layer {layer} evenly")
    rate = s.attention_dropout or 0.0
    if not 0 <= rate < 1:
        raise ArgumentError("attention_dropout", rate, "must be at least 0 and less than 1")
    return filled | {"heads": heads, "attention_dropout": rate}


def network(s: Settings, A: Any, widths: Sequence[int]) -> GCN:
    """Make the network of resolved settings on a matrix. Collective."""
    given = {name: getattr(s, name) for name in ("seed", "product_order", "keep_aggregate", *OF_ALL)}
    return NETWORKS[str(s.model)](A, widths, **given, **special(str(s.model), vars(s)))


def special(model: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that only some networks need to have, as far as they are given and no default.

    A network of the user's, in ``NETWORKS``, is given none of them unasked.
    """
    wanted = {name: given.get(name) for name in OF_ATTENTION if NETWORKS[model].attends}
    activation = given.get("activation") or "relu"  # checkpoints of before have none
    wanted |= {"activation": activation} if activation != NETWORKS[model].activation else {}
    wanted |= {"recompute": given.get("recompute") or None}
    return {name: value for name, value in wanted.items() if value is not None}


def from_files(settings: Settings, store: StoreOrPath, comm: MPI.Intracomm | None = None) -> Settings:
    """Fill in the order of the nodes and the algorithm where they are not given.

    Local to a rank; with a communicator collective, and its first rank reads.

    The order is that of the checkpoint to resume, where the checkpoint depends on one; else the first of the
    store that the other settings can take. The algorithm is ``3d`` on an order with two versions, and stays
    open on others. What stays None has the defaults of :class:`Settings`. A store or checkpoint that can't be
    read decides nothing: opening it says what is wrong.
    """
    s = settings
    to_plan = s.order == AUTO  # the algorithm is then the one for the first order
    known = s.order is not None and (s.algorithm is not None or s.samples)
    if known or (s.algorithm == AUTO and not s.samples):
        return s
    doubled, resumed = _read(s, store, comm)
    given, first = (None if to_plan else s.order) or resumed, next(iter(doubled), None)
    single = [name for name, two in doubled.items() if not two]
    order = given or (single[0] if single and doubled.get(first) and takes_one(s) else first)
    algorithm = ALTERNATING if doubled.get(order) and not takes_one(s) else s.algorithm
    return replace(s, order=s.order if to_plan or order == first else order, algorithm=algorithm)


def _read(s: Settings, store: StoreOrPath, comm: MPI.Intracomm | None) -> Any:
    """Return `_doubled` and `resumed_order`, by the first rank of a communicator for all."""
    if comm is None:
        return _doubled(store), resumed_order(s)
    with together(comm):
        read = _read(s, store, None) if comm.Get_rank() == 0 else None
    return comm.bcast(read)


def resumed_order(settings: Settings) -> str | None:
    """Return the order that the checkpoint to resume depends on, if there is one that can be read."""
    if not (settings.resume and settings.checkpoint):
        return None
    try:
        return manifest.read(settings.checkpoint, CHECKPOINT)["meta"]["run"].get("order")
    except _UNREADABLE:
        return None


def _doubled(store: StoreOrPath) -> dict[str | None, bool]:
    """Return the orders of a store by name, and whether they have two versions of the matrix."""
    try:
        orders = (store.manifest if isinstance(store, Store) else manifest.read(Path(store)))["orders"]
        return {name: len(entry.get("versions", ())) > 1 for name, entry in orders.items()}
    except _UNREADABLE:
        return {}


def takes_one(s: Settings) -> bool:
    """Return whether these settings rule out two versions of the matrix."""
    needs_own = s.model in NETWORKS and NETWORKS[str(s.model)].needs_own
    return bool(s.samples or needs_own or s.sparsity_aware) or s.algorithm not in (None, ALTERNATING)


class LeftOpen(NamedTuple):
    """Settings, and the choices that they leave to a plan.

    Attributes:
        settings: with the order and the algorithm that files decide.
        asked: the settings to plan with, see :func:`to_plan`; None: nothing is open.
    """

    settings: Settings
    asked: Settings | None


def left_open(comm: MPI.Intracomm, settings: Settings, store: StoreOrPath) -> LeftOpen:
    """Find what settings leave open for a run on all ranks of ``comm`` and this store. Collective.

    Raises:
        ArgumentError: settings that a run would refuse, or ranks that disagree in them or in the store; on
            every rank.
    """
    agree(comm, identity(store, comm) | settings.shared())
    filled = from_files(settings, store, comm)
    asked = to_plan(filled, comm.Get_size())
    copies_known = asked is None and filled.replication == AUTO  # there is one number
    return LeftOpen(replace(filled, replication=None) if copies_known else filled, asked)


def to_plan(settings: Settings, ranks: int) -> Settings | None:
    """Return the settings to plan with on so many ranks: resolved, and without a grid or an order "auto"; or
    None where nothing is open. The algorithm "auto" stays, and only with it is open whether blocks are sent
    whole. Of minibatches a replication and a bulk "auto" stay; of subgraphs what is "auto" alone is open.

    Raises:
        ArgumentError: settings that a run would refuse.
    """
    if settings.together and AUTO not in (settings.algorithm, settings.grid, settings.replication):
        return None
    if settings.samples and not settings.together:
        return _minibatches_to_plan(settings, ranks)
    grid = None if settings.grid == AUTO else settings.grid
    copies = None if settings.replication == AUTO else settings.replication
    if settings.replication == AUTO and settings.algorithm not in (AUTO, "1.5d"):
        problem = f"{settings.algorithm or '1d'} keeps no copies; only 1.5d does"
        raise ArgumentError("replication", AUTO, problem)
    order = None if settings.order == AUTO and not settings.samples else settings.order
    s = replace(settings, grid=grid, replication=copies, order=order)
    if s.algorithm != AUTO:
        s = resolved(s, ranks)
        return s if settings.order == AUTO or len(list(arrangements(s, ranks))) > 1 else None
    resolved(replace(s, algorithm="1.5d"), ranks)  # numbers, and what excludes what
    if not list(ways(s, ranks)):
        name = "replication" if s.grid is None else "grid"
        problem = f"no algorithm can do this on {ranks} ranks; leave it out, or name an algorithm"
        raise ArgumentError(name, getattr(s, name), problem)
    return s


def _minibatches_to_plan(settings: Settings, ranks: int) -> Settings | None:
    """Return the settings to plan minibatches with, whose defaults are those of a run; None: none is open."""
    s, grid = settings, closed(settings).grid
    if AUTO not in (s.algorithm, s.grid, s.replication, s.bulk):
        return None
    resolved(closed(s), ranks)
    copies = s.replication or (AUTO if grid or AUTO in (s.algorithm, s.grid) else 1)
    return replace(s, algorithm="1.5d", grid=grid, replication=copies, bulk=s.bulk or defaults.BULK)


def closed(settings: Settings) -> Settings:
    """Return settings for minibatches with the defaults of a run where they leave a choice to a plan."""
    names = "algorithm", "grid", "replication", "bulk"
    auto: Any = {name: None for name in names if getattr(settings, name) == AUTO}
    return replace(settings, **auto)


def make_grid(comm: Any, s: Settings, backend: Any = None) -> Grid:
    """Make the grid of a run with these resolved settings. Collective; errors of ``operators.make_grid``."""
    name = str(s.algorithm)
    copies: Any = s.replication
    grid = operators.make_grid(comm, name, parse_grid(s.grid, name), copies, backend, s.wire)
    grid.overlap, grid.block_rows = s.overlap, s.block_rows
    return grid


def set_precision(grid: Grid, s: Settings) -> None:
    """Set what products on a grid, and networks made later, round. Collective.

    ArgumentError, on every rank: the device or the number of ranks does not allow it.
    """
    with grid.world.together():
        grid.backend.use_tf32(s.tf32)
        set_mixed(grid, s.mixed_precision)


def set_mixed(grid: Grid, mixed: bool) -> None:
    """Set whether networks made later keep matrices in 16 bits. ArgumentError: of `set_precision`."""
    if mixed and (grid.size > 1 or not grid.reads_rounded):
        raise ArgumentError("mixed_precision", True, "is for one rank, which has a GPU")
    grid.mixed = mixed


def of_store(s: Settings, store: Store) -> tuple[Settings, Order]:
    """Fill in the loss and the metric that an opened store decides, and give the order of its nodes. Local to
    a rank.

    Raises:
        UserError: the store lacks what training needs. ArgumentError: an order, a loss, a metric or a batch
            size that do not go with the store.
    """
    order = store.order(s.order)
    if len(order.versions) > 1 and (s.samples or NETWORKS[str(s.model)].needs_own):
        what = "subgraphs, whose nodes have one place each," if s.together else "minibatches"
        what = what if s.samples else f"model={s.model}"
        problem = f"orders rows and columns apart, which {what} can't use; take another"
        raise ArgumentError("order", order.name, problem)
    check_content(store)
    if s.samples and s.batch_size:
        check_batch_size(s.batch_size, store.manifest["split"]["train"])
    loss = checked_loss(s.loss, store.loss, store.manifest["class_names"])
    return replace(s, loss=loss, metric=checked_metric(s.metric, loss)), order


def check_content(store: Store) -> None:
    """Raise UserError unless the store has all that training needs."""
    split = store.manifest["split"]
    needed = {"features=FILE": store.width, "labels=FILE": store.classes, "split=0.6/0.2/0.2": split}
    for setting, there in needed.items():
        if not there:
            problem = f"has no {setting.split('=')[0]}, which training needs; prepare it with {setting}"
            raise UserError(f"{store.path}: {problem}")
    if not split.get("train"):
        raise UserError(f"{store.path}: no node is in the training split; prepare it with split=0.6/0.2/0.2")


def check_outputs(settings: Settings) -> None:
    """Raise UserError if something would be overwritten, or can't be written."""
    check_apart({name: getattr(settings, name) for name in ("checkpoint", "log", "trace")})
    if settings.checkpoint:
        checkpoint.check_path(Path(settings.checkpoint), settings.resume, settings.force)
    if settings.log:
        check_output("log", Path(settings.log), settings.resume or settings.force)
    if settings.trace:
        check_output("trace", Path(settings.trace), settings.force)
