"""Operators of a grid, ``Y = A @ H`` and ``G = A.T @ Y``: sparse matrices, and what is made of them."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from distgnn.comm.checks import compare
from distgnn.comm.narrow import check_overflow
from distgnn.errors import ArgumentError
from distgnn.local.epilogue import Ending
from distgnn.operators import operands
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.kept import cached_property
from distgnn.operators.linear_map import LinearMap
from distgnn.operators.prices import FREE, Price, ProductPrices, relaid
from distgnn.operators.replicated import linear_operator
from distgnn.operators.weights import DenseProducts
from distgnn.operators.whole import WholeArrays

#: Factors and operators of ``Σ c A``, and s of what is added to it, ``s I``.
Terms = tuple[list[tuple[float, "Operator"]], float]


class Linear:
    """Expressions of operators, ``2 * A - B / 3`` and ``A + s * dg.I``, with numbers that all ranks have.

    Raises:
        TypeError: anything but numbers and operators. ValueError: operators on different grids, or of other
            shapes, dtypes or orders of the nodes; with ``I``, no square ones. On every rank alike.
    """

    __array_ufunc__ = None  # NumPy's numbers leave products with a matrix to the matrix

    @property
    def terms(self) -> Terms:
        """The factors and operators of the sum that this is, and the factor of ``I`` in it."""
        raise NotImplementedError

    def __mul__(self, factor: Any) -> Any:
        """Multiply by a number, the same on all ranks: an operator that scales each product."""
        if isinstance(factor, (bool, int, float, np.integer, np.floating)):
            terms, shift = self.terms
            return combined([(c * float(factor), A) for c, A in terms], shift * float(factor))
        made = f"{self!r} * {type(factor).__name__}"
        raise TypeError(f"{made}: expected a number; the product is A @ H")

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Any:
        return self * (1 / divisor)

    def __neg__(self) -> Any:
        return self * -1

    def __add__(self, other: Any) -> Any:
        """Add another operator, or a multiple of ``dg.I``: an operator whose products are added up."""
        if not isinstance(other, Linear):
            made = f"{self!r} + {type(other).__name__}"
            raise TypeError(f"{made}: expected an operator, or s * dg.I for a number s")
        (ours, s), (theirs, t) = self.terms, other.terms
        return combined(ours + theirs, s + t)

    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, Linear) else self + other


class Identity(Linear):
    """A multiple of the identity of any size: ``dg.I`` in expressions of operators, ``A - s * dg.I``."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def __repr__(self) -> str:
        return f"{self.factor} I"

    @property
    def terms(self) -> Terms:
        return [], self.factor

    def __matmul__(self, H: Any) -> Any:
        return self.factor * H


I = Identity()


