"""The settings of a training run, in one frozen object that the command line or Python makes.

Each field has its default, help, range and choices in one place, from which the flags of the command line,
the checks of values and the table in ``docs/commands.md`` are made. Recipes are sets of settings by name,
after papers: the defaults of what is not given.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from distgnn.errors import ArgumentError, offered
from distgnn.train.keywords import AllSettings
from distgnn.train.schedule import Schedule

#: Settings of networks with attention, which other networks refuse.
OF_ATTENTION = ("heads", "attention_dropout")
#: The recipe of a run that names none.
DEFAULT = "kipf-welling"
#: The weight decay of the first layer in Kipf and Welling, ICLR 2017, section 5.2; other layers have none.
FIRST_DECAY = 5e-4

_PLAIN: dict[str, Any] = {
    "hidden": (16,), "bias": False, "dropout": 0.0, "normalize_features": False,
    "standardize_features": False, "epochs": 200, "lr": 0.01, "weight_decay": (0.0,), "keep_best": "none",
}  # fmt: skip
#: None: decay on the first layer, features divided where they are counts, else
#: standardised where their scales differ, the best weights where there is a
#: validation split.
_KIPF_WELLING = _PLAIN | {
    "bias": True, "dropout": 0.5, "weight_decay": None, "normalize_features": None, "keep_best": None,
    "standardize_features": None,
}  # fmt: skip
#: Hamilton, Ying and Leskovec, NeurIPS 2017, section 4, with dropout: two layers on sampled neighbours.
_GRAPHSAGE = _KIPF_WELLING | {
    "model": "sage", "sampler": "sage", "hidden": (256,),
    "epochs": 10, "weight_decay": (0.0,), "normalize_features": False,
}  # fmt: skip

#: Veličković et al., ICLR 2018, section 3.3, on Cora; so many epochs and the best one in place of patience.
_GAT = _KIPF_WELLING | {
    "model": "gat", "hidden": (64,), "heads": (8,), "dropout": 0.6, "attention_dropout": 0.6,
    "epochs": 300, "lr": 0.005, "weight_decay": (5e-4,),
}  # fmt: skip

#: By name: setting -> value.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "kipf-welling": _KIPF_WELLING, "graphsage": _GRAPHSAGE, "gat": _GAT, "plain": _PLAIN,
}  # fmt: skip
#: Neighbours per node and layer of recipes with samples, the layer next to the batch first; the last repeats.
FANOUTS: Mapping[str, Sequence[int]] = {"graphsage": (25, 10)}

MOST_LAYERS = 10_000  # more are a slip
#: Minibatches per update, unless there are more ranks. Up to that many ranks train the same.
PER_UPDATE = 8
BATCH_SIZE, BULK = 1024, 4
#: By sampler: the neighbours of a node, or the nodes of a layer or subgraph.
FANOUT = {"sage": 10, "shadow": 10, "ladies": 512, "fastgcn": 512, "saint": 512}
#: The sampler of a subgraph for each node of the batch, and its hops by default.
SHADOW, HOPS = "shadow", 2
#: The sampler whose subgraphs all ranks multiply together, by any algorithm; and its steps of an epoch, at
#: most, where no batch size is given.
VERTICES, STEPS_OF_VERTICES = "vertices", 4
#: The sampler of parts of a partition, and how many of them a minibatch has by default.
CLUSTER, PARTS_OF_BATCH = "cluster", 2

#: Heads of attention, in all layers but the last.
HEADS = 8
#: Updates whose losses are compared with a serial training unless a number or EVERY is given.
CHECKED, EVERY = 5, "all"
#: The value of `sampler` and `keep_best` that undoes a recipe's.
NONE = "none"
#: The value of `algorithm`, `grid`, `order`, `replication` and `bulk` for which a plan chooses.
AUTO = "auto"


def setting(
    group: str, default: Any, help: str, *, metavar: str | None = None, least: int | None = None,
    choices: Sequence[str] = (), known: Sequence[str] = (), switch: bool = False
) -> Any:  # fmt: skip
    """Define a field of a settings class.

    Args:
        group: the heading under which ``--help`` shows the flag.
        help: one line without the default, unless None stands for one: then "(default: ...)" names it.
        metavar: the name of the value in ``--help``.
        least: the smallest whole number that is taken.
        choices: all texts that are taken; with `least`, beside numbers.
        known: the texts that the command line takes. Python may give others, which the user of the setting
            checks, as a registry may hold more.
        switch: whether a Boolean has a flag ``--no-NAME`` beside ``--NAME``.
    """
    facts = {"group": group, "help": help, "metavar": metavar, "least": least, "choices": tuple(choices)}
    facts |= {"known": tuple(known or choices), "switch": switch}
    return dataclasses.field(default=default, metadata=facts)


def public(settings: Any) -> list[dataclasses.Field]:
    """List the fields of a settings class, or of an object of it, that have a flag."""
    return [field for field in dataclasses.fields(settings) if field.metadata]


def check_fields(settings: Any) -> None:
    """Raise ArgumentError for the first field whose value has another type or is out of range."""
    for field in dataclasses.fields(settings):
        if field.metadata.get("least") is None:
            _check_type(field, getattr(settings, field.name))
    for field in public(settings):
        value, least = getattr(settings, field.name), field.metadata["least"]
        choices = field.metadata["choices"]
        if (value is None and _may_be_none(field)) or value in choices:
            continue
        if choices and least is None:
            raise ArgumentError(field.name, value, offered(value, choices))
        if least is not None and (not _is_whole(value) or value < least):
            words = "".join(f", or {word}" for word in choices)
            raise ArgumentError(field.name, value, f"expected a whole number, at least {least}{words}")


def kinds(field: dataclasses.Field) -> list[str]:
    """List the types that a field may have, as its annotation has them, but for None."""
    return [name for name in str(field.type).split(" | ") if name != "None"]


def _check_type(field: dataclasses.Field, value: Any) -> None:
    if value is None and _may_be_none(field):
        return
    names = kinds(field)
    if not any(KINDS[name][0](value) for name in names):
        raise ArgumentError(field.name, repr(value), f"expected {' or '.join(KINDS[n][1] for n in names)}")


def _may_be_none(field: dataclasses.Field) -> bool:
    return str(field.type).endswith(" | None")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, float)


def _all(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def fit(value: Any) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(map(fits, value))

    return fit


#: By annotation: the test of a value, and the name of such a value in errors. A Boolean is no number.
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (_is_whole, "a whole number"),
    "float": (_is_number, "a number"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "Mapping[str, int]": (lambda value: isinstance(value, Mapping), "a mapping"),
    "Sequence[int]": (_all(_is_whole), "a whole number or several"),
    "Sequence[float]": (_all(_is_number), "a number or several"),
}


def filled(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the recipe in `given` for the settings that are None there."""
    recipe = RECIPES.get(str(given["recipe"]), _PLAIN)  # any other value is refused with the other settings
    other = given["model"] not in (None, "gat", "gatv2")
    chosen = {name: value for name, value in recipe.items() if given[name] is None}
    return {name: value for name, value in chosen.items() if not (other and name in OF_ATTENTION)}


