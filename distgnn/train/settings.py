"""The settings of a training run, in one frozen object that the command line or Python makes."""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from types import UnionType
from typing import Any

from distgnn import operators
from distgnn.errors import ArgumentError
from distgnn.nn.loss import METRICS
from distgnn.nn.networks import NETWORKS, REFERENCES
from distgnn.sampling.sampler import check_fanout
from distgnn.train.schedule import Schedule

#: Minibatches per update, unless there are more ranks. Up to that many ranks train the same.
PER_UPDATE = 8
BATCH_SIZE, BULK = 1024, 4
FANOUT = {"sage": 10, "ladies": 512, "fastgcn": 512, "saint": 512}

#: Updates whose losses are compared with a serial training unless a number or EVERY is given.
CHECKED, EVERY = 5, "all"
#: The algorithm that a planner replaces by one of those that there are.
AUTO = "auto"
#: Settings that mean something for minibatches only.
FOR_MINIBATCHES = "fanout batch_size bulk batches_per_update partition_graph importance rescale".split()
CHOICES = {
    "dtype": ("float32", "float64"),
    "sampler": (None, *FANOUT),
    "importance": (None, "zou", "counts"),
    "product_order": ("auto", "aggregate-first", "transform-first"),
    "metric": (None, *METRICS[False], *METRICS[True]),
    "keep_best": (None, "val"),
}
LEAST = {"batch_size": 1, "batches_per_update": 1, "block_rows": 1, "bulk": 1, "checkpoint_every": 0,
         "epochs": 1, "eval_every": 0, "layers": 1, "patience": 1, "replication": 1, "warmup": 0}  # fmt: skip