class Operator(LinearMap, Linear, ABC):
    """A matrix that multiplies dense matrices cut over a grid, and its adjoint.

    Attributes: those of :class:`~distgnn.operators.linear_map.LinearMap`.
    """

    weights: DenseProducts
    #: The prices of its products, and of what else it has, in words and messages of this rank.
    prices: Any
    _adjoint: Callable[[], Operator | None] = staticmethod(lambda: None)

    def multiply(
        self, H: DistDense, out: DistDense | None = None, *, then: Ending | None = None
    ) -> DistDense:
        """Compute ``A H``; ``H`` in ``input_layout``, the result in ``output_layout``, in ``out`` if given.

        Unlike ``A @ H``, nothing is checked; ``out`` shares no memory with ``H``. ``then``: what becomes of
        the result, which is done with it where a kernel can; it says so.
        """
        call = compare("A @ H", A=self, H=H)
        out = self._room(out, 0, H)
        if then is None:
            self._multiply(H, out)
        else:
            self._multiply_then(H, out, then)
        out.origin = call
        return out

    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        """Compute ``Aᵀ G``, in ``out`` if given; ``G`` in ``output_layout``, result in ``input_layout``."""
        call = compare("A.T @ G", A=self, G=G)
        out = self._room(out, 1, G)
        self._multiply_adjoint(G, out)
        out.origin = call
        return out

    def _room(self, out: DistDense | None, side: int, X: DistDense) -> DistDense:
        """Return room for a result with a row per row (0) or column (1) of A, as wide as X."""
        if out is not None:
            return out
        layout = (self.output_layout, self.input_layout)[side]
        return DistDense.empty(layout, (self.shape[side], X.shape[1]), self.dtype)

    @property
    def reads_rounded(self) -> bool:
        """Tell whether products of A and Aᵀ read 16 bits, and take matrices of :func:`local.rounded_room`."""
        return False

    @abstractmethod
    def _multiply(self, H: DistDense, T: DistDense) -> None:
        """Compute ``T = A H``."""

    @property
    @abstractmethod
    def nnz(self) -> int:
        """Stored entries of the whole matrix, equal on every rank. Collective the first time."""

    def _multiply_then(self, H: DistDense, T: DistDense, then: Ending) -> None:
        """Compute ``T = A H``, and do ``then`` where one local product ends all rows of T."""
        self._multiply(H, T)

    def _multiply_adjoint_then(self, G: DistDense, F: DistDense, then: Ending) -> None:
        """Compute ``F = Aᵀ G``, and do ``then`` likewise."""
        self._multiply_adjoint(G, F)

    @abstractmethod
    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        """Compute ``F = Aᵀ G``."""

    def __matmul__(self, H: Any) -> Any:
        """Compute ``A H``. Collective.

        On one rank ``H`` may also be an array, n x f by node, and so is the product, whose type is the wider
        one: an array of NumPy, or one on the GPU that the grid computes on, of any library that has DLPack or
        the CUDA array interface, such as a CUDA tensor. That is read where it is, in the order of the
        caller's streams; once the call returns, it may be changed or freed. Its product is an array of CuPy.

        Raises:
            ArgumentError: an array on a GPU where the grid does not compute.
            ValueError: shapes, layouts or dtypes don't fit (on every rank alike).
            WireOverflowError: a number does not fit into the 16 bits of the grid's messages (on every rank).
        """
        if isinstance(H, Operator):
            return self._times_sparse(H)
        if not isinstance(H, DistDense) and self.grid.size == 1 and operands.is_array(H):
            return self._arrays.product(self, H)
        operands.check(self, H)
        T = self.multiply(H)
        check_overflow(self.grid, "A @ H or an operation before")
        return T

    def _times_sparse(self, B: Operator) -> Operator:
        """Compute ``A B``, where the algorithm can."""
        names = f"{self.name} @ {B.name}"
        problem = f"{names}: block rows on as many ranks have products of sparse matrices; A @ (B @ H)"
        raise TypeError(f"{problem} multiplies by both")

    @cached_property
    def _arrays(self) -> WholeArrays:
        """The products with arrays, on one rank."""
        return WholeArrays()

    @property
    @abstractmethod
    def _one_piece(self) -> Any:
        """All of the matrix, as one rank has it."""

    @property
    def T(self) -> Operator:
        """The adjoint operator: ``A.T @ G``. A symmetric matrix cut alike both ways is its own adjoint."""
        if self.self_adjoint:
            return self
        adjoint = self._adjoint()
        if adjoint is None:  # not kept: an operator and its adjoint, holding each other, would outlive both
            adjoint = Adjoint(self)
            self._adjoint = weakref.ref(adjoint)
        return adjoint

    @property
    def H(self) -> Operator:
        """The adjoint operator, ``A.T``: values are real."""
        return self.T

    def aslinearoperator(self) -> LinearOperator:
        """Make an operator for SciPy's solvers. Its vectors, (n,) or (n, k) by node, are whole on every rank.

        On several ranks all run the solver alike, from a start that all have, such as ``v0``; see
        :class:`~distgnn.operators.replicated.ReplicatedProduct` for the cost and the errors of a product.
        """
        return linear_operator(self)

    def sum(self, axis: int | None = None) -> Any:
        """Sum all entries, or those of each row (``axis=1``) or column (``axis=0``). Collective.

        Sums of rows are a matrix m x 1 in ``output_layout``, those of columns n x 1 in ``input_layout``, of
        A's dtype. Cost: a product of A, or of its adjoint, by one column.

        ArgumentError, on every rank: another axis.
        """
        if axis not in (None, 0, 1):
            raise ArgumentError("axis", axis, "expected None, 0 for columns or 1 for rows")
        if axis == 0:
            return self.T.sum(axis=1)
        shape = (self.shape[1], 1)
        ones = self.grid.backend.xp.ones(self.input_layout.local_shape(shape), self.dtype)
        sums = self @ DistDense(ones, self.input_layout, shape)
        return sums if axis == 1 else sums.sum()

    @abstractmethod
    def diagonal(self) -> DistDense:
        """Return the entry (i, i) of each node i, n x 1, in ``output_layout``. Collective.

        ValueError, on every rank: A is not square.
        """

    @property
    def terms(self) -> Terms:
        return [(1.0, self)], 0.0

    def layer(self, number: int) -> Operator:
        """Return the operator of layer ``number``.

        It takes its input as the weights of layer ``number - 1`` leave their product (``A.weights.times``).
        """
        return self


