"""Part vectors that another program wrote."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from distgnn.errors import ArgumentError


def read_part_vector(path: str | os.PathLike[str], n: int, parts: int) -> np.ndarray:
    """int32 (n,): the part of every node from a text file with one number per line, as METIS and its kin
    write, or from .npy.

    Parts may be empty.

    Raises:
        UserError: not readable, of another length, or with numbers outside 0..parts-1.
    """
    part = _numbers(Path(path))
    if part.shape != (n,):
        problem = f"has {part.size} numbers for the {n} nodes of this graph; expected one per node"
        raise ArgumentError("partition", path, problem)
    wrong = np.flatnonzero((part < 0) | (part >= parts))
    if len(wrong):
        node = int(wrong[0])
        problem = f"node {node} is in part {part[node]}; expected 0..{parts - 1}"
        raise ArgumentError("partition", f"{path}:{parts}", problem)
    return part.astype(np.int32)


def _numbers(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            part = np.load(path, allow_pickle=False)
        else:
            part = np.array(path.read_text().split(), np.int64)
    except (OSError, ValueError, EOFError) as error:
        problem = f"not readable as one whole number per node ({error})"
        raise ArgumentError("partition", path, problem) from None
    if not np.issubdtype(part.dtype, np.integer):
        raise ArgumentError("partition", path, f"holds {part.dtype}; expected whole numbers")
    return part
