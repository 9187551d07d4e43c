"""Parts of the split of the nodes, as stores and labels number them; 0 is a node of no part."""

from __future__ import annotations

import numpy as np

TRAIN, VAL, TEST = 1, 2, 3
SPLITS = {"train": TRAIN, "val": VAL, "test": TEST}
#: Names of the parts in files and in other libraries.
NAMES = {TRAIN: ("train", "training"), VAL: ("val", "valid", "validation"), TEST: ("test",)}


def labelled(labels: np.ndarray) -> np.ndarray:
    """Return bool[n]: True for nodes with a label, or with a row of labels: not below 0, or not NaN."""
    first = labels[:, 0] if labels.ndim == 2 else labels
    return ~np.isnan(first) if labels.dtype.kind == "f" else first >= 0
