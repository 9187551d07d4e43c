"""Parts of the split of the nodes, as stores and labels number them; 0 is a node of no part."""

from __future__ import annotations

TRAIN, VAL, TEST = 1, 2, 3
SPLITS = {"train": TRAIN, "val": VAL, "test": TEST}
#: Names of the parts in files and in other libraries.
NAMES = {TRAIN: ("train", "training"), VAL: ("val", "valid", "validation"), TEST: ("test",)}