class LackingError(ArgumentError, AttributeError):
    """An operation that an operator made of another one has not."""


class View(Operator):
    """An operator made of another one, which holds no data and no entries of its own."""

    forward: Operator

    def __getattr__(self, name: str) -> Any:
        if name[0] == "_" or name == "forward" or not hasattr(type(self.forward), name):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        problem = f"has no {name}: take that of what it is made of, or distribute it"
        raise LackingError("A", repr(self), problem)


class Adjoint(View):
    """``Aᵀ`` as an operator of its own; holds no data, and has no products with weights."""

    def __init__(self, forward: Operator) -> None:
        self.forward, self.name = forward, f"{forward.name} transposed"
        self.grid, self.dtype, self.symmetric = forward.grid, forward.dtype, forward.symmetric
        self.shape, self.number = (forward.shape[1], forward.shape[0]), forward.number
        self.input_layout, self.output_layout = forward.output_layout, forward.input_layout

    @property
    def prices(self) -> ProductPrices:
        """The prices of the products, turned round."""
        return ProductPrices(self.forward.prices.adjoint, self.forward.prices.product)

    @property
    def _arrays(self) -> WholeArrays:
        return self.forward._arrays

    def layer(self, number: int) -> Operator:
        return self.forward.layer(number).T

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        self.forward._multiply_adjoint(H, T)

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        self.forward._multiply(G, F)

    def _multiply_then(self, H: DistDense, T: DistDense, then: Ending) -> None:
        self.forward._multiply_adjoint_then(H, T, then)

    def _multiply_adjoint_then(self, G: DistDense, F: DistDense, then: Ending) -> None:
        self.forward._multiply_then(G, F, then)

    @property
    def _one_piece(self) -> Any:
        return self.forward._one_piece.T

    @property
    def nnz(self) -> int:
        return self.forward.nnz

    @property
    def T(self) -> Operator:
        return self.forward

    def diagonal(self) -> DistDense:
        return self.forward.diagonal().redistribute(self.output_layout)


