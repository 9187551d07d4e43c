"""Arguments of a network: whether they make sense, and which layers residual connections are for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from distgnn.errors import ArgumentError
from distgnn.nn.products import ORDERS
from distgnn.operators.base import Operator


def residual_layers(operators: Sequence[Operator], widths: Sequence[int]) -> list[int]:
    """List the layers that have residual connections; ArgumentError: there are none, or orders change."""
    able = [index for index, (below, above) in enumerate(pairwise(widths[:-1])) if below == above]
    if not able:
        problem = f"no layer but the last has as many inputs as outputs in widths {list(widths)}"
        raise ArgumentError("residual", True, f"{problem}; give hidden layers equal widths")
    orders = [(A.input_layout.rows.order, A.weights.output_layout.rows.order) for A in operators]
    if any(given != taken for taken, given in orders):
        problem = "layers give nodes in another order than they take them, as with order=double"
        raise ArgumentError("residual", True, f"{problem}; take another order")
    return able


def check(A: Operator, widths: Sequence[int], dropout: float, product_order: str) -> None:
    """Raise ValueError unless a network of A can have these widths, dropout and order of products."""
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"a GCN needs a square adjacency matrix, got {A.shape}")
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"widths {widths}: need features, hidden widths and classes, each at least 1")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout {dropout}: must be in [0, 1)")
    if product_order not in ORDERS:
        raise ValueError(f"product_order {product_order}: must be one of {', '.join(ORDERS)}")
