"""Vectors of Krylov methods: their products, and small arrays that all ranks have with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distgnn import local
from distgnn.errors import ArgumentError, check_type
from distgnn.operators.base import Operator
from distgnn.operators.dense import DistDense, recut

Apply = Callable[[DistDense], DistDense]


def check_square(A: Any) -> None:
    """Raise WrongTypeError, ValueError unless A is a square operator."""
    check_type("A", A, Operator, "an operator, such as distribute makes")
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"{A!r}: expected a square matrix")


def product(A: Operator, layout: Any, M: Operator | Apply | None = None) -> Apply:
    """Return the function that multiplies by A, or by M if given; its vectors come and go in the layout."""
    if M is None or isinstance(M, Operator):
        B = A if M is None else M
        return lambda X: recut(B @ recut(X, B.input_layout), layout)
    if not callable(M):
        raise ArgumentError("M", type(M).__name__, "expected an operator, or a function of a DistDense")
    function = M
    return lambda X: recut(function(recut(X, A.input_layout)), layout)


def tall(A: Operator, X: Any, name: str, columns: int | None = None) -> DistDense:
    """Return an operand of the methods, if it fits, and has so many columns."""
    check_type(name, X, DistDense, f"a DistDense, such as scatter({name}, A.input_layout)")
    if X.shape[0] != A.shape[0] or X.dtype != A.dtype or columns not in (None, X.shape[1]):
        width = "" if columns is None else f" in {columns} column"
        problem = f"expected {A.shape[0]} rows of {A.dtype}{width}"
        raise ArgumentError(name, f"{X.shape[0]} x {X.shape[1]} {X.dtype}", problem)
    return X


def dots(*pairs: tuple[DistDense, DistDense]) -> np.ndarray:
    """Return the inner products of the columns of each pair, in one all-reduce."""
    X, on = pairs[0][0], pairs[0][0].grid.backend
    sums = on.zeros((len(pairs), X.shape[1]), np.float64)
    if X.layout.primary:
        for row, (left, right) in zip(sums, pairs, strict=True):
            row[slice(*X.col_range)] = (left.block.astype(np.float64, copy=False) * right.block).sum(axis=0)
    return on.to_host(X.grid.world.allreduce(sums, matrix="reductions"))


def own(X: DistDense, numbers: np.ndarray) -> Any:
    """Return the numbers of this rank's columns, as a row beside its block."""
    return X.grid.backend.asarray(numbers[None, slice(*X.col_range)], X.dtype)


def times(H: DistDense, small: np.ndarray) -> DistDense:
    """Multiply a matrix with whole rows by a small one, which all ranks have with the same bits."""
    product = local.gemm(H.block, H.grid.backend.asarray(small, H.dtype))
    return DistDense(product, H.layout, (H.shape[0], small.shape[1]))


def from_first(grid: Any, shape: tuple[int, int], solve: Callable[[], np.ndarray]) -> np.ndarray:
    """Return an array that rank 0 makes, of this shape, on every rank. Collective."""
    array = np.zeros(shape)
    with grid.world.together():
        if grid.rank == 0:
            array[...] = solve()
    on = grid.backend
    made: np.ndarray = on.to_host(grid.world.bcast(on.asarray(array), 0, matrix="reductions"))
    return made
