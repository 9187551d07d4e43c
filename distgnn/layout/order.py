"""The order of nodes in a dimension whose rows were permuted."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class NodeOrder:
    """An order of the nodes 0..n-1; it holds none of its n numbers. Orders are equal if name and key are.

    Attributes:
        name: for messages, the same on all ranks.
        key: equal for equal orders.
        permutation: (first, last) -> int64 ids of the nodes at these positions. Local to a rank; it may read
            a file.
    """

    name: str
    key: Hashable
    permutation: Callable[[int, int], np.ndarray] = field(compare=False, repr=False)
