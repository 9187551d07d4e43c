"""Refusals of a run before it loads or writes anything: of a store, a grid, and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from distgnn import operators
from distgnn.errors import UserError
from distgnn.files.output import check_output
from distgnn.nn.networks import NETWORKS
from distgnn.nn.products import AGGREGATE, narrowest
from distgnn.store.read.store import Store
from distgnn.train import checkpoint
from distgnn.train.settings import Settings


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


def check_columns(settings: Settings, widths: Sequence[int], grid: Mapping[str, int]) -> None:
    """Raise ArgumentError for a grid on which ranks get no column of a layer's product; see ``operators``.

    Args:
        settings: resolved; widths: of the features, the hidden layers and the classes; grid: sizes by axis.
    """
    order = AGGREGATE if NETWORKS[str(settings.model)].means else settings.product_order
    operators.check_columns(str(settings.algorithm), grid, narrowest(order, widths))


def check_outputs(settings: Settings) -> None:
    """Raise UserError if something would be overwritten, or can't be written."""
    if settings.checkpoint:
        checkpoint.check_path(Path(settings.checkpoint), settings.resume, settings.force)
    if settings.log:
        check_output("log", Path(settings.log), settings.resume or settings.force)
    if settings.trace:
        check_output("trace", Path(settings.trace), settings.force)
