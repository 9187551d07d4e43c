"""Training runs: settings, loops over epochs and minibatches, logs, checkpoints.

Names are imported on first use, so that the flags of ``distgnn train --help`` need neither MPI nor NumPy.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "MinibatchTraining": "minibatch",
    "Minibatches": "minibatches",
    "Predictor": "predict",
    "Run": "run",
    "Settings": "settings",
    "export_weights": "export",
    "train": "full_graph",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"distgnn.train.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'distgnn.train' has no attribute '{name}'")
