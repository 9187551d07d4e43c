"""Checkpoints of runs, opened: what they say of a run is checked before anything is made of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from distgnn.comm.group import Comm
from distgnn.nn.activation import ACTIVATIONS
from distgnn.nn.features import Scaling
from distgnn.store import checkpoint
from distgnn.store.checkpoint import CHECKPOINT, CheckpointReader
from distgnn.store.format import manifest
from distgnn.store.format.facts import NONE, check_names, check_types

OWN = ("gcn", "sage", "gat", "gatv2")  # networks whose weights have the widths of their layers
_OPTIONS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("order", "loss", "activation"), (str,)), "heads": (list,),
    "attention_dropout": (int, float),
}  # fmt: skip
_META = {"epoch": (int,), "steps": (int,), "run": (dict,), "rates": (list,)}
_MAY_BE = {"best": (dict,), "begun": (dict, NONE)}
_RUN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("train_features", "normalize_features", "bias"), (bool,)),
    **dict.fromkeys(("model", "dtype", "graph normalize"), (str,)), "widths": (list,), "graph width": (int,),
    **dict.fromkeys(("graph self_loops", "graph directed", "graph weighted"), (bool,)),
}  # fmt: skip
_RUN_SWITCHES = ("standardize_features", "residual", "layer_norm", "graph multilabel")
_BEST = dict.fromkeys(("drops", "since", "seen"), (int,)) | dict.fromkeys(("kept", "stopped"), (bool,))


def opened(path: str | os.PathLike[str], comm: Comm) -> CheckpointReader:
    """Open the checkpoint of a run. Collective.

    Raises:
        UserError: of ``store.checkpoint.load``, or something that no run has written; on every rank.
    """
    reader = checkpoint.load(path, comm)
    try:
        _check(reader.meta, reader)
    except (ValueError, TypeError) as error:
        raise manifest.damaged(reader.root, CHECKPOINT, error) from None
    return reader


def scaling(meta: Mapping[str, Any]) -> Scaling:
    """Return the scaling of the features of a checkpoint that has one."""
    return Scaling(*(np.asarray(meta["scaling"][name], np.float64) for name in Scaling._fields))


def _check(meta: Mapping[str, Any], reader: CheckpointReader) -> None:
    check_types(meta, _META | {name: kinds for name, kinds in _MAY_BE.items() if name in meta}, "meta.")
    if min(meta["epoch"], meta["steps"]) < 0 or not all(isinstance(rate, dict) for rate in meta["rates"]):
        raise ValueError("meta has a negative count, or rates of another kind")
    check_names(meta.get("class_names"))
    if begun := meta.get("begun"):
        check_types(begun, {"epoch": (int,), "totals": (list,), "scores": (dict,)}, "meta.begun.")
        if np.asarray(begun["totals"], np.float64).shape[1:] != (2,):
            raise ValueError("meta.begun.totals has no pairs of numbers")
    _check_run(meta["run"], reader)
    if meta["run"].get("standardize_features"):
        check_types(meta, {"scaling": (dict,)}, "meta.")
        check_types(meta["scaling"], dict.fromkeys(Scaling._fields, (list,)), "meta.scaling.")
        mean, spread = scaling(meta)
        fits = mean.shape == spread.shape == (meta["run"]["widths"][0],)
        if not fits or not np.isfinite([mean, spread]).all() or not (spread > 0).all():
            raise ValueError("meta.scaling has no mean and spread of each feature")
    if best := meta.get("best", {}):
        check_types(best, _BEST | {"found": (dict, NONE)}, "meta.best.")
        if best["kept"] and best["found"] is None:
            raise ValueError("meta.best has weights of no epoch")
        if best["found"] is not None:
            check_types(best["found"], {"epoch": (int,)}, "meta.best.found.")
            check_types(best["found"], dict.fromkeys(best["found"], (int, float)), "meta.best.found.")


def _check_run(run: dict[str, Any], reader: CheckpointReader) -> None:
    """Raise ValueError for settings that no run has, or widths that the checkpoint's weights have not."""
    check_types(run, _RUN, "meta.run.")
    check_types(run, {name: (bool,) for name in _RUN_SWITCHES if name in run}, "meta.run.")
    check_types(run, {name: kinds for name, kinds in _OPTIONS.items() if name in run}, "meta.run.")
    check_names(names := run.get("graph feature_names"), "meta.run.graph feature_names")
    if names is not None and len(names) != run["graph width"]:
        raise ValueError("meta.run has not as many names as features")
    if run["train_features"] and "order" not in run:
        raise ValueError("meta.run has trained features, and no order")
    if run["dtype"] not in ("float32", "float64"):
        raise ValueError(f"meta.run.dtype is {run['dtype']!r}")
    widths = run["widths"]
    if len(widths) < 2 or not all(type(width) is int and width > 0 for width in widths):
        raise ValueError(f"meta.run.widths is {widths!r:.40}; expected a list of whole numbers, at least 1")
    heads = run.get("heads", [])
    if heads and (len(heads) != len(widths) - 1 or not all(type(k) is int and k > 0 for k in heads)):
        raise ValueError(f"meta.run.heads is {heads!r:.40}; expected a number for each layer, at least 1")
    if run.get("activation", "relu") not in ACTIVATIONS:
        raise ValueError(f"meta.run.activation is {run['activation']!r:.40}")
    for layer, (fan_in, fan_out) in enumerate(zip(widths, widths[1:], strict=False)):
        rows, cols = reader.shapes.get(f"W{layer}", (0, 0))
        averaged = heads[-1] if heads and layer == len(heads) - 1 else 1
        if run["model"] in OWN and (fan_in > rows or fan_out * averaged != cols):
            raise ValueError(f"layer {layer} has widths {fan_in} and {fan_out}, but weights {rows} x {cols}")