#: What fits a type of a field, and how errors call it. A bool is no number.
TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "True or False"), int: ((int,), "a whole number"), float: ((int, float), "a number"),
    str: ((str,), "a text"), Mapping: ((Mapping,), "a mapping"),
    Sequence: ((Sequence,), "a list"), type(None): ((type(None),), "None"),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """All of a training run but its store and its ranks. ``distgnn train --help`` describes each setting.

    None stands for a default that depends on the others, on the store or on the ranks. The algorithm "auto",
    and what a plan shall choose for others, are for ``distgnn.plan.settle``.
    """

    # the distributed product
    algorithm: str | None = None
    grid: str | Mapping[str, int] | None = None
    replication: int | None = None
    sparsity_aware: bool | str | None = None
    overlap: bool = True
    product_order: str = "auto"
    keep_aggregate: bool = True
    block_rows: int | None = None
    tune_gemm: bool = True
    order: str | None = None
    dtype: str = "float32"
    backend: str | None = None
    # minibatches
    sampler: str | None = None
    fanout: Sequence[int] | None = None
    batch_size: int | None = None
    batches_per_update: int | None = None
    bulk: int | None = None
    partition_graph: bool | None = None
    importance: str | None = None
    rescale: bool | None = None
    # the network
    model: str | None = None
    layers: int | None = None
    hidden: Sequence[int] = (16,)
    bias: bool = False
    residual: bool = False
    layer_norm: bool = False
    dropout: float = 0.0
    train_features: bool = False
    normalize_features: bool = False
    # training
    epochs: int = 200
    optimizer: str = "adam"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: Sequence[float] = (0.0,)
    clip: float | None = None
    schedule: str | None = None
    warmup: int = 0
    patience: int | None = None
    keep_best: str | None = None
    seed: int = 0
    eval_every: int = 1
    metric: str | None = None
    # what is written and compared
    log: str | None = None
    trace: str | None = None
    checkpoint: str | None = None
    checkpoint_every: int = 0
    resume: bool = False
    force: bool = False
    quiet: bool = False  # of the command line; a Run never prints
    check: bool | int | str = False
    verify: bool = False

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = _plain(getattr(self, name))
            if name in ("hidden", "fanout", "weight_decay") and isinstance(value, (int, float)):
                value = [value]  # one number stands for a list of one
            object.__setattr__(self, name, value)

    def shared(self) -> dict[str, Any]:
        """What must be the same on all ranks of a run: all but `quiet`, as one rank prints."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "quiet"}

    def resolved(self, ranks: int) -> Settings:
        """The same with defaults filled in, except for `order` and `batch_size`, which the store decides.

        Raises:
            ArgumentError: a value out of range, or settings that exclude each other.
        """
        self._check_numbers()
        model = self.model or ("sage" if self.sampler == "sage" else "gcn")
        if self.check and model not in REFERENCES:
            problem = f"there is no serial reference of model={model}; compare a run with overlap=False"
            raise ArgumentError("check", self.check, problem)
        done = self._sampling(model, ranks) if self.sampler else self._full_graph(model)
        if done.block_rows is not None and done.algorithm not in ("1.5d", "3d"):
            problem = f"is for 1.5d and 3d, which all-reduce products; algorithm {done.algorithm} does not"
            raise ArgumentError("block_rows", done.block_rows, problem)
        return replace(done, sparsity_aware=self.sparsity_aware or False)

    @property
    def hidden_widths(self) -> list[int]:
        """One width per hidden layer; ArgumentError for another number of widths than `layers` asks for."""
        given = len(self.hidden)
        if self.layers is not None and given == 1:
            return [*self.hidden] * (self.layers - 1)
        if self.layers not in (None, given + 1):
            problem = f"{given} widths make {given + 1} layers, not layers={self.layers}"
            raise ArgumentError("hidden", self.hidden, problem)
        return list(self.hidden)

    @property
    def decays(self) -> list[float]:
        """The weight decay of each layer."""
        decays = list(self.weight_decay)
        return decays if len(decays) > 1 else decays * (len(self.hidden_widths) + 1)

    @property
    def checked_updates(self) -> int | None:
        """The losses of how many updates `check` compares; None: of all."""
        if isinstance(self.check, str):
            return None
        return CHECKED if self.check is True else int(self.check)

    def _check_types(self) -> None:
        for name, wanted in _types().items():
            if name not in LEAST and not any(_fits(getattr(self, name), one) for one in wanted):
                names = " or ".join(_named(one) for one in wanted if one is not type(None))
                raise ArgumentError(name, repr(getattr(self, name)), f"expected {names}")

    def _check_numbers(self) -> None:
        self._check_types()
        for name, choices in (CHOICES | {"model": (None, *NETWORKS)}).items():
            if getattr(self, name) not in choices:
                known = ", ".join(choice for choice in choices if choice)
                raise ArgumentError(name, getattr(self, name), f"expected one of {known}")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and (not _fits(value, int) or value < least):
                raise ArgumentError(name, value, f"expected a whole number, at least {least}")
        if not 0 <= self.dropout < 1:
            raise ArgumentError("dropout", self.dropout, "must be at least 0 and less than 1")
        if not all(width > 0 for width in self.hidden):
            raise ArgumentError("hidden", list(self.hidden), "expected whole numbers, at least 1")
        layers = len(self.hidden_widths) + 1
        if len(self.weight_decay) not in (1, layers):
            problem = f"give one for all {layers} layers or one for each"
            raise ArgumentError("weight_decay", self.weight_decay, problem)
        self._check_training()
        if self.resume and not self.checkpoint:
            raise ArgumentError("resume", True, "say with checkpoint=DIR where to go on from")
        if self.checkpoint_every and not self.checkpoint:
            problem = "say with checkpoint=DIR where to save"
            raise ArgumentError("checkpoint_every", self.checkpoint_every, problem)

    @property
    def watchers(self) -> dict[str, Any]:
        """The settings that go by validation, as far as they are given: name -> value."""
        plateau = Schedule.parse(self.schedule).kind == "plateau"
        found = {"keep_best": self.keep_best, "patience": self.patience}
        found |= {"schedule": self.schedule if plateau else None}
        return {name: value for name, value in found.items() if value is not None}

    def _check_training(self) -> None:
        Schedule.parse(self.schedule, self.warmup)
        if self.check not in (True, False, EVERY) and (isinstance(self.check, str) or self.check < 1):
            raise ArgumentError("check", self.check, f"expected {EVERY}, or a number of updates, at least 1")
        if self.warmup >= self.epochs:
            raise ArgumentError("warmup", self.warmup, f"must be less than epochs={self.epochs}")
        for name, value in self.watchers.items():
            if not self.eval_every:
                problem = "goes by validation accuracies, which eval_every=0 leaves out; evaluate more often"
                raise ArgumentError(name, value, problem)

    def _full_graph(self, model: str) -> Settings:
        for name in FOR_MINIBATCHES:
            value = getattr(self, name)
            if value is not None and (name != "partition_graph" or value):
                raise ArgumentError(name, value, "is for minibatches; say with sampler=NAME how to make them")
        if self.algorithm == AUTO:
            problem = "a run takes what it is given; distgnn.plan.settle chooses"
            raise ArgumentError("algorithm", AUTO, f"{problem} one of {', '.join(operators.ALGORITHMS)}")
        return replace(self, model=model, algorithm=self.algorithm or "1d")

    def _sampling(self, model: str, ranks: int) -> Settings:
        self._check_sampling(model)
        found: dict[str, Any] = {"model": model, "algorithm": "1.5d", "fanout": self._fanout()}
        found["batches_per_update"] = self.batches_per_update or max(PER_UPDATE, ranks)
        found["bulk"] = self.bulk or BULK
        if not NETWORKS[model].means:
            found["rescale"] = self.rescale is not False
        if self.sampler == "ladies":
            found["importance"] = self.importance or "zou"
        if self.grid is None and self.replication is None:
            found["replication"] = 1
        return replace(self, **found)

    def _check_sampling(self, model: str) -> None:
        kind = self.sampler
        if self.algorithm not in (None, "1.5d"):
            problem = f"excludes sampler={kind}; minibatches take features from block rows of 1.5d, which "
            raise ArgumentError("algorithm", self.algorithm, problem + "with replication=1 is 1d")
        if self.train_features:
            problem = "excludes train_features=True; minibatches read features and do not change them"
            raise ArgumentError("sampler", kind, problem)
        if NETWORKS[model].needs_own and kind != "sage":
            problem = f"needs every vertex's own features, which only sampler=sage keeps, not {kind}"
            raise ArgumentError("model", model, problem)
        if self.residual and kind != "sage":
            problem = f"needs every vertex's own features, which only sampler=sage keeps, not {kind}"
            raise ArgumentError("residual", True, problem)
        if NETWORKS[model].means and self.rescale is not None:
            problem = f"is for model=gcn; the mean over sampled neighbours of model={model} is what it is"
            raise ArgumentError("rescale", self.rescale, problem)
        if self.importance and kind != "ladies":
            raise ArgumentError("importance", self.importance, f"is for sampler=ladies, not {kind}")

    def _fanout(self) -> list[int]:
        layers, default = len(self.hidden_widths) + 1, FANOUT[str(self.sampler)]
        if self.sampler == "saint":
            if self.fanout is not None and len(self.fanout) != 1:
                problem = "sampler=saint draws one subgraph for all layers; give its number of nodes"
                raise ArgumentError("fanout", self.fanout, problem)
            layers = 1
        return list(check_fanout([default] * layers if self.fanout is None else self.fanout, layers))


def parse_grid(grid: str | Mapping[str, int] | None, algorithm: str) -> dict[str, int] | None:
    """Sizes by axis from ``2x2``, in the order of the algorithm's axes, or ``rows=2,reps=2``, in the order
    given (what that means: :func:`operators.make_grid`); ArgumentError for anything else.
    """
    if grid is None or isinstance(grid, Mapping):
        return None if grid is None else dict(grid)
    axes = operators.get(algorithm).axes
    try:
        if "=" in grid:
            pairs: Any = [word.split("=") for word in grid.split(",")]
            sizes = {name.strip(): int(size) for name, size in pairs}
            if len(sizes) < len(pairs):
                raise ValueError("an axis is named twice")
            return sizes
        return dict(zip(axes, map(int, grid.lower().split("x")), strict=True))
    except ValueError:
        example = f"write {'x'.join('2' for _ in axes)} or {','.join(f'{axis}=2' for axis in axes)}"
        problem = f"algorithm {algorithm} has the axes {', '.join(axes)}; {example}"
        raise ArgumentError("grid", grid, problem) from None


@cache
def _types() -> dict[str, tuple[Any, ...]]:
    """Those that each setting may have."""
    hints = typing.get_type_hints(Settings).items()
    return {name: typing.get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints}


def _plain(value: Any) -> Any:
    """Numbers of NumPy, arrays of them and paths as what Python and JSON have."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else getattr(value, "tolist", lambda: value)()


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value may stand where a field has this type."""
    kind: Any = typing.get_origin(hint) or hint
    if kind is Sequence:
        several = isinstance(value, Sequence) and not isinstance(value, str)
        return several and all(_fits(one, typing.get_args(hint)[0]) for one in value)
    kinds, _ = TYPES[kind]
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)


def _named(hint: Any) -> str:
    kind = typing.get_origin(hint) or hint
    of = {int: "a whole number or several", float: "a number or several"}
    return of[typing.get_args(hint)[0]] if kind is Sequence else TYPES[kind][1]
