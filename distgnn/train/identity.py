"""The facts that a run shares with the one whose checkpoint it goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distgnn.store.read.store import Store
from distgnn.train import network
from distgnn.train.settings import Settings

#: What a store's manifest says of the graph itself, and not of how it is cut into files.
GRAPH = "source seed n nnz edges directed weighted self_loops normalize width classes labelled split".split()
#: Settings that a run shares with the one whose checkpoint it goes on from, beside those of minibatches.
SHARED = (
    "seed dropout bias optimizer momentum dtype model sampler "
    "train_features normalize_features standardize_features"
).split()
SHARED_BATCHES = ("fanout", "batch_size", "batches_per_update", "importance", "rescale")


def run_identity(s: Settings, store: Store, order: str, widths: Sequence[int]) -> dict[str, Any]:
    """Return these facts by name, of resolved settings, the order of the nodes and the widths of layers."""
    shared = (*SHARED, *(SHARED_BATCHES if s.samples else ()))
    identity: dict[str, Any] = {f"graph {name}": store.manifest[name] for name in GRAPH}
    identity |= {f"content of {name}": hash for name, hash in store.manifest["content"].items()}
    identity |= {"graph multilabel": True} if store.multilabel else {}
    names = store.manifest.get("feature_names")
    identity |= {"graph feature_names": names} if names else {}
    identity |= {"loss": "mse"} if s.loss == "mse" else {}  # the others follow from the labels
    identity |= {"widths": list(widths)} | {name: getattr(s, name) for name in shared}
    # Trained features are saved by position and samples depend on it; all else is equal in every order.
    identity |= {"order": order} if s.train_features or s.samples else {}
    identity |= {"wire": s.wire} if s.wire else {}
    return identity | network.identity(s)
