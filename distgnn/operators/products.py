"""Products of a sparse matrix with dense ones: its blocks by what an algorithm brings (see ``moves.py``)."""

from __future__ import annotations

from typing import Any

from distgnn import local
from distgnn.local.epilogue import Epilogue
from distgnn.operators.moves import Moves, Steps

Array = Any


def multiply(moves: Moves, H: Array, T: Array, then: Epilogue | None = None) -> None:
    """Compute ``T = A H`` of this rank's blocks; ``then`` is done where a local product ends all rows of T.

    Collective.
    """
    with moves.onto_rows(T, H, wire=moves.wire) as steps:
        _multiply(steps, then)


def multiply_adjoint(moves: Moves, G: Array, F: Array) -> None:
    """Compute ``F = Aᵀ G`` of this rank's blocks. Collective."""
    with moves.onto_columns(F, G, wire=moves.wire) as steps:
        _multiply(steps)


def _multiply(steps: Steps, then: Epilogue | None = None) -> None:
    for step in steps:
        end = then if step.last else None
        local.spmm(step.A, step.B, out=step.out, accumulate=step.add, then=end)
