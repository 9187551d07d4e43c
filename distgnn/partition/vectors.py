"""Part vectors that another program wrote."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from distgnn.errors import UserError


def read_part_vector(path: str | os.PathLike[str], n: int, parts: int) -> np.ndarray:
    """Read the part of every node, int32 (n,), from .npy or a text file with a number per line.

    METIS writes such text files. Parts may be empty.

    Raises:
        UserError: not readable, of another length, or with numbers outside 0..parts-1.
    """
    part = _numbers(Path(path))
    if part.shape != (n,):
        problem = f"has {part.size} numbers for the {n} nodes of this graph; expected one per node"
        raise UserError(f"{path}: {problem}")
    wrong = np.flatnonzero((part < 0) | (part >= parts))
    if len(wrong):
        raise UserError(f"{path}: node {wrong[0]} is in part {part[wrong[0]]}; expected 0..{parts - 1}")
    return part.astype(np.int32)


def _numbers(path: Path) -> np.ndarray:
    try:
        text = path.suffix != ".npy"
        part = (
            np.array(path.read_text().split(), np.int64) if text else np.load(path, "r", allow_pickle=False)
        )
    except (OSError, ValueError, EOFError, OverflowError) as error:
        raise UserError(f"{path}: not readable as one whole number per node ({error})") from None
    if not np.issubdtype(part.dtype, np.integer):
        raise UserError(f"{path}: holds {part.dtype}; expected whole numbers")
    return part
