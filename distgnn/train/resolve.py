"""Defaults of settings that depend on other settings, and the settings that exclude each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from distgnn import operators
from distgnn.errors import ArgumentError, offered
from distgnn.nn.networks import NETWORKS, REFERENCES
from distgnn.sampling.sampler import check_fanout
from distgnn.train.fields import check_fields
from distgnn.train.network import resolved_options
from distgnn.train.recipes import FANOUTS
from distgnn.train.schedule import Schedule
from distgnn.train.settings import AUTO, BULK, EVERY, FANOUT, FOR_MINIBATCHES, PER_UPDATE, Settings
from distgnn.train.ways import arrangements

_GIVEN = "a run takes what it is given; distgnn.plan.settle chooses"


def resolved(settings: Settings, ranks: int) -> Settings:
    """Fill in the defaults for a run on so many ranks, except `order` and `batch_size`: the store decides.

    Raises:
        ArgumentError: a value out of range, settings that exclude each other, or an "auto" that leaves a
            choice to a plan.
    """
    s = settings
    _check(s)
    model = s.model or ("sage" if s.sampler == "sage" else "gcn")
    if s.check and model not in REFERENCES:
        problem = f"there is no serial reference of model={model}; compare a run with overlap=False"
        raise ArgumentError("check", s.check, problem)
    done = _sampling(s, model, ranks) if s.samples else _full_graph(s, model)
    if done.block_rows is not None and done.algorithm not in ("1.5d", "3d"):
        problem = f"is for 1.5d and 3d, which all-reduce products; algorithm {done.algorithm} does not"
        raise ArgumentError("block_rows", done.block_rows, problem)
    done = replace(done, sparsity_aware=s.sparsity_aware or False, weight_decay=s.weight_decay or s.decays)
    done = replace(done, **resolved_options(s, model))
    return _with_the_only_grid(done, ranks) if s.grid == AUTO else done


def _check(s: Settings) -> None:
    check_fields(s)
    if s.model not in (None, *NETWORKS):
        raise ArgumentError("model", s.model, offered(s.model, NETWORKS))
    if not 0 <= s.dropout < 1:
        raise ArgumentError("dropout", s.dropout, "must be at least 0 and less than 1")
    if not all(width > 0 for width in s.hidden):
        raise ArgumentError("hidden", list(s.hidden), "expected whole numbers, at least 1")
    layers = len(s.hidden_widths) + 1
    if s.weight_decay is not None and len(s.weight_decay) not in (1, layers):
        problem = f"give one for all {layers} layers or one for each"
        raise ArgumentError("weight_decay", s.weight_decay, problem)
    _check_wire(s)
    if s.tf32 and s.dtype != "float32":
        raise ArgumentError("tf32", True, f"rounds float32 in products, and excludes dtype={s.dtype}")
    if s.cuda_graph and s.samples:
        raise ArgumentError("cuda_graph", True, f"excludes sampler={s.sampler}; it is for the whole graph")
    _check_training(s)
    if s.resume and not s.checkpoint:
        raise ArgumentError("resume", True, "say with checkpoint=DIR where to go on from")
    if s.checkpoint_every and not s.checkpoint:
        raise ArgumentError("checkpoint_every", s.checkpoint_every, "say with checkpoint=DIR where to save")


def _check_wire(s: Settings) -> None:
    if s.wire is not None and s.dtype != "float32":
        raise ArgumentError("wire", s.wire, f"rounds float32 while it travels, and excludes dtype={s.dtype}")
    if s.wire is not None and s.samples:
        problem = f"excludes sampler={s.sampler}; features of minibatches travel as they are"
        raise ArgumentError("wire", s.wire, problem)


def _check_training(s: Settings) -> None:
    Schedule.parse(s.schedule, s.warmup)
    if s.check not in (True, False, EVERY) and (isinstance(s.check, str) or s.check < 1):
        raise ArgumentError("check", s.check, f"expected {EVERY}, or a number of updates, at least 1")
    if s.warmup >= s.epochs:
        raise ArgumentError("warmup", s.warmup, f"must be less than epochs={s.epochs}")
    for name, value in s.watchers.items():
        if not s.eval_every:
            problem = "goes by validation accuracies, which eval_every=0 leaves out; evaluate more often"
            raise ArgumentError(name, value, problem)


def _full_graph(s: Settings, model: str) -> Settings:
    for name in FOR_MINIBATCHES:
        value = getattr(s, name)
        if value is not None and (name != "partition_graph" or value):
            raise ArgumentError(name, value, "is for minibatches; say with sampler=NAME how to make them")
    if s.algorithm == AUTO:
        raise ArgumentError("algorithm", AUTO, f"{_GIVEN} one of {', '.join(operators.ALGORITHMS)}")
    if s.order == AUTO:
        raise ArgumentError("order", AUTO, f"{_GIVEN} one of the store's orders")
    return replace(s, model=model, algorithm=s.algorithm or "1d")


def _with_the_only_grid(s: Settings, ranks: int) -> Settings:
    if len(list(arrangements(s, ranks))) > 1:
        raise ArgumentError("grid", AUTO, f"{_GIVEN} one of the grids of {ranks} ranks")
    return replace(s, grid=None)


def _sampling(s: Settings, model: str, ranks: int) -> Settings:
    _check_sampling(s, model)
    filled: dict[str, Any] = {"model": model, "algorithm": "1.5d", "fanout": _fanout(s)}
    filled["batches_per_update"] = s.batches_per_update or max(PER_UPDATE, ranks)
    filled["bulk"] = s.bulk or BULK
    if not NETWORKS[model].means:
        filled["rescale"] = s.rescale is not False
    if s.sampler == "ladies":
        filled["importance"] = s.importance or "zou"
    if s.grid is None and s.replication is None:
        filled["replication"] = 1
    return replace(s, **filled)


def _check_sampling(s: Settings, model: str) -> None:
    kind = s.sampler
    if s.algorithm not in (None, "1.5d"):
        problem = f"excludes sampler={kind}; minibatches take features from block rows of 1.5d, which "
        raise ArgumentError("algorithm", s.algorithm, problem + "with replication=1 is 1d")
    for name in ("grid", "order"):
        if getattr(s, name) == AUTO:
            raise ArgumentError(name, AUTO, f"excludes sampler={kind}; minibatches are not planned")
    if s.train_features:
        problem = "excludes train_features=True; minibatches read features and do not change them"
        raise ArgumentError("sampler", kind, problem)
    needs_own = {"model": model} if NETWORKS[model].needs_own else {"residual": True} if s.residual else {}
    for name, value in needs_own.items() if kind != "sage" else ():
        problem = f"needs every vertex's own features, which only sampler=sage keeps, not {kind}"
        raise ArgumentError(name, value, problem)
    if NETWORKS[model].means and s.rescale is not None:
        problem = f"is for model=gcn; the mean over sampled neighbours of model={model} is what it is"
        raise ArgumentError("rescale", s.rescale, problem)
    if s.importance and kind != "ladies":
        raise ArgumentError("importance", s.importance, f"is for sampler=ladies, not {kind}")


def _fanout(s: Settings) -> list[int]:
    layers = len(s.hidden_widths) + 1
    sizes = FANOUTS.get(s.recipe, ()) if s.sampler == "sage" else ()
    default = [*sizes, *[*(sizes or (FANOUT[str(s.sampler)],))[-1:]] * layers][:layers]
    if s.sampler == "saint":
        if s.fanout is not None and len(s.fanout) != 1:
            problem = "sampler=saint draws one subgraph for all layers; give its number of nodes"
            raise ArgumentError("fanout", s.fanout, problem)
        layers, default = 1, default[:1]
    return list(check_fanout(default if s.fanout is None else s.fanout, layers))