_product, _batches, _network, _training, _output = (
    partial(setting, group) for group in ("algorithm", "minibatches", "network", "training", "output")
)


@dataclass(frozen=True)
class Settings:
    """All of a training run but its store and its ranks, with a field for each flag of ``distgnn train``.

    Settings of the recipe (``distgnn.train.recipes``) are filled in where they are not given. None stands for
    a default that depends on the others, on the store or on the ranks. "auto" is for
    ``distgnn.plan.settle``, which puts what it chooses in its place.
    """

    # fmt: off
    algorithm: str | None = _product(None, "see distgnn algorithms, or auto: the fastest by a plan "
        "(default: 1d; 3d on order double; of minibatches 1.5d)", metavar="NAME")
    grid: str | Mapping[str, int] | None = _product(None, "2x2 in the order of its axes, or rows=2,cols=2, "
        "the last within a node (default: by a plan)", metavar="SHAPE")
    replication: int | str | None = _product(None, "copies of 1.5d, as --grid reps=C; auto: by a plan "
        "(minibatches: 1)", metavar="C", least=1, choices=(AUTO,))
    sparsity_aware: bool | str | None = _product(None, "1d, 1.5d, rdm: send only the rows needed; =auto: "
        "or whole blocks where estimated faster; =cover: the fewest rows of H and of products",
        metavar="auto|cover")
    overlap: bool = _product(True, "let blocks travel while others are multiplied", switch=True)
    wire: str | None = _product(None, "features and gradients travel between ranks in 16 bits, rounded from "
        "float32, and sparse products on a GPU read them so; sums stay in float32 (default: as they are, so "
        "that losses are exact)",
        choices=("bfloat16", "float16"))
    product_order: str = _product("auto", "(A H) W, A (H W), or in each layer the one that multiplies fewer "
        "columns by A (default)", choices=("auto", "aggregate-first", "transform-first"))
    keep_aggregate: bool = _product(True, "multiply features that neither training nor dropout changes by A "
        "only once", switch=True)
    recompute: int = _product(0, "keep the input of every K-th layer alone for the backward pass, which goes "
        "through the layers between again: less memory, the same numbers (default: keep all)", metavar="K",
        least=0)
    block_rows: int | None = _product(None, "3d and 1.5d: sum products in row blocks of N while the next is "
        "multiplied (default: by size)", metavar="N", least=1)
    tune_gemm: bool = _product(True, "time the forms of dense products, take the fastest", switch=True)
    order: str | None = _product(None, "node order of the store (default: the first that will do; of auto by "
        "a plan)", metavar="NAME")
    dtype: str = _product("float32", "of all matrices", choices=("float32", "float64"))
    tf32: bool = _product(False, "on a GPU dense products round what they multiply to 10 bits "
        "(TensorFloat-32), which is faster; sums stay in float32")
    mixed_precision: bool = _product(False, "with --wire bfloat16 on one GPU keep matrices of nodes between "
        "products in 16 bits, which dense products read, too; weights, sums and the loss stay in float32")
    cuda_graph: bool | None = _product(None, "on one GPU queue an epoch as CUDA graphs, which spares the "
        "host most of its time where graphs are small (default: there, where that is possible)", switch=True)
    backend: str | None = _product(None, "of arrays (default: a GPU if there is one)",
        known=("auto", "numpy", "cupy"))

    sampler: str | None = _batches(None, "train on minibatches drawn like this (default: none, but on the "
        "whole graph)", choices=(*FANOUT, CLUSTER, VERTICES, NONE))
    fanout: Sequence[int] | None = _batches(None, "per layer, that next to the batch first: sage: neighbours "
        f"per node (default {FANOUT['sage']}); ladies, fastgcn: nodes per layer ({FANOUT['ladies']}); saint: "
        f"one number, nodes of the subgraph ({FANOUT['saint']}); shadow: neighbours per node and hop "
        f"({FANOUT['shadow']},{FANOUT['shadow']})", metavar="S[,S...]")
    batch_size: int | None = _batches(None, f"training nodes of a minibatch (default: {BATCH_SIZE}); "
        f"vertices: nodes of a subgraph (a quarter of all, or {BATCH_SIZE}); cluster: parts "
        f"({PARTS_OF_BATCH})", metavar="B", least=1)
    parts: str | None = _batches(None, "cluster: METHOD:K, such as metis:50, or FILE:K, as of prepare "
        "--partition (default: the parts of the order)", metavar="METHOD:K")
    batches_per_update: int | None = _batches(None, "minibatches averaged in an update by all ranks "
        f"(default: {PER_UPDATE}, or the number of ranks)", metavar="N", least=1)
    bulk: int | str | None = _batches(None, "minibatches that a rank samples at a time; auto: as many as it "
        f"has room for, by a plan (default: {BULK})", metavar="K", least=1, choices=(AUTO,))
    partition_graph: bool | None = _batches(None, "cut the graph to sample from over the ranks (default: all "
        "of it on each)")
    importance: str | None = _batches(None, "ladies: sums of squared weights (Zou et al., default) or "
        "squared numbers of neighbours", choices=("zou", "counts"))
    rescale: bool | None = _batches(None, "gcn: divide by inclusion probabilities, for no bias, of "
        "two parts or nodes at least (default: yes; cluster: no)", switch=True)
    renormalize: bool | None = _batches(None, "cluster, gcn: values of a row add up to what they do on the "
        "graph (default: yes, without --rescale)", switch=True)

    recipe: str = _network(DEFAULT, "settings of a paper, for all that is not given (docs/training.md)",
        choices=tuple(RECIPES))
    model: str | None = _network(None, "sage: GraphSAGE with means; gat, gatv2: graph attention (default: as "
        "--sampler)", known=("gcn", "sage", "gat", "gatv2"))
    layers: int | None = _network(None, "how many (default: one more than --hidden has widths)",
        metavar="L", least=1)
    hidden: Sequence[int] = _network(None, "widths, one for all or one for each (default: by --recipe: 16; "
        "graphsage: 256)", metavar="F[,F...]")
    heads: Sequence[int] | None = _network(None, "gat, gatv2: heads that share --hidden, one number for all "
        "layers but the last, which has one, or one for each; several in the last are averaged (default: "
        f"{HEADS})", metavar="K[,K...]")
    bias: bool = _network(None, "a bias in every layer (default: yes; plain: no)", switch=True)
    residual: bool = _network(False, "add the input of a layer to its output, where they are as wide, but in "
        "the last (default: no)", switch=True)
    layer_norm: bool = _network(False, "of every layer's output but the last (default: no)", switch=True)
    dropout: float = _network(None, "dropped share of every layer's input (default: 0.5; plain: 0)",
        metavar="P")
    attention_dropout: float | None = _network(None, "gat, gatv2: dropped share of attention (default: 0; "
        "--recipe gat: 0.6)", metavar="P")
    activation: str | None = _network(None, "after every layer but the last (default: relu; gat, gatv2: elu)",
        choices=("relu", "elu"))
    train_features: bool = _network(False, "train the features too")
    normalize_features: bool | None = _network(None, "divide every row of the features by its sum (default: "
        "kipf-welling: where they are counts, most of them 0; else no)", switch=True)
    standardize_features: bool | None = _network(None, "take the mean off every column of the features and "
        "divide it by its spread, both of the training nodes (default: where scales of columns differ by "
        "more than 10 times and features are no counts; plain: no)", switch=True)

    epochs: int = _training(None, "passes over the training nodes since training began; on the full graph "
        "each is an update (default: 200; graphsage: 10)", metavar="N", least=1)
    optimizer: str = _training("adam", "what makes the updates", known=("adam", "adamw", "sgd"))
    lr: float = _training(None, "step size (default: 0.01)", metavar="X")
    momentum: float = _training(0.0, "of sgd", metavar="X")
    weight_decay: Sequence[float] | None = _training(None, "one, or one per layer (default: kipf-welling: "
        f"{FIRST_DECAY:g} on the first; else 0)", metavar="X[,X...]")
    clip: float | None = _training(None, "scale gradients down to this norm of all of them together",
        metavar="X")
    schedule: str | None = _training(None, "of the step size: cosine, step:30,0.5 (halve it every 30 epochs) "
        "or plateau:10,0.5 (halve it when validation was not better for 10) (default: it stays)",
        metavar="NAME")
    warmup: int = _training(0, "let the step size rise for N epochs first", metavar="N", least=0)
    keep_best: str | None = _training(None, "keep the weights of the epoch with the best validation "
        "(default: where nodes are there to validate and features are not trained; plain: none)",
        choices=("val", NONE))
    patience: int | None = _training(None, "stop when validation was not better for N epochs",
        metavar="N", least=1)
    seed: int = _training(0, "of weights, dropout, minibatches and samples", metavar="S")
    eval_every: int = _training(1, "between scores, which are of the weights before an epoch's update; 0: at "
        "the end", metavar="EPOCHS", least=0)
    loss: str | None = _training(None, "mse: predict numbers; one class of a node has softmax, several have "
        "binary (default: by the labels)", choices=("softmax", "binary", "mse"))
    metric: str | None = _training(None, "where nodes may have several classes: f1, micro F1 (default), or "
        "rocauc, the mean ROC-AUC of the classes, as for ogbn-proteins; of numbers "
        "r2, with the mean absolute error; else accuracy", choices=("accuracy", "f1", "rocauc", "r2"))

    log: str | None = _output(None, "write JSON lines", metavar="FILE")
    trace: str | None = _output(None, "write what every rank did when, for ui.perfetto.dev and report",
        metavar="FILE")
    checkpoint: str | None = _output(None, "keep weights and optimiser state here", metavar="DIR")
    checkpoint_every: int = _output(0, "between saves, 0: at the end", metavar="EPOCHS", least=0)
    resume: bool = _output(False, "go on from --checkpoint, on any grid, and in --log")
    force: bool = _output(False, "replace an existing --log, --trace or --checkpoint")
    quiet: bool = False  # a flag of all commands; a Run never prints
    check: bool | int | str = _output(False, f"train serially beside, on rank 0, for {CHECKED} updates, N or "
        f"{EVERY}, and fail if a loss differs", metavar=f"N|{EVERY}")
    verify: bool = _output(False, "compare every byte of the store with its checksums first")
    # fmt: on
    if TYPE_CHECKING:

        def __init__(self, **given: Unpack[AllSettings]) -> None: ...

    def __post_init__(self) -> None:
        by_recipe = filled(vars(self))
        for name in (field.name for field in dataclasses.fields(self)):
            value = _plain(by_recipe.get(name, getattr(self, name)))
            if name in ("hidden", "fanout", "weight_decay", "heads") and isinstance(value, (int, float)):
                value = [value]  # one number stands for a list of one
            object.__setattr__(self, name, value)

    def shared(self) -> dict[str, Any]:
        """Return the settings that all ranks of a run must share: all but `quiet`, as one rank prints."""
        return {name: value for name, value in vars(self).items() if name != "quiet"}

    @property
    def hidden_widths(self) -> list[int]:
        """One width per hidden layer; ArgumentError for another number of widths than `layers` asks for."""
        given = len(self.hidden)
        if max(self.layers or 0, given + 1) > MOST_LAYERS:
            name, value = ("hidden", f"{given} widths") if given >= MOST_LAYERS else ("layers", self.layers)
            raise ArgumentError(name, value, f"expected at most {MOST_LAYERS} layers")
        if self.layers is not None and given == 1:
            return [*self.hidden] * (self.layers - 1)
        if self.layers not in (None, given + 1):
            problem = f"{given} widths make {given + 1} layers, not layers={self.layers}"
            raise ArgumentError("hidden", self.hidden, problem)
        return list(self.hidden)

    @property
    def samples(self) -> bool:
        """True where training is on minibatches."""
        return self.sampler not in (None, NONE)

    @property
    def together(self) -> bool:
        """True where all ranks multiply a subgraph together, by any algorithm."""
        return self.sampler == VERTICES

    @property
    def decays(self) -> list[float]:
        """The weight decay of each layer."""
        layers = len(self.hidden_widths) + 1
        if self.weight_decay is None:
            return [FIRST_DECAY] + [0.0] * (layers - 1)
        return list(self.weight_decay) if len(self.weight_decay) > 1 else [*self.weight_decay] * layers

    @property
    def checked_updates(self) -> int | None:
        """The number of updates whose losses `check` compares; None: all."""
        if isinstance(self.check, str):
            return None
        return CHECKED if self.check is True else int(self.check)

    @property
    def watchers(self) -> dict[str, Any]:
        """The settings that go by validation, as far as they are given: name -> value."""
        plateau = Schedule.parse(self.schedule).kind == "plateau"
        followed: dict[str, Any] = {"keep_best": "val" if self.keep_best == "val" else None}
        followed |= {"patience": self.patience}
        followed |= {"schedule": self.schedule if plateau else None}
        return {name: value for name, value in followed.items() if value is not None}


#: Samplers whose blocks have the features of their rows' vertices first, beside vertices.
KEEP_OWN = ("sage", CLUSTER, SHADOW)
#: Settings that mean something for minibatches only.
FOR_MINIBATCHES = [field.name for field in public(Settings) if field.metadata["group"] == "minibatches"]
FOR_MINIBATCHES.remove("sampler")


def _plain(value: Any) -> Any:
    """Convert numbers, types and arrays of NumPy, and paths, to what Python and JSON have."""
    if isinstance(value, type):  # such as np.float32
        return value.__name__
    if hasattr(value, "newbyteorder") and not hasattr(value, "tolist"):  # a dtype
        return value.name
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else getattr(value, "tolist", lambda: value)()