class Combination(View):
    """``Σ c A + s I`` as an operator of its own; holds no data, and adds up products where they are.

    The first operator says how matrices are cut; they are cut anew for others, where these need it.
    """

    def __init__(self, terms: list[tuple[float, Operator]], shift: float) -> None:
        forward = self.forward = terms[0][1]
        self._terms, self.name, self.grid = (terms, shift), forward.name, forward.grid
        self.shape, self.dtype, self.number = forward.shape, forward.dtype, forward.number
        self.symmetric = all(A.symmetric for _, A in terms)
        self.inner_layouts = forward.inner_layouts
        self.input_layout, self.output_layout = forward.input_layout, forward.output_layout
        for _, A in terms:
            _check_alike(forward, A)
        if shift and (self.shape[0] != self.shape[1] or self._rows(0) != self._rows(1)):
            raise ValueError(f"{self!r} + s I: rows and columns are not of the same nodes, in one order")

    def _rows(self, side: int) -> Any:
        return (self.output_layout, self.input_layout)[side].rows.order

    @property
    def terms(self) -> Terms:
        return self._terms

    def as_operand(self) -> str:
        terms, shift = self.terms
        return " + ".join([*(f"{c} * {A.as_operand()}" for c, A in terms), f"{shift} I"])

    @property
    def weights(self) -> DenseProducts:  # type: ignore[override]
        """The products of the first operator."""
        return self.forward.weights

    @property
    def prices(self) -> ProductPrices:
        """The prices of the products, sums of those of all operators and of what is cut anew."""
        return ProductPrices(self._price, self.T._price)  # type: ignore[attr-defined]

    @property
    def T(self) -> Operator:
        """The adjoint operator, a combination of adjoint ones."""
        terms, shift = self.terms
        turned = [(c, A.T) for c, A in terms]
        if self.symmetric and all(A.T is A for _, A in terms):
            return self
        adjoint = self._adjoint()
        if adjoint is None:
            adjoint = Combination(turned, shift)
            adjoint._adjoint, self._adjoint = weakref.ref(self), weakref.ref(adjoint)
        return adjoint

    def layer(self, number: int) -> Operator:
        terms, shift = self.terms
        return Combination([(c, A.layer(number)) for c, A in terms], shift)

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        ((factor, first), *others), shift = self.terms
        first._multiply(H, T)
        if factor != 1:
            T *= factor
        for c, A in others:
            T += c * recut(A.multiply(recut(H, A.input_layout)), T.layout)
        if shift:
            T += shift * recut(H, T.layout)

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        self.T._multiply(G, F)

    def _price(self, f: int) -> Price:
        (terms, shift), (m, n) = self.terms, self.shape
        price = relaid(self.input_layout, self.output_layout, (n, f)) if shift else FREE
        for _, A in terms:
            moved = relaid(self.input_layout, A.input_layout, (n, f))
            price += moved + A.prices.product(f) + relaid(A.output_layout, self.output_layout, (m, f))
        return price

    @property
    def _one_piece(self) -> Any:
        terms, shift = self.terms
        whole = sum(A._one_piece * c for c, A in terms)
        return whole + shift * sp.eye_array(self.shape[0]) if shift else whole

    @property
    def nnz(self) -> int:
        return sum(A.nnz for _, A in self.terms[0])

    def diagonal(self) -> DistDense:
        terms, shift = self.terms
        total: Any = sum(c * recut(A.diagonal(), self.output_layout) for c, A in terms)
        return total + shift


def combined(terms: list[tuple[float, Operator]], shift: float) -> Linear:
    """Return ``Σ c A + s I`` as an operator, or without any A as a multiple of ``I``."""
    return Combination(terms, shift) if terms else Identity(shift)


def _check_alike(A: Operator, B: Operator) -> None:
    """Raise ValueError unless A + B has a meaning."""
    same = {
        "grid": A.grid is B.grid, "shape": A.shape == B.shape, "dtype": A.dtype == B.dtype,
        "order of rows": A.output_layout.rows.order == B.output_layout.rows.order,
        "order of columns": A.input_layout.rows.order == B.input_layout.rows.order,
    }  # fmt: skip
    if not all(same.values()):
        lacking = " and ".join(name for name, alike in same.items() if not alike)
        raise ValueError(f"{A!r} + {B!r}: another {lacking}")
